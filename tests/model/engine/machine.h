#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "engine/faults.h"
#include "engine/global_memory.h"
#include "engine/knowledge.h"
#include "engine/names.h"
#include "engine/random.h"
#include "engine/report.h"
#include "engine/state.h"
#include "engine/trace.h"
#include "sm90/ptx/tensor_map.h"
#include "sm90/tensor_map_spec.h"

namespace tandem::model {

namespace ptx = sm90::ptx;
using sm90::TensorMapSpec;

// How many scheduler steps an asynchronous operation takes: each time some number from `least` to `most`.
struct Latency {
  uint64_t least;
  uint64_t most;
};

// Orders of events that the seed alone rarely gives.
struct Bias {
  int favoured = -1;  // a warpgroup of each block that runs whenever it can; -1: none
  int starved = -1;   // one that runs only when no other can
  bool late = false;  // asynchronous operations complete only when no thread can run
};

struct Options {
  uint64_t seed = 1;
  Bias bias;
  std::vector<Fault> faults;
  bool keep_events = false;  // for a timeline
  Latency copies = {1, 200};
  Latency products = {1, 60};
  uint64_t most_steps = 200'000'000;  // of a run; more is reported as a deadlock
};

// The seed's order of events. Of three seeds in a row, one gives a fair order; one the latest completions, with the
// first warpgroup, that of a producer, as far ahead as it can be; one the latest completions with the second, a
// consumer, behind all others.
Options options_for(uint64_t seed);

struct Launch {
  int blocks = 1;
  int threads = 128;  // of a block
  int cluster_size = 1;
  uint32_t shared_bytes = 0;
  bool dependent = false;        // may begin while the grid before it still runs: programmatic dependent launch
  std::function<void()> kernel;  // what each thread runs
};

struct RunResult {
  std::optional<Report> report;  // the first thing that was wrong
  uint64_t steps = 0;            // of all grids so far
  uint64_t trace_hash = 0;       // likewise
  std::vector<Event> events;     // of this grid
  bool faults_applied = false;
  std::array<uint64_t, kOps> counts = {};  // events of each kind, of all grids so far
  uint64_t count(Op op) const { return counts[static_cast<size_t>(op)]; }
  std::string text() const;  // "finished", or the report
};

// A GPU for one launch, or for a few in sequence on the same global memory: all blocks of a grid are resident, and one
// grid ends before the next begins. Memory, names and maps are set up first. After a report nothing runs any more.
//
// A step of the scheduler runs the threads of one warp that can run, one after the other, each until it must wait,
// ends, or is preempted where other threads could see the order. Which warp is the seed's choice, and so is when an
// asynchronous operation is complete.
class Machine {
 public:
  explicit Machine(Options options);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  GlobalMemory& global() { return global_; }
  Names& names() { return names_; }
  ptx::TensorMap encode(const TensorMapSpec& spec);
  RunResult run(const Launch& launch);

  // What follows is for the instructions, while the machine runs.

  static Machine& current();
  Thread& self() { return *self_; }
  int grid_size() const { return static_cast<int>(blocks_.size()); }
  const Options& options() const { return options_; }
  Random& random() { return random_; }
  uint64_t now() const { return step_; }
  const TensorMapSpec* tensor_map(const ptx::TensorMap& map) const;  // null: not one of this machine's
  int elected_lane() const { return elected_lane_; }

  Verdict judge(Op op, Place place, Site site);
  void record(const Thread& thread, Op op, Place place, Moment moment = Moment::kInstant);
  // What the calling thread computes, for timelines: at most once a step.
  void note(Op op) {
    if (trace_.keeps()) note_kept(op);
  }
  // These end the run. `thread` has made the call, maybe long ago.
  [[noreturn]] void fail(ReportKind kind, const std::string& message);
  [[noreturn]] void fail_by(const Thread& thread, ReportKind kind, Op op, Site site, const std::string& message);
  [[noreturn]] void fail_here(ReportKind kind, Op op, Site site, const std::string& message) {
    fail_by(self(), kind, op, site, message);
  }

  void suspend(const Wait& wait);  // the calling thread, until wake()
  void wake(Thread& thread);
  void preempt_by_chance();  // the calling thread stays runnable
  void poll(Site site);      // a look at memory that a loop may repeat for ever
  void made_progress() { polls_ = 0; }
  // Calls `complete` in the scheduler, at that step or when nobody can run before.
  void schedule(uint64_t ready_step, std::function<void()> complete);
  // What is ordered before what.
  uint32_t new_parties(uint32_t count) { return std::exchange(parties_, parties_ + count); }
  Sums& sums() { return sums_; }
  Stamp previous_grid() const { return {previous_grid_, 1}; }
  void learn(Thread& thread, const Knowledge& known) { thread.view.known = sums_.of(thread.view.known, known); }
  void learn(Thread& thread, Stamp stamp) { thread.view.known = sums_.of(thread.view.known, stamp); }
  // All that the thread knows and has done; what it does from now on is not in it.
  Knowledge release_by(Thread& thread);
  void release_by(Thread& thread, Clock& into);
  uint64_t step_after(Latency latency) { return step_ + random_.between(latency.least, latency.most); }

 private:
  struct Completion {
    uint64_t ready;
    uint64_t number;
    std::function<void()> complete;
    bool operator>(const Completion& other) const {
      return ready != other.ready ? ready > other.ready : number > other.number;
    }
  };
  void forget_last_grid();
  void make_blocks(const Launch& launch);
  std::unique_ptr<Block> make_block(const Launch& launch, int index);
  void start(Thread& thread, const std::function<void()>& kernel);
  void loop();
  void run_completions();
  void suspend_fiber();
  void stop_fibers();
  void run_warp(Warp& warp);
  void note_kept(Op op);
  void list(Warp& warp);
  Warp& take_some_warp();
  size_t choose_warp();
  bool completions_may_run() const;
  [[noreturn]] void report_deadlock(const std::string& why);

  Options options_;
  Random random_;
  int elected_lane_;
  Faults faults_;
  Sums sums_;
  uint32_t parties_ = 0;
  uint32_t previous_grid_ = 0;
  Trace trace_;
  Names names_;
  GlobalMemory global_;
  std::vector<TensorMapSpec> maps_;
  std::vector<std::unique_ptr<Cluster>> clusters_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<Warp*> runnable_;
  std::priority_queue<Completion, std::vector<Completion>, std::greater<Completion>> completions_;
  std::optional<Report> report_;
  bool stopping_ = false;
  Thread* self_ = nullptr;
  int live_threads_ = 0;
  uint64_t step_ = 0;
  uint64_t completion_number_ = 0;
  uint64_t polls_ = 0;
  uint64_t noted_step_ = ~uint64_t{0};
  std::array<uint64_t, kOps> counts_ = {};
};

// "block 0, warpgroup 1, warp 4 (consumer 0), thread 133"
std::string who(const Thread& thread, const Names& names);
std::string where(Site site);  // "pipeline.cuh:36 (wait)"

}  // namespace tandem::model
