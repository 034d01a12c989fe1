// The extern "C" functions of tandem.h. Every operation goes the same way: read_struct, gather, parse, choose a
// backend, ask it; a run then checks memory and workspace, and runs.
#include <cstdlib>
#include <string>

#include "api/arguments.h"
#include "api/backends.h"
#include "api/last_error.h"
#include "api/parse.h"
#include "api/run_checks.h"
#include "core/backend.h"
#include "tandem/tandem.h"

namespace tandem {
namespace {

Status supports(const Backend& backend, const AttentionProblem& problem) {
  return backend.supports(problem);
}
Status supports(const Backend& backend, const MergeProblem& problem) {
  return backend.supports_merge(problem);
}
Status supports(const Backend& backend, const QuantizeProblem& problem) {
  if (backend.supports_quantize != nullptr) return backend.supports_quantize(problem);
  return Status::unsupported(concat("the ", backend.name, " backend of this version has no fp8 quantiser"));
}
Workspace workspace(const Backend& backend, const AttentionProblem& problem) {
  return backend.workspace(problem);
}
Workspace workspace(const Backend&, const MergeProblem&) {
  return {};
}
Workspace workspace(const Backend& backend, const QuantizeProblem& problem) {
  return backend.workspace_quantize(problem);
}
Status run(const Backend& backend, const AttentionProblem& problem) {
  return backend.run(problem);
}
Status run(const Backend& backend, const MergeProblem& problem) {
  return backend.run_merge(problem);
}
Status run(const Backend& backend, const QuantizeProblem& problem) {
  return backend.run_quantize(problem);
}

AttentionProblem problem_of(const AttentionArguments&) {
  return {};
}
MergeProblem problem_of(const MergeArguments&) {
  return {};
}
QuantizeProblem problem_of(const QuantizeArguments&) {
  return {};
}

Status select(const char* argument, int32_t requested, tandem_device device, const Backend** backend) {
  return select_backend(built_backends(), argument, requested, std::getenv("TANDEM_BACKEND"), device, backend);
}

// Calls then(backend, problem, arguments) with a problem that is valid and that the backend supports.
template <class Params, class Then>
Status with_problem(const Params* params, Then then) {
  Params copy;
  TANDEM_RETURN_IF_ERROR(read_struct(params, &copy));
  const auto arguments = gather(copy);
  auto problem = problem_of(arguments);
  TANDEM_RETURN_IF_ERROR(parse(arguments, &problem));
  const Backend* backend = nullptr;
  TANDEM_RETURN_IF_ERROR(select("exec.backend", copy.exec.backend, copy.exec.device, &backend));
  TANDEM_RETURN_IF_ERROR(supports(*backend, problem));
  return then(*backend, problem, arguments);
}

template <class Params>
tandem_status check_call(const Params* params) {
  return fenced(
      [&] { return with_problem(params, [](const Backend&, const auto&, const auto&) { return Status::ok(); }); });
}

template <class Params>
tandem_status workspace_call(const Params* params, uint64_t* bytes, uint64_t* alignment) {
  return fenced([&]() -> Status {
    if (bytes == nullptr) return Status::invalid_argument("bytes is NULL; it must point to a uint64_t");
    if (alignment == nullptr) return Status::invalid_argument("alignment is NULL; it must point to a uint64_t");
    return with_problem(params, [&](const Backend& backend, const auto& problem, const auto&) {
      const Workspace needed = workspace(backend, problem);
      *bytes = needed.bytes;
      *alignment = needed.alignment;
      return Status::ok();
    });
  });
}

template <class Params>
tandem_status run_call(const Params* params) {
  return fenced([&] {
    return with_problem(params, [](const Backend& backend, const auto& problem, const auto& arguments) -> Status {
      const auto tensors = arguments.tensors();
      TANDEM_RETURN_IF_ERROR(check_memory(tensors.data(), static_cast<int>(tensors.size())));
      TANDEM_RETURN_IF_ERROR(check_workspace(problem.exec, workspace(backend, problem)));
      if (problem.exec.checked) TANDEM_RETURN_IF_ERROR(check_values(backend, problem));
      return run(backend, problem);
    });
  });
}

Status prepare_backends(tandem_device device) {
  TANDEM_RETURN_IF_ERROR(check_device("device", device));
  const Backend* preferred = nullptr;
  TANDEM_RETURN_IF_ERROR(select_backend(built_backends(), "", TANDEM_BACKEND_AUTO, nullptr, device, &preferred));
  for (const Backend* backend : built_backends()) {
    if (backend->device_type != device.type || !backend->available(device.ordinal).is_ok()) continue;
    TANDEM_RETURN_IF_ERROR(backend->prepare(device.ordinal));
  }
  return Status::ok();
}

Status available_backend(int32_t id, tandem_device device, const Backend** backend) {
  if (id <= TANDEM_BACKEND_AUTO || id > TANDEM_BACKEND_SM90) {
    return Status::invalid_argument(concat("backend is ", id, "; allowed are 1 (reference), 2 (tiled) and 3 (sm90)"));
  }
  TANDEM_RETURN_IF_ERROR(check_device("device", device));
  return find_backend(built_backends(), id, device, backend);
}

std::string describe(int32_t id, tandem_device device) {
  const Backend* backend = nullptr;
  const Status status = available_backend(id, device, &backend);
  return status.is_ok() ? backend->description(device.ordinal) : status.message();
}

}  // namespace
}  // namespace tandem

using namespace tandem;

extern "C" {

tandem_status tandem_forward_check(const tandem_forward_params* params) {
  return check_call(params);
}
tandem_status tandem_forward_workspace(const tandem_forward_params* params, uint64_t* bytes, uint64_t* alignment) {
  return workspace_call(params, bytes, alignment);
}
tandem_status tandem_forward(const tandem_forward_params* params) {
  return run_call(params);
}

tandem_status tandem_varlen_forward_check(const tandem_varlen_forward_params* params) {
  return check_call(params);
}
tandem_status tandem_varlen_forward_workspace(const tandem_varlen_forward_params* params, uint64_t* bytes,
                                              uint64_t* alignment) {
  return workspace_call(params, bytes, alignment);
}
tandem_status tandem_varlen_forward(const tandem_varlen_forward_params* params) {
  return run_call(params);
}

tandem_status tandem_backward_check(const tandem_backward_params* params) {
  return check_call(params);
}
tandem_status tandem_backward_workspace(const tandem_backward_params* params, uint64_t* bytes, uint64_t* alignment) {
  return workspace_call(params, bytes, alignment);
}
tandem_status tandem_backward(const tandem_backward_params* params) {
  return run_call(params);
}

tandem_status tandem_varlen_backward_check(const tandem_varlen_backward_params* params) {
  return check_call(params);
}
tandem_status tandem_varlen_backward_workspace(const tandem_varlen_backward_params* params, uint64_t* bytes,
                                               uint64_t* alignment) {
  return workspace_call(params, bytes, alignment);
}
tandem_status tandem_varlen_backward(const tandem_varlen_backward_params* params) {
  return run_call(params);
}

tandem_status tandem_merge_check(const tandem_merge_params* params) {
  return check_call(params);
}
tandem_status tandem_merge_workspace(const tandem_merge_params* params, uint64_t* bytes, uint64_t* alignment) {
  return workspace_call(params, bytes, alignment);
}
tandem_status tandem_merge(const tandem_merge_params* params) {
  return run_call(params);
}

tandem_status tandem_quantize_fp8_check(const tandem_quantize_fp8_params* params) {
  return check_call(params);
}
tandem_status tandem_quantize_fp8_workspace(const tandem_quantize_fp8_params* params, uint64_t* bytes,
                                            uint64_t* alignment) {
  return workspace_call(params, bytes, alignment);
}
tandem_status tandem_quantize_fp8(const tandem_quantize_fp8_params* params) {
  return run_call(params);
}

const char* tandem_last_error(void) {
  return last_error();
}

const char* tandem_status_name(tandem_status status) {
  switch (status) {
    case TANDEM_OK: return "TANDEM_OK";
    case TANDEM_INVALID_ARGUMENT: return "TANDEM_INVALID_ARGUMENT";
    case TANDEM_UNSUPPORTED: return "TANDEM_UNSUPPORTED";
    case TANDEM_WORKSPACE_TOO_SMALL: return "TANDEM_WORKSPACE_TOO_SMALL";
    case TANDEM_NO_DEVICE: return "TANDEM_NO_DEVICE";
    case TANDEM_DEVICE_ERROR: return "TANDEM_DEVICE_ERROR";
    case TANDEM_OUT_OF_MEMORY: return "TANDEM_OUT_OF_MEMORY";
    case TANDEM_INTERNAL_ERROR: return "TANDEM_INTERNAL_ERROR";
    default: return "unknown status";
  }
}

const char* tandem_dtype_name(int32_t dtype) {
  return dtype_name(static_cast<DType>(dtype));
}

const char* tandem_version(void) {
#define TANDEM_TEXT_(number) #number
#define TANDEM_TEXT(number) TANDEM_TEXT_(number)
  return TANDEM_TEXT(TANDEM_VERSION_MAJOR) "." TANDEM_TEXT(TANDEM_VERSION_MINOR) "." TANDEM_TEXT(TANDEM_VERSION_PATCH);
#undef TANDEM_TEXT
#undef TANDEM_TEXT_
}

tandem_status tandem_prepare(tandem_device device) {
  return fenced([&] { return prepare_backends(device); });
}

const char* tandem_backend_name(int32_t backend) {
  return backend_name(backend);
}

tandem_status tandem_backend_available(int32_t backend, tandem_device device) {
  return fenced([&] {
    const Backend* found = nullptr;
    return available_backend(backend, device, &found);
  });
}

tandem_status tandem_backend_select(int32_t requested, tandem_device device, int32_t* backend) {
  return fenced([&]() -> Status {
    if (backend == nullptr) return Status::invalid_argument("backend is NULL; it must point to an int32_t");
    TANDEM_RETURN_IF_ERROR(check_device("device", device));
    const Backend* selected = nullptr;
    TANDEM_RETURN_IF_ERROR(select("requested", requested, device, &selected));
    *backend = selected->id;
    return Status::ok();
  });
}

const char* tandem_backend_description(int32_t backend, tandem_device device) {
  thread_local std::string description;
  const tandem_status status = fenced([&] {
    description = describe(backend, device);
    return Status::ok();
  });
  return status == TANDEM_OK ? description.c_str() : last_error();
}

}  // extern "C"
