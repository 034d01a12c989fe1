// The merge kernel's own source, run in the model, on the cases that run on the GPU too.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "engine/machine.h"
#include "merge_case.h"
#include "sm90/merge/kernel.cuh"
#include "sm90/merge/plan.h"

namespace tandem::model {
namespace {

using gpu_test::MergeCase;
using gpu_test::MergeData;

// Empty, or what was wrong.
std::string run_merge(const MergeCase& test, int blocks) {
  const MergeData data(test);
  Machine machine({});
  GlobalMemory& global = machine.global();
  void* out = global.allocate("out", data.out_bytes());
  void* lse = global.allocate("lse", data.lse_elems() * sizeof(float));
  const MergeProblem problem =
      data.problem({global.upload("out_partial", data.out_partial()), global.upload("lse_partial", data.lse_partial()),
                    global.upload("sink", data.sink()), out, lse});
  const sm90::MergePlan plan = sm90::plan_merge(problem);
  Launch launch;
  launch.blocks = blocks;
  launch.threads = sm90::kMergeThreads;
  launch.kernel = [&] {
    if (plan.columns == 1) {
      sm90::merge_kernel<1>(problem, plan.runs);
    } else {
      sm90::merge_kernel<sm90::kMergeWideColumns>(problem, plan.runs);
    }
  };
  const RunResult result = machine.run(launch);
  if (result.report) return result.text();
  std::vector<uint8_t> out_bytes(data.out_bytes());
  std::vector<float> lse_values(data.lse_elems());
  std::copy_n(static_cast<const uint8_t*>(out), out_bytes.size(), out_bytes.begin());
  std::copy_n(static_cast<const float*>(lse), lse_values.size(), lse_values.begin());
  return data.fault(out_bytes, lse_values);
}

TEST(Merge, CasesOfEveryKind) {
  for (const MergeCase& test : gpu_test::merge_cases()) EXPECT_EQ(run_merge(test, 1), "") << test.text();
}

// Fewer threads than runs, on blocks side by side.
TEST(Merge, ManyRows) {
  MergeCase test;
  test.rows = 200;
  test.headdim_v = 24;
  test.in = test.out = DType::kBf16;
  EXPECT_EQ(run_merge(test, 2), "");
  test.headdim_v = 3;
  EXPECT_EQ(run_merge(test, 1), "");
}

}  // namespace
}  // namespace tandem::model
