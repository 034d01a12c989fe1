#include <cstdlib>
#include <string>

#include "api/parse.h"
#include "api/text.h"

namespace tandem {
namespace {

Status check_stream_and_counts(const tandem_execution& exec) {
  if (exec.device.type == TANDEM_CPU && exec.stream != nullptr) {
    return Status::invalid_argument("exec.stream is not NULL; on the CPU it must be NULL");
  }
  if (exec.num_threads < 0) {
    return Status::invalid_argument(
        concat("exec.num_threads is ", exec.num_threads, "; allowed are 0 (OpenMP's default) and more"));
  }
  if (exec.sm_margin < 0 || (exec.device.type == TANDEM_CPU && exec.sm_margin != 0)) {
    return Status::invalid_argument(concat("exec.sm_margin is ", exec.sm_margin, "; it must be ",
                                           exec.device.type == TANDEM_CPU ? "0 on the CPU" : "0 or more"));
  }
  return Status::ok();
}

// TANDEM_CHECK=1 turns the checked mode on for calls that do not ask for it.
Status read_check_variable(bool* checked) {
  const char* variable = std::getenv("TANDEM_CHECK");
  const std::string value = variable ? variable : "";
  if (value != "" && value != "0" && value != "1") {
    return Status::invalid_argument(
        concat("the environment variable TANDEM_CHECK is \"", value, "\"; allowed are 0 and 1"));
  }
  *checked = value == "1";
  return Status::ok();
}

}  // namespace

Status check_device(const char* name, tandem_device device) {
  if (device.type != TANDEM_CPU && device.type != TANDEM_CUDA) {
    return Status::invalid_argument(
        concat(name, ".type is ", device.type, "; allowed are TANDEM_CPU (0) and TANDEM_CUDA (1)"));
  }
  if (device.ordinal < 0 || (device.type == TANDEM_CPU && device.ordinal != 0)) {
    return Status::invalid_argument(concat(name, ".ordinal is ", device.ordinal, "; it must be ",
                                           device.type == TANDEM_CPU ? "0 on the CPU" : "0 or more"));
  }
  return Status::ok();
}

Status check_flag(const char* name, int32_t value) {
  if (value == 0 || value == 1) return Status::ok();
  return Status::invalid_argument(concat(name, " is ", value, "; allowed are 0 and 1"));
}

Status parse_execution(const tandem_execution& exec, Execution* execution) {
  TANDEM_RETURN_IF_ERROR(check_device("exec.device", exec.device));
  TANDEM_RETURN_IF_ERROR(check_stream_and_counts(exec));
  TANDEM_RETURN_IF_ERROR(check_flag("exec.needs_grad", exec.needs_grad));
  TANDEM_RETURN_IF_ERROR(check_flag("exec.deterministic", exec.deterministic));
  TANDEM_RETURN_IF_ERROR(check_flag("exec.checked", exec.checked));
  bool check_variable = false;
  TANDEM_RETURN_IF_ERROR(read_check_variable(&check_variable));

  execution->device_type = exec.device.type;
  execution->device_ordinal = exec.device.ordinal;
  execution->stream = exec.stream;
  execution->workspace = exec.workspace;
  execution->workspace_bytes = exec.workspace_bytes;
  execution->backend = exec.backend;
  execution->num_threads = exec.num_threads;
  execution->sm_margin = exec.sm_margin;
  execution->needs_grad = exec.needs_grad == 1;
  execution->deterministic = exec.deterministic == 1;
  execution->checked = exec.checked == 1 || check_variable;
  return Status::ok();
}

}  // namespace tandem
