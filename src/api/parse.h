#pragma once

#include "api/arguments.h"
#include "core/problem.h"
#include "core/status.h"

namespace tandem {

// Turn the caller's arguments into a valid problem, or say in one sentence why there is none [13]. Nothing is read
// through a data pointer: these serve the check and workspace calls, too.
Status parse(const AttentionArguments& arguments, AttentionProblem* problem);
Status parse(const MergeArguments& arguments, MergeProblem* problem);
Status parse(const QuantizeArguments& arguments, QuantizeProblem* problem);

Status parse_execution(const tandem_execution& exec, Execution* execution);

// `name` is what messages call the device: "exec.device".
Status check_device(const char* name, tandem_device device);

// That an option is 0 or 1.
Status check_flag(const char* name, int32_t value);

}  // namespace tandem
