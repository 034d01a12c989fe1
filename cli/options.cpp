#include "options.h"

#include <limits>

#include "exit_codes.h"
#include "float_formats.h"

namespace tandem::cli {

void ExecutionOptions::add_to(CLI::App& command) {
  command.add_option("--backend", backend, "auto, reference, tiled or sm90; one that cannot serve is an error")
      ->check(CLI::IsMember({"auto", "reference", "tiled", "sm90"}));
  command.add_option("--threads", threads, "CPU threads; 0: OpenMP's default. Changes no bit of the result")
      ->check(CLI::Range(0, std::numeric_limits<int32_t>::max()));
}

tandem_execution ExecutionOptions::execution() const {
  tandem_execution exec = {};
  exec.device = {TANDEM_CPU, 0};
  exec.backend = backend_from_name(backend);
  exec.num_threads = threads;
  exec.checked = checked ? 1 : 0;
  return exec;
}

void MaskOptions::add_to(CLI::App& command) {
  command.add_flag("--causal", causal, "row i sees no key after its own position (bottom-right aligned)");
  command.add_flag("--top-left", top_left, "align causal, window and chunk to the first key instead of the last");
  command.add_option("--window", window, "L,R: see L keys to the left and R to the right; -1 opens a side")
      ->delimiter(',')
      ->expected(2)
      ->type_name("L,R");
  command.add_option("--chunk", chunk, "see only the keys of the own chunk of so many keys");
}

tandem_mask MaskOptions::mask() const {
  tandem_mask mask = {};
  mask.causal = causal ? 1 : 0;
  mask.top_left = top_left ? 1 : 0;
  mask.has_window = window.empty() ? 0 : 1;
  mask.window_left = window.empty() ? -1 : window[0];
  mask.window_right = window.empty() ? -1 : window[1];
  mask.attention_chunk = chunk;
  return mask;
}

int32_t require_dtype(const std::string& name) {
  const int32_t dtype = dtype_from_name(name);
  if (dtype == TANDEM_DTYPE_NONE || dtype == TANDEM_INT32) {
    throw CliError(kUsageError, "'" + name + "' is not a type; allowed are fp64, fp32, fp16, bf16, e4m3 and e5m2.");
  }
  return dtype;
}

}  // namespace tandem::cli
