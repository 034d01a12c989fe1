#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace tandem::cli {

// Each adds its subcommand and options to `app`, and returns what to do if the user chose it. The action returns an
// exit code or throws.
using Action = std::function<int()>;

Action add_info_command(CLI::App& app);
Action add_run_command(CLI::App& app);
Action add_quantize_command(CLI::App& app);
Action add_verify_command(CLI::App& app);
Action add_bench_command(CLI::App& app);

}  // namespace tandem::cli
