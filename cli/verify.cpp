#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "exit_codes.h"
#include "options.h"
#include "progress.h"
#include "verify_compare.h"

namespace tandem::cli {
namespace {

constexpr int64_t kCases = 450;      // 30 of each group
constexpr int64_t kQuickCases = 60;  // 4 of each group

struct VerifyOptions {
  std::string device = "cpu";
  std::string backend = "auto";
  uint64_t seed = 1;
  int64_t cases = kCases;
  CLI::Option* has_cases = nullptr;
  int64_t only_case = -1;
  bool quick = false;
};

struct GroupSummary {
  int64_t passed = 0;
  int64_t failed = 0;
  int64_t refused = 0;
  double worst = 0;
  std::string refusal;  // the first one
};

int32_t chosen_backend(const VerifyOptions& options) {
  int32_t backend = backend_from_name(options.backend);
  require_ok(tandem_backend_select(backend, device_from_name(options.device), &backend));
  return backend;
}

CaseOutcome run_one(const VerifyCase& c, int32_t backend, tandem_device device) {
  try {
    return verify_case(c, backend, device);
  } catch (const CliError& error) {  // the library called a valid case invalid, or failed
    CaseOutcome outcome;
    outcome.failed = true;
    outcome.detail = error.what();
    return outcome;
  }
}

void print_failure(const VerifyCase& c, const VerifyOptions& options, int32_t backend, const CaseOutcome& outcome) {
  std::printf("FAILED case %lld (%s: %s)\n  %s\n", static_cast<long long>(c.index), c.group, describe(c).c_str(),
              outcome.detail.c_str());
  std::printf("  reproduce: tandem verify %s--backend %s --seed %llu --case %lld\n",
              options.device == "cpu" ? "" : ("--device " + options.device + " ").c_str(), tandem_backend_name(backend),
              static_cast<unsigned long long>(c.seed), static_cast<long long>(c.index));
}

void count(const CaseOutcome& outcome, GroupSummary& summary) {
  if (outcome.refused) {
    ++summary.refused;
    if (summary.refusal.empty()) summary.refusal = outcome.detail;
    return;
  }
  ++(outcome.failed ? summary.failed : summary.passed);
  summary.worst = std::max(summary.worst, outcome.worst);
}

void print_summary(const std::vector<GroupSummary>& groups) {
  std::printf("%-10s %7s %7s %8s   %s\n", "group", "passed", "failed", "refused", "worst error / allowed");
  for (size_t i = 0; i < groups.size(); ++i) {
    const GroupSummary& group = groups[i];
    if (group.passed + group.failed + group.refused == 0) continue;
    std::printf("%-10s %7lld %7lld %8lld   %.2f\n", verify_group_name(static_cast<int64_t>(i)),
                static_cast<long long>(group.passed), static_cast<long long>(group.failed),
                static_cast<long long>(group.refused), group.worst);
  }
  for (const GroupSummary& group : groups) {
    if (!group.refusal.empty()) std::printf("refused: %s\n", group.refusal.c_str());
  }
}

int conclude(const std::vector<GroupSummary>& groups, double seconds) {
  GroupSummary all;
  for (const GroupSummary& group : groups) {
    all.passed += group.passed;
    all.failed += group.failed;
    all.refused += group.refused;
  }
  std::printf("%lld passed, %lld failed, %lld refused in %.1f s\n", static_cast<long long>(all.passed),
              static_cast<long long>(all.failed), static_cast<long long>(all.refused), seconds);
  if (all.passed + all.failed == 0 && all.refused > 0) {
    throw CliError(kLibraryRefused, "the backend refused every case, so nothing was verified.");
  }
  return all.failed > 0 ? kVerificationFailed : kOk;
}

int verify(const VerifyOptions& options) {
  const int32_t backend = chosen_backend(options);
  const tandem_device device = device_from_name(options.device);
  const bool one = options.only_case >= 0;
  const int64_t cases = options.quick && options.has_cases->count() == 0 ? kQuickCases : options.cases;
  const int64_t begin = one ? options.only_case : 0;
  const int64_t end = one ? options.only_case + 1 : cases;
  std::printf("verifying %s (%s), seed %llu, %lld cases\n", tandem_backend_name(backend),
              tandem_backend_description(backend, device), static_cast<unsigned long long>(options.seed),
              static_cast<long long>(end - begin));

  const auto start = std::chrono::steady_clock::now();
  std::vector<GroupSummary> groups(static_cast<size_t>(verify_group_count()));
  Progress progress(end - begin);
  for (int64_t index = begin; index < end; ++index) {
    VerifyCase c = draw_case(options.seed, index);
    if (device.type == TANDEM_CUDA) adapt_to_gpu(c);
    progress.show(index - begin, c.group);
    const CaseOutcome outcome = run_one(c, backend, device);
    if (outcome.failed) progress.clear();
    if (outcome.failed) print_failure(c, options, backend, outcome);
    count(outcome, groups[static_cast<size_t>(index % verify_group_count())]);
  }
  progress.clear();
  print_summary(groups);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  return conclude(groups, elapsed.count());
}

}  // namespace

Action add_verify_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("verify", "Random and edge cases, forward and backward, against the reference backend");
  const auto options = std::make_shared<VerifyOptions>();
  add_device_option(*command, options->device);
  command->add_option("--backend", options->backend, "the backend to verify")
      ->check(CLI::IsMember({"auto", "reference", "tiled", "sm90"}));
  command->add_option("--seed", options->seed, "of the cases; default 1")->check(fits_64_bits(false));
  options->has_cases = command->add_option("--cases", options->cases, "how many; default 450")
                           ->check(CLI::PositiveNumber)
                           ->check(fits_64_bits());
  command->add_flag("--quick", options->quick, "60 cases, unless --cases says otherwise");
  command->add_option("--case", options->only_case, "only this one, as printed by a failure")
      ->check(CLI::NonNegativeNumber)
      ->check(fits_64_bits());
  return [options] { return verify(*options); };
}

}  // namespace tandem::cli
