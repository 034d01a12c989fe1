// The quantiser on the GPU, beyond its operator tests: bits, graphs, sizes.

#include <gtest/gtest.h>

#include "device_problem.h"
#include "graph.h"
#include "op_targets.h"
#include "quantize_definition.h"
#include "quantize_on_device.h"

namespace tandem::gpu_test {
namespace {

using optest::dense_case;
using optest::Granularity;
using optest::packed_case;
using optest::QuantizeCase;

constexpr int64_t k31Bits = int64_t{1} << 31;
constexpr Granularity kGranularities[] = {Granularity::kTensor, Granularity::kHead, Granularity::kBlock};

void expect_ok(tandem_status status) {
  ASSERT_EQ(status, TANDEM_OK) << tandem_last_error();
}

// In each of the kernels.
std::vector<QuantizeCase> some_cases(int64_t headdim) {
  std::vector<QuantizeCase> cases;
  for (const Granularity granularity : kGranularities) {
    for (int kind = 0; kind < 4; ++kind) {
      QuantizeCase test =
          kind % 2 == 0 ? dense_case(2, 700, 5, headdim) : packed_case({2, 2, 300, 777, 800, 1300}, 1307, 3, headdim);
      test.granularity = granularity;
      test.transposed = kind == 1;
      test.rotate = kind >= 2 && headdim % 10 != 0;
      cases.push_back(test);
    }
  }
  return cases;
}

TEST(QuantizeBehaviour, Contract12_AThousandRunsBesideAnotherStream) {
  const int repeats = is_quick() ? 100 : 1000;
  for (const int64_t headdim : {64, 96, 256, 50}) {
    for (const QuantizeCase& test : some_cases(headdim)) {
      QuantizeOnDevice first(test, 1), again(test, 1), other(dense_case(3, 500, 4, 128), 2);
      const Stream stream, racing;
      expect_ok(first.run(stream));
      wait_for(stream);
      EXPECT_EQ(first.fault(), "") << headdim;
      for (int repeat = 0; repeat < repeats; ++repeat) {
        if (repeat % 100 == 0) {
          wait_for(stream);
          again.poison_results();
        }
        if (repeat % 3 == 0) expect_ok(other.run(racing));
        expect_ok(again.run(stream));
        if (repeat % 100 != 0) continue;  // the runs between them overwrite equal results
        wait_for(stream);
        ASSERT_EQ(first.results(), again.results()) << headdim << ", repeat " << repeat;
      }
      wait_for(stream);
      wait_for(racing);
      ASSERT_EQ(first.results(), again.results()) << headdim;
    }
  }
}

TEST(QuantizeBehaviour, C98_GraphsReplayWithOtherContentsAndLengths) {
  expect_ok(tandem_prepare({TANDEM_CUDA, 0}));
  const std::vector<int32_t> offsets[] = {{0, 100, 200, 300, 400, 500},
                                          {0, 500, 500, 500, 500, 500},
                                          {0, 0, 1, 2, 250, 500},
                                          {3, 3, 130, 130, 400, 490},
                                          {0, 0, 0, 0, 0, 0}};
  for (const int64_t headdim : {64, 192, 50}) {
    for (const Granularity granularity : kGranularities) {
      for (const bool transposed : {false, true}) {
        QuantizeCase test = packed_case(offsets[0], 500, 2, headdim);
        test.blocks = 4;
        test.granularity = granularity;
        test.transposed = transposed;
        test.rotate = !transposed && headdim != 50;
        test.seqused = {100, 100, 100, 100, 100};
        QuantizeOnDevice data(test, 5);
        const Stream stream;
        const Graph graph(stream, [&] { return data.run(stream); });
        expect_ok(graph.status());
        uint64_t seed = 10;
        for (const std::vector<int32_t>& lengths : offsets) {
          test.cu_seqlens = lengths;
          for (size_t b = 0; b < 5; ++b) test.seqused[b] = (lengths[b + 1] - lengths[b]) * static_cast<int32_t>(b) / 4;
          data.change(test, ++seed);
          data.poison_results();
          graph.replay();
          EXPECT_EQ(data.fault(), "") << headdim;
          graph.replay();  // scratch memory and scales as the last replay left them
          EXPECT_EQ(data.fault(), "") << headdim;
        }
      }
    }
  }
}

void expect_right(const QuantizeCase& test) {
  QuantizeOnDevice data(test, 6);
  const Stream stream;
  expect_ok(data.run(stream));
  wait_for(stream);
  EXPECT_EQ(data.fault(), "");
}

TEST(QuantizeCounts, C43_ManySequences) {
  for (const bool transposed : {false, true}) {
    QuantizeCase batch = dense_case(70000, 3, 1, 16);
    batch.transposed = transposed;
    batch.granularity = Granularity::kHead;
    expect_right(batch);
    std::vector<int32_t> offsets = {0};
    for (int n = 0; n < 80000; ++n) offsets.push_back(offsets.back() + n % 9);
    QuantizeCase packed = packed_case(offsets, offsets.back() + 5, 1, 8);
    packed.transposed = transposed;
    expect_right(packed);
  }
}

// More heads than a grid axis of 16 bits holds.
TEST(QuantizeCounts, Contract11_NoAxisHasALimitOfItsOwn) {
  expect_right(dense_case(1, 2, 71280, 16));
  QuantizeCase per_tensor = dense_case(1, 3, 71280, 8);
  per_tensor.granularity = Granularity::kTensor;
  expect_right(per_tensor);
}

// Blocks at both ends of the buffers and around element 2^31 of each sequence that reaches it.
void expect_sample_right(const QuantizeCase& test) {
  size_t free_bytes = 0, all_bytes = 0;
  TANDEM_CHECK_CUDA(cudaMemGetInfo(&free_bytes, &all_bytes));
  try {
    QuantizeOnDevice data(test, 7);
    const Stream stream;
    expect_ok(data.run(stream));
    wait_for(stream);
    const int64_t row_of_31_bits = k31Bits / (test.nheads * test.headdim);
    for (int64_t b = 0; b < test.batch; ++b) {
      const int64_t last = (test.length(b) - 1) / 128;
      for (const int64_t block : {int64_t{0}, std::min(row_of_31_bits / 128, last), last}) {
        for (const int64_t head : {int64_t{0}, test.nheads - 1}) EXPECT_EQ(data.fault_of_block(b, head, block), "");
      }
    }
  } catch (const std::exception& error) {
    FAIL() << error.what() << "; " << free_bytes << " bytes of device memory were free";
  }
}

TEST(QuantizeBeyond31Bits, Contract10_OffsetsAre64Bit) {
  for (const int64_t headdim : {64, 96, 128, 192, 256, 50}) {
    const int64_t rows = k31Bits / (64 * headdim) + 300;
    for (int kind = 0; kind < 3; ++kind) {
      QuantizeCase test = dense_case(2, rows, 64, headdim);
      test.transposed = kind == 1;
      test.rotate = kind == 2;
      if (test.rotate && headdim == 50) continue;
      expect_sample_right(test);
    }
  }
}

TEST(QuantizeBeyond31Bits, C45_Packed) {
  const auto rows = static_cast<int32_t>(k31Bits / (64 * 128) + 100);
  for (const bool transposed : {false, true}) {
    QuantizeCase test = packed_case({0, 77, 77 + rows, 110 + rows}, 120 + rows, 64, 128);
    test.transposed = transposed;
    test.dtype = TANDEM_FP16;
    expect_sample_right(test);
  }
}

}  // namespace
}  // namespace tandem::gpu_test
