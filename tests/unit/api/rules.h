#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tandem/tandem.hpp"

namespace tandem {

// One way to break a valid problem, and what the check call must say: the code, and a sentence that begins with the
// argument's name and contains the words.
template <class Params>
struct Rule {
  std::string argument;
  std::function<void(Params&)> change;
  std::vector<std::string> words;
  tandem_status code = TANDEM_INVALID_ARGUMENT;
};

template <class Params>
tandem_status check_status(const Params& params) {
  return detail::calls_of(params).check(&params);
}

inline void expect_sentence(const std::string& text, const std::string& argument,
                            const std::vector<std::string>& words) {
  EXPECT_EQ(text.rfind(argument, 0), 0u) << "does not begin with " << argument << ": " << text;
  for (const std::string& word : words) EXPECT_NE(text.find(word), std::string::npos) << word << " not in: " << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  EXPECT_NE(text.back(), '.') << text;
}

template <class Params>
void expect_refused(Params params, const Rule<Params>& rule) {
  rule.change(params);
  const std::string trace = "rule about " + rule.argument + (rule.words.empty() ? "" : ": " + rule.words.front());
  SCOPED_TRACE(trace);
  EXPECT_EQ(check_status(params), rule.code);
  expect_sentence(tandem_last_error(), rule.argument, rule.words);
}

template <class Params>
void expect_accepted(const Params& params) {
  EXPECT_EQ(check_status(params), TANDEM_OK) << tandem_last_error();
  EXPECT_STREQ(tandem_last_error(), "");
}

}  // namespace tandem
