// Random problems of everything that the backend takes, and what it refuses.

#include <gtest/gtest.h>

#include <cstdlib>

#include "backend_test.h"
#include "device_problem.h"
#include "op_targets.h"
#include "property.h"

namespace tandem::gpu_test {
namespace {

using optest::dense_problem;
using optest::Domain;
using optest::Layout;
using optest::packed_problem;
using optest::Problem;
using optest::RandomCase;
using optest::Runner;

// TANDEM_TEST_SEED and TANDEM_TEST_COUNT change which random problems are run, and how many of each batch of them.
uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

uint64_t seed() {
  return from_environment("TANDEM_TEST_SEED", 1);
}

constexpr int kBatches = 16;

class RandomProblems : public testing::TestWithParam<int> {
 protected:
  // check(n): empty, or what is wrong with problem n.
  template <typename Check>
  void run_batch(uint64_t usual_count, Check check) const {
    const uint64_t count = from_environment("TANDEM_TEST_COUNT", is_quick() ? usual_count / 5 : usual_count);
    const uint64_t first = static_cast<uint64_t>(GetParam()) * 100000;
    for (uint64_t n = first; n < first + count; ++n) {
      const std::string fault = check(n);
      ASSERT_EQ(fault, "") << "problem " << n << "; again: TANDEM_TEST_SEED=" << seed()
                           << " TANDEM_TEST_COUNT=" << n - first + 1 << " gpu_op_test --gtest_filter='*" << test_name()
                           << "'";
    }
  }

 private:
  static std::string test_name() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    return std::string(test->test_suite_name()) + "." + test->name();
  }
};

// Of all layouts, in host memory between guard bands.
TEST_P(RandomProblems, OfEveryLayout) {
  optest::Target target;
  target.backend = TANDEM_BACKEND_SM90;
  target.gradients = false;
  run_batch(60, [&](uint64_t n) { return check_random_case(target, Domain::kTensorCores, seed(), n); });
}

// Larger ones, on the device.
TEST_P(RandomProblems, OfManyTiles) {
  run_batch(60, [&](uint64_t n) {
    const Problem problem = optest::random_problem_of_many_tiles(seed(), n);
    const uint64_t dice = hash_of(seed(), n);
    return check_on_device(problem, {n, kPatterns[dice % 6], dice % 5 == 0}, dice % 3 == 0);
  });
}

bool is_16_byte_grid(const Problem& problem, const optest::Shape& shape, const Layout& layout) {
  optest::HostTensor tensor(shape, problem.dtype, layout);
  const tandem_tensor view = tensor.view();
  const int64_t bytes = optest::element_bytes(problem.dtype);
  bool fits = layout.offset * bytes % 16 == 0;
  for (int axis = 0; axis + 1 < view.ndim; ++axis) {
    fits = fits && (view.shape[axis] == 1 || (view.stride[axis] > 0 && view.stride[axis] * bytes % 16 == 0));
  }
  return fits;
}

bool is_in_domain(const Problem& p) {
  return (p.dtype == TANDEM_BF16 || p.dtype == TANDEM_FP16) && p.out_dtype == p.dtype && p.headdim % 8 == 0 &&
         p.headdim_v % 8 == 0;
}

bool is_copyable(const Problem& p) {
  return is_16_byte_grid(p, p.q_shape(), p.q_layout) && is_16_byte_grid(p, p.k_shape(), p.k_layout) &&
         is_16_byte_grid(p, p.v_shape(), p.v_layout) && is_16_byte_grid(p, p.out_shape(), p.out_layout);
}

// Problems for the CPU: refused in words if they are outside what the kernels take, right otherwise. Misaligned ones
// may be either.
TEST_P(RandomProblems, OfTheCpu) {
  run_batch(150, [&](uint64_t n) -> std::string {
    RandomCase test = optest::random_case(seed() + 5, n);
    test.problem.checked = false;
    Runner runner(test.problem, test.inputs, TANDEM_BACKEND_SM90);
    const tandem_status status = runner.forward();
    const std::string sentence = tandem_last_error();
    const std::string what = describe(test.problem) + "\n" + describe_layouts(test.problem);
    if (!runner.damage().empty()) return runner.damage() + "; " + what;
    if (status == TANDEM_UNSUPPORTED) {
      const bool expected = !is_in_domain(test.problem) || !is_copyable(test.problem);
      return expected && !sentence.empty() ? "" : "refused: " + sentence + "; " + what;
    }
    if (status != TANDEM_OK) return sentence + "; " + what;
    if (!is_in_domain(test.problem)) return "not refused: " + what;
    const std::string fault = check_problem(test.problem, test.inputs, TANDEM_BACKEND_SM90, false);
    return fault.empty() ? "" : fault + "; " + what;
  });
}

INSTANTIATE_TEST_SUITE_P(Batch, RandomProblems, testing::Range(0, kBatches));

void expect_refused(const Problem& problem, const char* word) {
  Runner runner(problem, random_inputs(problem, 1), TANDEM_BACKEND_SM90);
  EXPECT_EQ(runner.forward(), TANDEM_UNSUPPORTED) << describe(problem);
  EXPECT_NE(std::string(tandem_last_error()).find(word), std::string::npos) << tandem_last_error();
  EXPECT_EQ(runner.damage(), "");
}

TEST(Refusals, TypesAndHeadDims) {
  expect_refused(dense_problem(1, 4, 5, 2, 1, 64, TANDEM_FP32), "fp32");
  expect_refused(dense_problem(1, 4, 5, 2, 1, 64, TANDEM_FP64), "fp64");
  Problem fp32_results = dense_problem(1, 4, 5, 2, 1, 64, TANDEM_BF16);
  fp32_results.out_dtype = TANDEM_FP32;
  expect_refused(fp32_results, "out");
  for (int64_t headdim : {1, 4, 59, 65, 100, 255}) {
    expect_refused(dense_problem(1, 4, 5, 2, 1, headdim, TANDEM_BF16), "headdim");
    Problem problem = packed_problem({3, 4}, {5, 2}, 2, 1, 64, TANDEM_FP16);
    problem.headdim_v = headdim;
    expect_refused(problem, "headdim_v");
  }
}

TEST(Refusals, C50_WhatTheCopyEngineCannotAddress) {
  for (const char* name : {"q", "k", "v", "out"}) {
    for (bool misaligned : {false, true}) {
      Problem problem = dense_problem(2, 10, 12, 2, 2, 64, TANDEM_BF16);
      Layout& layout = name[0] == 'q'   ? problem.q_layout
                       : name[0] == 'k' ? problem.k_layout
                       : name[0] == 'v' ? problem.v_layout
                                        : problem.out_layout;
      (misaligned ? layout.offset : layout.padding) = 1;
      Runner runner(problem, random_inputs(problem, 1), TANDEM_BACKEND_SM90);
      EXPECT_EQ(runner.forward(), TANDEM_UNSUPPORTED) << name << (misaligned ? " misaligned" : " padded");
      EXPECT_NE(std::string(tandem_last_error()).find(name), std::string::npos) << tandem_last_error();
      EXPECT_EQ(runner.damage(), "");
    }
  }
}

// The kernels count in an int, with some room; contract 11's limit is higher.
TEST(Refusals, MoreRowsThanTheKernelsCount) {
  for (bool of_keys : {false, true}) {
    const int64_t rows = INT32_MAX;
    tandem_forward_params params = {};
    params.struct_size = sizeof params;
    params.exec.device = {TANDEM_CUDA, 0};
    params.exec.backend = TANDEM_BACKEND_SM90;
    const auto tensor = [](int64_t seqlen) {
      return tandem_tensor{nullptr, TANDEM_BF16, 4, {1, seqlen, 1, 64}, {seqlen * 64, 64, 64, 1}};
    };
    params.q = params.out = tensor(of_keys ? 5 : rows);
    params.k = params.v = tensor(of_keys ? rows : 5);
    EXPECT_EQ(tandem_forward_check(&params), TANDEM_UNSUPPORTED);
    EXPECT_NE(std::string(tandem_last_error()).find("rows"), std::string::npos) << tandem_last_error();
  }
}

TEST(Refusals, TheBackward) {
  const Problem problem = dense_problem(1, 4, 5, 2, 1, 64, TANDEM_BF16);
  Runner runner(problem, random_inputs(problem, 1), TANDEM_BACKEND_SM90);
  ASSERT_EQ(runner.forward(), TANDEM_OK) << tandem_last_error();
  EXPECT_EQ(runner.backward(), TANDEM_UNSUPPORTED);
  EXPECT_NE(std::string(tandem_last_error()).find("backward"), std::string::npos) << tandem_last_error();
}

}  // namespace
}  // namespace tandem::gpu_test
