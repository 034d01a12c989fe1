// The quantiser's bits are the same on every instruction set.
#include <random>
#include <vector>

#include "core/backend.h"
#include "tests/unit/cpu/each_target.h"

namespace tandem {
namespace {

struct Output {
  std::vector<uint8_t> out;
  std::vector<float> scale;
};

Output quantize(int64_t headdim, const std::vector<float>& x) {
  constexpr int64_t kRows = 200;
  constexpr int64_t kPairs = 4;
  Output output{std::vector<uint8_t>(x.size()), std::vector<float>(2)};
  std::vector<float> cos(kRows * kPairs), sin(kRows * kPairs);
  for (size_t n = 0; n < cos.size(); ++n) {
    cos[n] = static_cast<float>(n % 101) / 101;
    sin[n] = static_cast<float>(n % 57) / 57;
  }
  QuantizeProblem problem;
  problem.batch = problem.nheads = 1;
  problem.headdim = headdim;
  problem.seqlen = problem.total = kRows;
  problem.x = {const_cast<float*>(x.data()), DType::kFp32, 0, headdim, 0};
  problem.out = {output.out.data(), DType::kE4m3, 0, headdim, 0};
  problem.scale.data = output.scale.data();
  problem.scale.dtype = DType::kFp32;
  problem.scale.block_stride = 1;
  problem.scale.blocks = 2;
  problem.scale_per_head = problem.scale_per_block = true;
  problem.rotary_cos = {cos.data(), DType::kFp32, kPairs};
  problem.rotary_sin = {sin.data(), DType::kFp32, kPairs};
  problem.rotary_positions = kRows;
  problem.rotary_pairs = kPairs;
  problem.rotate = true;
  problem.seed = 5;
  problem.exec.num_threads = 1;
  std::vector<char> workspace(kTiledBackend.workspace_quantize(problem).bytes + 256);
  void* aligned = workspace.data() + (256 - reinterpret_cast<uintptr_t>(workspace.data()) % 256);
  problem.exec.workspace = aligned;
  EXPECT_TRUE(kTiledBackend.run_quantize(problem).is_ok());
  return output;
}

TEST(TiledQuantize, TheInstructionSetChangesNoBit) {
  for (const int64_t headdim : {16, 64, 96, 192, 256}) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<size_t>(200 * headdim));
    for (float& value : x) value = normal(random);
    std::vector<Output> outputs;
    for_each_target([&] { outputs.push_back(quantize(headdim, x)); });
    for (const Output& output : outputs) {
      EXPECT_EQ(output.out, outputs[0].out);
      EXPECT_EQ(output.scale, outputs[0].scale);
    }
  }
}

}  // namespace
}  // namespace tandem
