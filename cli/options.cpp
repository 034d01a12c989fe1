#include "options.h"

#include <cerrno>
#include <cstdlib>
#include <limits>

#include "exit_codes.h"
#include "float_formats.h"

namespace tandem::cli {
namespace {

constexpr const char* kGpu = "cuda";

// N of "cuda:N", 0 of "cuda", -1 of anything else.
int32_t gpu_ordinal(const std::string& name) {
  const std::string prefix = std::string(kGpu) + ":";
  if (name == kGpu) return 0;
  if (name.compare(0, prefix.size(), prefix) != 0) return -1;
  const std::string digits = name.substr(prefix.size());
  const bool is_number = !digits.empty() && digits.size() <= 6 && digits.find_first_not_of("0123456789") == digits.npos;
  return is_number ? static_cast<int32_t>(std::stol(digits)) : -1;
}

}  // namespace

CLI::Validator fits_64_bits(bool is_signed) {
  return CLI::Validator(
      [is_signed](std::string& text) {
        errno = 0;
        if (is_signed) {
          std::strtoll(text.c_str(), nullptr, 0);
        } else {
          std::strtoull(text.c_str(), nullptr, 0);
        }
        return errno == ERANGE ? text + " does not fit into 64 bits" : std::string();
      },
      "");
}

void add_device_option(CLI::App& command, std::string& device) {
  command.add_option("--device", device, "cpu, cuda or cuda:N; default cpu")
      ->check(CLI::Validator(
          [](std::string& name) {
            const bool known = name == "cpu" || gpu_ordinal(name) >= 0;
            return known ? std::string() : "'" + name + "' is not a device; allowed are cpu, cuda and cuda:N";
          },
          "DEVICE"));
}

tandem_device device_from_name(const std::string& name) {
  const int32_t ordinal = gpu_ordinal(name);
  if (ordinal < 0) return {TANDEM_CPU, 0};
  return {TANDEM_CUDA, ordinal};
}

void ExecutionOptions::add_to(CLI::App& command) {
  add_device_option(command, device);
  command.add_option("--backend", backend, "auto, reference, tiled or sm90; one that cannot serve is an error")
      ->check(CLI::IsMember({"auto", "reference", "tiled", "sm90"}));
  command.add_option("--threads", threads, "CPU threads; 0: OpenMP's default. Changes no bit of the result")
      ->check(CLI::Range(0, std::numeric_limits<int32_t>::max()));
}

tandem_execution ExecutionOptions::execution() const {
  tandem_execution exec = {};
  exec.device = device_from_name(device);
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
      ->check(fits_64_bits())
      ->type_name("L,R");
  command.add_option("--chunk", chunk, "see only the keys of the own chunk of so many keys")->check(fits_64_bits());
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
