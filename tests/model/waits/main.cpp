// Runs the kernels without one of their waits: tools/mutate.py.

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "waits/experiments.h"
#include "waits/kept.h"

namespace {

using namespace tandem::model;

constexpr rlim_t kMostSeconds = 60;  // of a run
constexpr uint64_t kMostSteps = 20'000'000;

std::vector<Experiment> all_experiments() {
  std::vector<Experiment> all;
  for (const auto& some : {forward_experiments(), backward_experiments(), quantize_experiments()})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

// In a process of its own: a kernel that lacks a wait may do anything.
Finding run_apart(const Run& run, const Options& options) {
  std::array<int, 2> ends;
  if (pipe(ends.data()) != 0) return {"no pipe", ""};
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit = {kMostSeconds, kMostSeconds};
    setrlimit(RLIMIT_CPU, &limit);
    const Finding finding = run(options);
    const std::string text = nlohmann::json({finding.kind, finding.message}).dump();
    const bool written = write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
    _exit(written ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  std::array<char, 4096> part;
  for (ssize_t count; (count = read(ends[0], part.data(), part.size())) > 0;) text.append(part.data(), count);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status))
    return {WTERMSIG(status) == SIGKILL || WTERMSIG(status) == SIGXCPU ? "endless" : "crash", ""};
  const auto finding = nlohmann::json::parse(text);
  return {finding[0], finding[1]};
}

// Prints which of so many places an experiment comes to, or what is wrong with it as it is.
int print_places(const Experiment& experiment, int places) {
  leave_out(-1);
  const Finding finding = experiment.check();
  std::vector<int> found;
  for (int place = 0; place < places; ++place) {
    if (come_to(place)) found.push_back(place);
  }
  const nlohmann::json line = {{"experiment", experiment.name}, {"places", found}, {"message", finding.message}};
  std::printf("%s\n", line.dump().c_str());
  return finding.kind.empty() && finding.message.empty() ? 0 : 1;
}

void print_runs(const Experiment& experiment, int place, uint64_t seeds) {
  const Run run = experiment.prepare();
  leave_out(place);
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    Options options = options_for(seed);
    options.most_steps = kMostSteps;
    const Finding finding = run_apart(run, options);
    const nlohmann::json line = {
        {"experiment", experiment.name}, {"seed", seed}, {"kind", finding.kind}, {"message", finding.message}};
    std::printf("%s\n", line.dump().c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  int place = -1;
  int places = 0;
  bool only_names = false;
  uint64_t seeds = 3;
  std::vector<std::string> names;
  CLI::App app(
      "Runs the kernels of src/sm90 in the model without one of their waits, and prints a line of JSON a run.");
  app.add_option("--without", place, "the number that tools/mutate.py has given it; -1: none is left out");
  app.add_option("--places", places, "instead: which of the first so many places each experiment comes to");
  app.add_flag("--names", only_names, "instead: each experiment's name");
  app.add_option("--seeds", seeds, "of each experiment");
  app.add_option("--experiment", names, "only these");
  CLI11_PARSE(app, argc, argv);
  int status = 0;
  for (const Experiment& experiment : all_experiments()) {
    if (!names.empty() && std::find(names.begin(), names.end(), experiment.name) == names.end()) continue;
    if (only_names) {
      std::printf("%s\n", nlohmann::json({{"experiment", experiment.name}}).dump().c_str());
    } else if (places > 0) {
      status |= print_places(experiment, places);
    } else {
      print_runs(experiment, place, seeds);
    }
  }
  return status;
}
