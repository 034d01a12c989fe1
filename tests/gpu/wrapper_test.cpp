// Every wrapper of src/sm90/ptx on the GPU, against the instruction's definition.

#include <gtest/gtest.h>

#include <ostream>

#include "cuda_check.h"
#include "wrappers/run.h"

namespace tandem::sm90::wrappers {

// What GoogleTest prints of a case.
void PrintTo(const NamedCase& test, std::ostream* stream) {
  *stream << test.name;
}

namespace {

class Wrapper : public testing::TestWithParam<NamedCase> {};

TEST_P(Wrapper, DoesWhatTheIsaSays) {
  TANDEM_NEEDS_GPU();
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    EXPECT_EQ(difference(GetParam(), GetParam().run(seed)), "") << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Ptx, Wrapper, testing::ValuesIn(gpu_cases()),
                         [](const testing::TestParamInfo<NamedCase>& info) { return info.param.name; });

}  // namespace
}  // namespace tandem::sm90::wrappers
