#include "api/last_error.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <thread>

#include "tandem/tandem.h"

namespace tandem {
namespace {

TEST(LastError, KeepsTheWordsUntilTheNextCall) {
  EXPECT_EQ(tandem_forward_check(nullptr), TANDEM_INVALID_ARGUMENT);
  EXPECT_STREQ(tandem_last_error(), "params is NULL; it must point to a parameter struct");
  EXPECT_STREQ(tandem_last_error(), "params is NULL; it must point to a parameter struct");
  EXPECT_EQ(tandem_prepare({TANDEM_CPU, 0}), TANDEM_OK);
  EXPECT_STREQ(tandem_last_error(), "");
}

TEST(LastError, BelongsToTheThread) {
  EXPECT_NE(tandem_forward(nullptr), TANDEM_OK);
  std::string seen = "not read";
  std::thread([&] { seen = tandem_last_error(); }).join();
  EXPECT_EQ(seen, "");
  EXPECT_STRNE(tandem_last_error(), "");
}

TEST(Fence, TurnsExceptionsIntoCodes) {
  EXPECT_EQ(fenced([]() -> Status { throw std::bad_alloc(); }), TANDEM_OUT_OF_MEMORY);
  EXPECT_STREQ(last_error(), "out of host memory");
  EXPECT_EQ(fenced([]() -> Status { throw std::length_error("too long"); }), TANDEM_INTERNAL_ERROR);
  EXPECT_NE(std::string(last_error()).find("too long"), std::string::npos);
  EXPECT_EQ(fenced([]() -> Status { throw 5; }), TANDEM_INTERNAL_ERROR);
  EXPECT_EQ(fenced([] { return Status::unsupported("no"); }), TANDEM_UNSUPPORTED);
  EXPECT_STREQ(last_error(), "no");
  EXPECT_EQ(fenced([] { return Status::ok(); }), TANDEM_OK);
  EXPECT_STREQ(last_error(), "");
}

}  // namespace
}  // namespace tandem
