// The command line `tandem`. It uses the library through tandem.h only.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "commands.h"
#include "exit_codes.h"
#include "tandem/tandem.h"

namespace tandem::cli {
namespace {

int fail(int code, const std::string& sentence) {
  std::fprintf(stderr, "tandem: %s\n", sentence.c_str());
  return code;
}

// Prints help or the parser's complaint; returns the exit code.
int finish_parse(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) return app.exit(error);
  const std::vector<std::string> unknown = app.remaining();
  if (app.get_subcommands().empty() && !unknown.empty()) {
    return fail(kUsageError, "'" + unknown.front() + "' is not a subcommand (see tandem --help)");
  }
  return fail(kUsageError, std::string(error.what()) + " (see tandem --help)");
}

int run_chosen(const std::vector<std::pair<CLI::App*, Action>>& commands) {
  for (const auto& [command, action] : commands) {
    if (!command->parsed()) continue;
    const int code = action();
    if (std::fflush(stdout) != 0) return fail(kFileError, "standard output cannot be written.");
    return code;
  }
  return kInternalError;  // not reached: a subcommand is required
}

int run_program(int argc, char** argv) {
  CLI::App app{"Exact attention (FlashAttention-3) for NVIDIA Hopper GPUs and CPUs", "tandem"};
  app.set_version_flag("--version", tandem_version());
  app.require_subcommand(1);
  app.footer(kExitCodesHelp);
  std::vector<std::pair<CLI::App*, Action>> commands;
  for (const auto add :
       {add_info_command, add_run_command, add_quantize_command, add_verify_command, add_bench_command}) {
    Action action = add(app);
    commands.emplace_back(app.get_subcommands({}).back(), std::move(action));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return finish_parse(app, error);
  }
  return run_chosen(commands);
}

}  // namespace
}  // namespace tandem::cli

int main(int argc, char** argv) {
  using namespace tandem::cli;
  try {
    return run_program(argc, argv);
  } catch (const CliError& error) {
    return fail(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(kInternalError, "there is not enough memory.");
  } catch (const std::exception& error) {
    return fail(kInternalError, std::string("internal error: ") + error.what());
  }
}
