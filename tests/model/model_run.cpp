// Runs a kernel in the model by hand: ./run model --help.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <stdexcept>

#include "forward/launch.h"
#include "forward/planted.h"
#include "timeline/spans.h"

namespace {

using namespace tandem::model;
namespace optest = tandem::optest;

struct Arguments {
  std::string op = "forward";
  optest::Problem problem;
  int64_t seqlen = 0;
  bool fp16 = false;
  std::vector<int32_t> packed;
  std::vector<int64_t> window;
  std::vector<int32_t> used_k;
  int blocks = 1;
  Options options;
  int width = 110;
  uint64_t first = 0;
  uint64_t end = ~uint64_t{0};
  int block = 0;
  std::string timeline_file;
  bool planted = false;
};

void declare_problem(CLI::App& app, Arguments& a) {
  constexpr int kMostRows = 100'000;
  app.add_option("--headdim", a.problem.headdim)->check(CLI::Range(8, 256))->default_val(64);
  app.add_option("--headdim-v", a.problem.headdim_v, "of the values; default: --headdim")->check(CLI::Range(8, 256));
  app.add_flag("--fp16", a.fp16, "instead of bf16");
  app.add_option("--seqlen", a.seqlen, "of queries and keys")->check(CLI::Range(1, kMostRows));
  app.add_option("--seqlen-q", a.problem.seqlen_q)->check(CLI::Range(1, kMostRows));
  app.add_option("--seqlen-k", a.problem.seqlen_k)->check(CLI::Range(0, kMostRows));
  app.add_option("--packed", a.packed, "instead: lengths of packed sequences")
      ->delimiter(',')
      ->check(CLI::Range(0, kMostRows));
  app.add_option("--used-k", a.used_k, "keys used of each sequence")->delimiter(',')->check(CLI::Range(0, kMostRows));
  app.add_option("--batch", a.problem.batch)->check(CLI::Range(1, 1000));
  app.add_option("--heads", a.problem.nheads_q)->check(CLI::Range(1, 1000));
  app.add_option("--heads-k", a.problem.nheads_k)->check(CLI::Range(1, 1000));
  app.add_flag("--causal", a.problem.causal);
  app.add_option("--window", a.window, "keys seen to the left and to the right, -1: all")->expected(2);
  app.add_option("--softcap", a.problem.softcap)->check(CLI::NonNegativeNumber);
}

void declare(CLI::App& app, Arguments& a) {
  app.add_option("--op", a.op, "the kernel")->check(CLI::IsMember({"forward"}));
  declare_problem(app, a);
  app.add_option("--blocks", a.blocks, "persistent blocks")->check(CLI::Range(1, 64));
  app.add_option("--seed", a.options.seed, "of the schedule and of the values");
  app.add_option("--width", a.width, "of the timeline, in characters")->check(CLI::Range(10, 1000));
  app.add_option("--from", a.first, "the timeline's first step");
  app.add_option("--to", a.end, "the step that it ends at");
  app.add_option("--block", a.block, "the block that it shows");
  app.add_option("--timeline", a.timeline_file, "also writes it to this file, for Perfetto");
  app.add_flag("--planted", a.planted,
               "instead: breaks the kernel in one place after the other, prints what the model says");
}

// Fills in what follows from what was given.
void complete(const CLI::App& app, Arguments& a) {
  optest::Problem& problem = a.problem;
  problem.dtype = problem.out_dtype = a.fp16 ? TANDEM_FP16 : TANDEM_BF16;
  if (app.count("--headdim-v") == 0) problem.headdim_v = problem.headdim;
  if (app.count("--heads-k") == 0) problem.nheads_k = problem.nheads_q;
  if (a.seqlen > 0) problem.seqlen_q = problem.seqlen_k = a.seqlen;
  if (!a.packed.empty()) {
    const optest::Problem packed =
        optest::packed_problem(a.packed, a.packed, problem.nheads_q, problem.nheads_k, problem.headdim, problem.dtype);
    problem.packed = true;
    problem.batch = packed.batch;
    problem.total_q = packed.total_q;
    problem.total_k = packed.total_k;
    problem.cu_seqlens_q = packed.cu_seqlens_q;
    problem.cu_seqlens_k = packed.cu_seqlens_k;
  }
  problem.seqused_k = a.used_k;
  if (!a.window.empty()) {
    problem.has_window = true;
    problem.window_left = a.window[0];
    problem.window_right = a.window[1];
  }
}

std::string refusal(const optest::Problem& problem, const std::vector<int32_t>& used_k) {
  if (problem.nheads_q % problem.nheads_k != 0) return "--heads must be a multiple of --heads-k";
  if (!used_k.empty() && static_cast<int64_t>(used_k.size()) != problem.batch) {
    return "--used-k takes one number for each sequence";
  }
  return "";
}

int run_planted(const Options& options) {
  for (const PlantedBug& bug : planted_bugs()) {
    Options with_faults = options;
    with_faults.faults = bug.faults;
    const ForwardRun run = run_forward(planted_problem(), planted_inputs(), 1, with_faults);
    std::printf("## %s\n\n%s:\n", bug.name.c_str(), bug.text.c_str());
    for (const Fault& fault : bug.faults) std::printf("- %s\n", fault.text().c_str());
    std::printf("\n%s\n\n", run.result.text().c_str());
  }
  return 0;
}

int run_problem(Arguments& a) {
  const optest::Inputs inputs = optest::random_inputs(a.problem, a.options.seed);
  a.options.keep_events = true;
  const ForwardRun run = run_forward(a.problem, inputs, a.blocks, a.options);
  const Timeline timeline = make_timeline(run.result.events, run.names, a.block, run.result.steps);
  std::fputs(timeline_text(timeline, a.first, a.end, a.width).c_str(), stdout);
  if (!a.timeline_file.empty()) std::ofstream(a.timeline_file) << timeline_json(timeline);
  std::printf("%s: %s after %llu steps, trace %016llx\n", describe(a.problem).c_str(), run.result.text().c_str(),
              static_cast<unsigned long long>(run.result.steps),
              static_cast<unsigned long long>(run.result.trace_hash));
  if (run.result.report) return 1;
  const std::string fault = fault_of(a.problem, inputs, run);
  std::printf("%s\n", fault.empty() ? "agrees with attention in double" : fault.c_str());
  return fault.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app(
      "Runs a kernel of src/sm90 on the host, in the model of the Hopper instructions, against attention in "
      "double; prints who did what when.");
  declare(app, arguments);
  CLI11_PARSE(app, argc, argv);
  complete(app, arguments);
  const std::string problem = refusal(arguments.problem, arguments.used_k);
  if (!problem.empty()) {
    std::fprintf(stderr, "%s\n", problem.c_str());
    return 2;
  }
  try {
    return arguments.planted ? run_planted(arguments.options) : run_problem(arguments);
  } catch (const std::invalid_argument& refused) {
    std::fprintf(stderr, "%s\n", refused.what());
    return 2;
  }
}
