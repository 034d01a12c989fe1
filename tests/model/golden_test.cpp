// The model against an H200: the same cases from the same seed, bit for bit, but for what the ISA calls approximate.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <ostream>

#include "golden.h"
#include "wrapper_cases.h"

namespace tandem::sm90::wrappers {

void PrintTo(const NamedCase& test, std::ostream* stream) {
  *stream << test.name;
}

}  // namespace tandem::sm90::wrappers

namespace tandem::model {
namespace {

using sm90::wrappers::NamedCase;

constexpr uint64_t kSeed = 7;

// How far the GPU's results may lie from the model's, which are rounded from double. All others agree bit for bit, the
// sums of wgmma included.
struct Tolerance {
  const char* name;
  int64_t ulps;     // of a result,
  double absolute;  // or this far from it
};
constexpr Tolerance kTolerances[] = {
    {"ex2", 1, 0},
    {"lg2", 1, 0x1p-22},
    {"rcp", 1, 0},
    {"tanh_approx", 128, 0},
};

Tolerance tolerance_of(const std::string& name) {
  for (const Tolerance& tolerance : kTolerances) {
    if (name == tolerance.name) return tolerance;
  }
  return {"", 0, 0};
}

std::string difference_from(const std::vector<uint32_t>& gpu, const std::vector<uint32_t>& model, bool floats,
                            const Tolerance& tolerance) {
  if (gpu.size() != model.size()) return "sizes differ";
  for (size_t i = 0; i < gpu.size(); ++i) {
    if (gpu[i] == model[i]) continue;
    const double distance = std::fabs(static_cast<double>(sm90::wrappers::float_of(gpu[i])) -
                                      static_cast<double>(sm90::wrappers::float_of(model[i])));
    if (floats && (ulps_between(gpu[i], model[i]) <= tolerance.ulps || distance <= tolerance.absolute)) continue;
    char text[100];
    std::snprintf(text, sizeof(text), "word %zu: %08x on the GPU, %08x in the model", i, gpu[i], model[i]);
    return text;
  }
  return "";
}

class Golden : public testing::TestWithParam<NamedCase> {};

TEST_P(Golden, AsTheGpu) {
  static const auto golden = read_golden(TANDEM_GOLDEN_FILE);
  const auto gpu = golden.find(GetParam().name);
  if (gpu == golden.end())
    GTEST_SKIP() << "no GPU has run it yet: tools/gpu_check.sh unit on an H200 writes the file anew";
  const sm90::wrappers::CaseResult model = GetParam().run(kSeed);
  ASSERT_EQ(model.error, "");
  const bool floats = GetParam().kind == sm90::wrappers::Kind::kFloats;
  EXPECT_EQ(difference_from(gpu->second, model.got, floats, tolerance_of(GetParam().name)), "");
}

INSTANTIATE_TEST_SUITE_P(H200, Golden, testing::ValuesIn(model_cases()),
                         [](const testing::TestParamInfo<NamedCase>& info) { return info.param.name; });

}  // namespace
}  // namespace tandem::model
