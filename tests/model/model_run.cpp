// Runs a kernel in the model by hand: ./run model --help.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>

#include "forward/launch.h"
#include "forward/planted.h"
#include "timeline/spans.h"

namespace {

using namespace tandem::model;

struct Arguments {
  std::string op = "forward";
  ForwardProblem problem;
  int64_t seqlen = 0;
  int blocks = 1;
  Options options;
  int width = 110;
  uint64_t first = 0;
  uint64_t end = ~uint64_t{0};
  int block = 0;
  std::string timeline_file;
  bool planted = false;
};

void declare(CLI::App& app, Arguments& a) {
  app.add_option("--op", a.op, "the kernel")->check(CLI::IsMember({"forward"}));
  app.add_option("--headdim", a.problem.headdim)->check(CLI::IsMember({64, 128}));
  app.add_option("--seqlen", a.seqlen, "of queries and keys")->check(CLI::Range(1, 100'000));
  app.add_option("--seqlen-q", a.problem.seqlen_q)->check(CLI::Range(1, 100'000));
  app.add_option("--seqlen-k", a.problem.seqlen_k)->check(CLI::Range(0, 100'000));
  app.add_option("--batch", a.problem.batch)->check(CLI::Range(1, 1000));
  app.add_option("--heads", a.problem.nheads_q)->check(CLI::Range(1, 1000));
  app.add_option("--heads-k", a.problem.nheads_k)->check(CLI::Range(1, 1000));
  app.add_flag("--causal", a.problem.mask.causal);
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

int run_planted(const Options& options) {
  const ForwardInputs inputs = make_inputs(planted_problem());
  for (const PlantedBug& bug : planted_bugs()) {
    Options with_faults = options;
    with_faults.faults = bug.faults;
    const ForwardRun run = run_forward(planted_problem(), inputs, 1, with_faults);
    std::printf("## %s\n\n%s:\n", bug.name.c_str(), bug.text.c_str());
    for (const Fault& fault : bug.faults) std::printf("- %s\n", fault.text().c_str());
    std::printf("\n%s\n\n", run.result.text().c_str());
  }
  return 0;
}

int run_problem(Arguments& a) {
  const ForwardInputs inputs = make_inputs(a.problem);
  a.options.keep_events = true;
  const ForwardRun run = run_forward(a.problem, inputs, a.blocks, a.options);
  const Timeline timeline = make_timeline(run.result.events, run.names, a.block, run.result.steps);
  std::fputs(timeline_text(timeline, a.first, a.end, a.width).c_str(), stdout);
  if (!a.timeline_file.empty()) std::ofstream(a.timeline_file) << timeline_json(timeline);
  std::printf("%s: %s after %llu steps, trace %016llx\n", a.problem.text().c_str(), run.result.text().c_str(),
              static_cast<unsigned long long>(run.result.steps),
              static_cast<unsigned long long>(run.result.trace_hash));
  if (run.result.report) return 1;
  const std::string fault = difference(reference(a.problem, inputs), run.outputs);
  std::printf("%s\n", fault.empty() ? "agrees with the double reference" : fault.c_str());
  return fault.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app(
      "Runs a kernel of src/sm90 on the host, in the model of the Hopper instructions, against a double "
      "reference; prints who did what when.");
  declare(app, arguments);
  CLI11_PARSE(app, argc, argv);
  if (arguments.seqlen > 0) arguments.problem.seqlen_q = arguments.problem.seqlen_k = arguments.seqlen;
  if (app.count("--heads-k") == 0) arguments.problem.nheads_k = arguments.problem.nheads_q;
  if (arguments.problem.nheads_q % arguments.problem.nheads_k != 0) {
    std::fprintf(stderr, "--heads must be a multiple of --heads-k\n");
    return 2;
  }
  arguments.problem.seed = arguments.options.seed;
  return arguments.planted ? run_planted(arguments.options) : run_problem(arguments);
}
