#include "engine/machine.h"

#include <algorithm>
#include <utility>

#include "engine/exit.h"
#include "engine/register_file.h"
#include "engine/stuck.h"

namespace tandem::model {
namespace {

// What one thread alone does, whichever it is.
bool is_copy(Op op) {
  switch (op) {
    case Op::kTmaLoad:
    case Op::kTmaStore:
    case Op::kBulkLoad:
    case Op::kBulkStore:
    case Op::kBulkReduce:
    case Op::kBulkWait:
    case Op::kBulkWaitRead:
    case Op::kCopyDone:
    case Op::kStoreDone: return true;
    default: return false;
  }
}

constexpr uint64_t kMapMark = 0x74616e64656d6d70u;  // in word 0 of a model's tensor map; its number is in word 1
constexpr uint64_t kMostPolls = 100'000;            // in a row, with nothing else happening
constexpr uint64_t kPatience = 1'000;               // polls after which a bias is given up, for others must run
constexpr uint32_t kSharedFirst = 1024;             // as on sm_90: the system keeps the first kilobyte

Machine* g_current = nullptr;

const char* file_name(const char* path) {
  const char* name = path;
  for (const char* p = path; *p != '\0'; ++p) {
    if (*p == '/') name = p + 1;
  }
  return name;
}

}  // namespace

std::string where(Site site) {
  return std::string(file_name(site.file)) + ":" + std::to_string(site.line) + " (" + site.function_name() + ")";
}

std::string who(const Thread& thread, const Names& names) {
  return "block " + std::to_string(thread.block->index) + ", warpgroup " +
         std::to_string(thread.rank / kWarpgroupSize) + ", warp " + std::to_string(thread.warp->index) + " (" +
         names.role(thread.warp->index) + "), thread " + std::to_string(thread.rank);
}

std::string RunResult::text() const {
  if (!report) return "finished";
  return std::string(kind_name(report->kind)) + ": " + report->message;
}

Options options_for(uint64_t seed) {
  Options options;
  options.seed = seed;
  options.bias.late = seed % 3 != 1;
  if (seed % 3 == 2) options.bias.favoured = 0;
  if (seed % 3 == 0) options.bias.starved = 1;
  return options;
}

Machine::Machine(Options options)
    : options_(std::move(options)),
      random_(options_.seed),
      elected_lane_(static_cast<int>(random_.below(kWarpSize))),
      faults_(options_.faults),
      trace_(options_.keep_events) {}

Machine::~Machine() = default;

Machine& Machine::current() {
  return *g_current;
}

ptx::TensorMap Machine::encode(const TensorMapSpec& spec) {
  ptx::TensorMap map = {};
  map.opaque[0] = kMapMark;
  map.opaque[1] = maps_.size();
  maps_.push_back(spec);
  return map;
}

const TensorMapSpec* Machine::tensor_map(const ptx::TensorMap& map) const {
  if (map.opaque[0] != kMapMark || map.opaque[1] >= maps_.size()) return nullptr;
  return &maps_[map.opaque[1]];
}

RunResult Machine::run(const Launch& launch) {
  Machine* const before = std::exchange(g_current, this);
  const auto first_event = static_cast<std::ptrdiff_t>(trace_.events().size());
  if (!report_) {
    forget_last_grid();
    global_.begin_grid();
    try {
      make_blocks(launch);
      loop();
    } catch (const Stopped&) {
    }
    stop_fibers();
    global_.end_grid();
  }
  g_current = before;
  const std::vector<Event> events(trace_.events().begin() + first_event, trace_.events().end());
  return {report_, step_, trace_.hash(), events, faults_.any_applied(), counts_};
}

void Machine::forget_last_grid() {
  blocks_.clear();
  clusters_.clear();
  runnable_.clear();
  stopping_ = false;
  live_threads_ = 0;
  polls_ = 0;
  sums_ = {};
  parties_ = 0;
}

void Machine::make_blocks(const Launch& launch) {
  previous_grid_ = new_parties(1);
  for (int i = 0; i < launch.blocks; ++i) blocks_.push_back(make_block(launch, i));
  for (int first = 0; first < launch.blocks; first += launch.cluster_size) {
    clusters_.push_back(std::make_unique<Cluster>());
    clusters_.back()->threads = launch.cluster_size * launch.threads;
    std::vector<Block*> peers;
    for (int rank = 0; rank < launch.cluster_size; ++rank) peers.push_back(blocks_[first + rank].get());
    for (Block* block : peers) {
      block->cluster = clusters_.back().get();
      block->peers = peers;
    }
  }
}

std::unique_ptr<Block> Machine::make_block(const Launch& launch, int index) {
  auto block = std::make_unique<Block>(kSharedFirst, launch.shared_bytes);
  block->index = index;
  block->cluster_rank = index % launch.cluster_size;
  block->live_threads = launch.threads;
  block->dependent = launch.dependent;
  const auto threads = static_cast<uint32_t>(launch.threads);
  const uint32_t first_party = new_parties(threads + (threads + kWarpSize - 1) / kWarpSize);
  live_threads_ += launch.threads;
  for (int rank = 0; rank < launch.threads; ++rank) {
    if (rank % kWarpgroupSize == 0) {
      block->warpgroups.push_back(std::make_unique<Warpgroup>());
      Warpgroup& warpgroup = *block->warpgroups.back();
      warpgroup.block = block.get();
      warpgroup.index = rank / kWarpgroupSize;
    }
    if (rank % kWarpSize == 0) {
      block->warps.push_back(std::make_unique<Warp>());
      Warp& warp = *block->warps.back();
      warp.block = block.get();
      warp.warpgroup = block->warpgroups.back().get();
      warp.index = rank / kWarpSize;
      warp.registers = registers_at_launch(launch.threads);
      warp.product_party = first_party + threads + static_cast<uint32_t>(warp.index);
      warp.warpgroup->warps[warp.index % 4] = &warp;
    }
    block->threads.push_back(std::make_unique<Thread>());
    Thread& thread = *block->threads.back();
    thread.block = block.get();
    thread.warp = block->warps.back().get();
    thread.rank = rank;
    thread.view.self = {first_party + static_cast<uint32_t>(rank), 1};
    thread.warp->threads[thread.warp->size++] = &thread;
    start(thread, launch.kernel);
    wake(thread);
  }
  return block;
}

void Machine::start(Thread& thread, const std::function<void()>& kernel) {
  thread.fiber.start([this, &thread, kernel] {
    if (stopping_) return;
    try {
      kernel();
      thread_exit(*this, thread);
      --live_threads_;
    } catch (const Stopped&) {
    }
  });
}

bool Machine::completions_may_run() const {
  return !options_.bias.late || runnable_.empty() || polls_ > kPatience;
}

void Machine::loop() {
  while (live_threads_ > 0 || !completions_.empty()) {
    if (completions_may_run()) run_completions();
    if (!runnable_.empty()) {
      run_warp(take_some_warp());
      if (report_) return;
      if (++step_ > options_.most_steps) report_deadlock("the run takes too many steps");
    } else if (!completions_.empty()) {
      step_ = std::max(step_, completions_.top().ready);
    } else if (live_threads_ > 0) {
      report_deadlock("nobody can go on");
    }
  }
}

void Machine::run_completions() {
  while (!completions_.empty() && completions_.top().ready <= step_) {
    const std::function<void()> complete = completions_.top().complete;
    completions_.pop();
    made_progress();
    complete();
    if (options_.bias.late && !runnable_.empty()) return;
  }
}

// Of the warps that can run: one of the favoured warpgroup if there is one, one of the starved only if there is no
// other.
size_t Machine::choose_warp() {
  const Bias& bias = options_.bias;
  if ((bias.favoured < 0 && bias.starved < 0) || polls_ > kPatience) return random_.below(runnable_.size());
  const auto rank_of = [&](const Warp* warp) {
    return warp->warpgroup->index == bias.favoured ? 0 : warp->warpgroup->index == bias.starved ? 2 : 1;
  };
  int best = 2;
  for (const Warp* warp : runnable_) best = std::min(best, rank_of(warp));
  std::vector<size_t> choices;
  for (size_t i = 0; i < runnable_.size(); ++i) {
    if (rank_of(runnable_[i]) == best) choices.push_back(i);
  }
  return choices[random_.below(choices.size())];
}

Warp& Machine::take_some_warp() {
  const size_t choice = choose_warp();
  Warp& warp = *runnable_[choice];
  runnable_[choice] = runnable_.back();
  runnable_.pop_back();
  warp.listed = false;
  return warp;
}

void Machine::run_warp(Warp& warp) {
  const uint32_t lanes = std::exchange(warp.runnable, 0);
  const auto rotation = static_cast<int>(random_.below(kWarpSize));
  for (int i = 0; i < kWarpSize && !report_; ++i) {
    const int lane = (i + rotation) % kWarpSize;
    if ((lanes >> lane & 1) == 0) continue;
    self_ = warp.threads[lane];
    self_->fiber.resume();
    self_ = nullptr;
  }
}

void Machine::list(Warp& warp) {
  if (warp.listed) return;
  warp.listed = true;
  runnable_.push_back(&warp);
}

void Machine::suspend_fiber() {
  self().fiber.suspend();
  if (stopping_) throw Stopped{};
}

// Of a run that a report has ended: each thread unwinds.
void Machine::stop_fibers() {
  stopping_ = true;
  for (const auto& block : blocks_) {
    for (const auto& thread : block->threads) {
      self_ = thread.get();
      if (thread->fiber.unfinished()) thread->fiber.resume();
    }
  }
}

void Machine::suspend(const Wait& wait) {
  Thread& thread = self();
  thread.wait = wait;
  suspend_fiber();
}

void Machine::wake(Thread& thread) {
  thread.wait = {};
  thread.warp->runnable |= 1u << thread.lane();
  list(*thread.warp);
}

void Machine::preempt_by_chance() {
  made_progress();
  if (random_.below(4) != 0) return;
  wake(self());
  suspend_fiber();
}

void Machine::poll(Site site) {
  if (++polls_ > kMostPolls) report_deadlock("threads only poll, as at " + where(site));
  wake(self());
  suspend_fiber();
}

void Machine::schedule(uint64_t ready_step, std::function<void()> complete) {
  completions_.push({ready_step, completion_number_++, std::move(complete)});
}

void Machine::release_by(Thread& thread, Clock& into) {
  add(into, thread.view.known);
  add(into, thread.view.self);
  ++thread.view.self.count;
}

Knowledge Machine::release_by(Thread& thread) {
  auto clock = std::make_shared<Clock>();
  release_by(thread, *clock);
  return clock;
}

Verdict Machine::judge(Op op, Place place, Site site) {
  if (faults_.empty()) return {};
  return faults_.judge(op, place, site, self().block->index, self().rank, names_);
}

void Machine::record(const Thread& thread, Op op, Place place, Moment moment) {
  // One thread of a warp speaks for it: the elected one, which outlives the others where roles take one thread.
  const bool worth_keeping = thread.lane() == elected_lane_ || is_copy(op);
  ++counts_[static_cast<size_t>(op)];
  trace_.record({step_, thread.block->index, thread.rank, op, moment, place}, worth_keeping);
}

void Machine::note_kept(Op op) {
  if (noted_step_ == step_) return;
  noted_step_ = step_;
  trace_.keep({step_, self().block->index, self().rank, op, Moment::kInstant, {}});
}

void Machine::fail(ReportKind kind, const std::string& message) {
  if (!report_) report_ = Report{kind, message};
  throw Stopped{};
}

void Machine::fail_by(const Thread& thread, ReportKind kind, Op op, Site site, const std::string& message) {
  fail(kind, who(thread, names_) + ", " + op_name(op) + " at " + where(site) + ": " + message);
}

void Machine::report_deadlock(const std::string& why) {
  fail(stuck_kind(blocks_), why + "\n" + describe_stuck(blocks_, names_));
}

}  // namespace tandem::model
