#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "attention_call.h"

namespace tandem::cli {

// Options that several subcommands share.
struct ExecutionOptions {
  std::string device = "cpu";  // or "cuda", "cuda:1"
  std::string backend = "auto";
  int32_t threads = 0;
  bool checked = false;

  void add_to(CLI::App& command);
  bool on_gpu() const { return device != "cpu"; }
  tandem_execution execution() const;
};

struct MaskOptions {
  bool causal = false;
  bool top_left = false;
  std::vector<int64_t> window;  // left, right; empty: none
  int64_t chunk = 0;

  void add_to(CLI::App& command);
  tandem_mask mask() const;
};

// "cpu", "cuda" (device 0) or "cuda:N", the option --device; and the device that it names.
void add_device_option(CLI::App& command, std::string& device);
tandem_device device_from_name(const std::string& name);

// For options of 64-bit integers: a number that is out of range is an error. (CLI11 takes the nearest that fits.)
CLI::Validator fits_64_bits(bool is_signed = true);

// The number of a float type's name; a usage error for unknown ones.
int32_t require_dtype(const std::string& name);

}  // namespace tandem::cli
