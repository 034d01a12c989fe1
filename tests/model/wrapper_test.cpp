// Every wrapper of src/sm90/ptx in the model, against the instruction's definition: the cases that run on the GPU too.

#include <gtest/gtest.h>

#include <ostream>

#include "wrapper_cases.h"

namespace tandem::sm90::wrappers {

void PrintTo(const NamedCase& test, std::ostream* stream) {
  *stream << test.name;
}

}  // namespace tandem::sm90::wrappers

namespace tandem::model {
namespace {

using sm90::wrappers::NamedCase;

class Wrapper : public testing::TestWithParam<NamedCase> {};

TEST_P(Wrapper, DoesWhatTheIsaSays) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    EXPECT_EQ(difference(GetParam(), GetParam().run(seed)), "") << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Ptx, Wrapper, testing::ValuesIn(model_cases()),
                         [](const testing::TestParamInfo<NamedCase>& info) { return info.param.name; });

}  // namespace
}  // namespace tandem::model
