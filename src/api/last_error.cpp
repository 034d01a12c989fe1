#include "api/last_error.h"

#include <string>
#include <utility>

namespace tandem {
namespace {

struct LastError {
  std::string text;
  const char* current = "";  // text, or a literal where there was no memory for one
};

thread_local LastError thread_error;

}  // namespace

const char* last_error() noexcept {
  return thread_error.current;
}

tandem_status set_last_error(Status status) noexcept {
  const tandem_status code = status.code();
  thread_error.text = std::move(status).take_message();
  thread_error.current = thread_error.text.c_str();
  return code;
}

tandem_status set_out_of_memory() noexcept {
  thread_error.current = "out of host memory";
  return TANDEM_OUT_OF_MEMORY;
}

}  // namespace tandem
