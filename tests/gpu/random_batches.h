#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "op_targets.h"

// Random problems in batches, each a test, so that they spread over processes.
namespace tandem::gpu_test {

// TANDEM_TEST_SEED and TANDEM_TEST_COUNT change which random problems are run, and how many of each batch of them.
inline uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

inline uint64_t random_seed() {
  return from_environment("TANDEM_TEST_SEED", 1);
}

constexpr int kBatches = 16;

class RandomBatches : public testing::TestWithParam<int> {
 protected:
  // check(n): empty, or what is wrong with problem n.
  template <typename Check>
  void run_batch(uint64_t usual_count, Check check) const {
    const uint64_t count = from_environment("TANDEM_TEST_COUNT", is_quick() ? usual_count / 5 : usual_count);
    const uint64_t first = static_cast<uint64_t>(GetParam()) * 100000;
    for (uint64_t n = first; n < first + count; ++n) {
      const std::string fault = check(n);
      ASSERT_EQ(fault, "") << "problem " << n << "; again: TANDEM_TEST_SEED=" << random_seed()
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

}  // namespace tandem::gpu_test
