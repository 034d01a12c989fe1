#pragma once

#include <string>

#include "core/problem.h"
#include "core/status.h"

namespace tandem {

// What a backend offers to src/api. One constant object each; api/backends.cpp lists them. The problem is valid in
// itself when a backend sees it, so a backend only says what *it* cannot do. supports() and workspace() must not read
// through data pointers (they may be null); run() may. The fields of exec have been checked but for the workspace,
// which api checks against workspace() before run().
struct Backend {
  int32_t id;        // TANDEM_BACKEND_...
  const char* name;  // "tiled"
  int32_t device_type;

  Status (*available)(int32_t device_ordinal);         // ok, or why it cannot run here
  std::string (*description)(int32_t device_ordinal);  // one line: what it runs on
  Status (*prepare)(int32_t device_ordinal);

  // For the forward (problem.backward == false) and the backward.
  Status (*supports)(const AttentionProblem& problem);
  Workspace (*workspace)(const AttentionProblem& problem);
  Status (*run)(const AttentionProblem& problem);

  Status (*supports_merge)(const MergeProblem& problem);
  Status (*run_merge)(const MergeProblem& problem);

  // For checked mode [13]: copies memory of the device to the host, after what is on exec.stream, and waits for it.
  // Null where the device's memory is the host's.
  Status (*copy_to_host)(const Execution& exec, void* host, const void* device, uint64_t bytes);

  // Null where a backend has no quantiser.
  Status (*supports_quantize)(const QuantizeProblem& problem) = nullptr;
  Workspace (*workspace_quantize)(const QuantizeProblem& problem) = nullptr;
  Status (*run_quantize)(const QuantizeProblem& problem) = nullptr;
};

extern const Backend kReferenceBackend;  // cpu/reference_backend.cpp
extern const Backend kTiledBackend;      // cpu/tiled_backend.cpp
extern const Backend kSm90Backend;       // sm90/sm90_backend.cpp, in builds with CUDA

}  // namespace tandem
