#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "attention_call.h"

namespace tandem::cli {

// Options that several subcommands share.
struct ExecutionOptions {
  std::string backend = "auto";
  int32_t threads = 0;
  bool checked = false;

  void add_to(CLI::App& command);
  tandem_execution execution() const;  // on the CPU
};

struct MaskOptions {
  bool causal = false;
  bool top_left = false;
  std::vector<int64_t> window;  // left, right; empty: none
  int64_t chunk = 0;

  void add_to(CLI::App& command);
  tandem_mask mask() const;
};

// The number of a float type's name; a usage error for unknown ones.
int32_t require_dtype(const std::string& name);

}  // namespace tandem::cli
