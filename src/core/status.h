#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "tandem/tandem.h"

namespace tandem {

// A code of tandem.h and, unless it is TANDEM_OK, one sentence for the caller. Functions inside the library return it;
// only src/api turns it into the C interface's code and last-error text.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(tandem_status code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status ok() { return {}; }
  static Status invalid_argument(std::string message) { return {TANDEM_INVALID_ARGUMENT, std::move(message)}; }
  static Status unsupported(std::string message) { return {TANDEM_UNSUPPORTED, std::move(message)}; }

  bool is_ok() const { return code_ == TANDEM_OK; }
  tandem_status code() const { return code_; }
  const std::string& message() const { return message_; }
  std::string take_message() && { return std::move(message_); }

 private:
  tandem_status code_ = TANDEM_OK;
  std::string message_;
};

// Leaves the enclosing function with the status of `expression` unless it is ok.
#define TANDEM_RETURN_IF_ERROR(expression)                                         \
  do {                                                                             \
    if (::tandem::Status status_ = (expression); !status_.is_ok()) return status_; \
  } while (0)

}  // namespace tandem
