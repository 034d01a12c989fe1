// Named barriers, the barrier of a cluster, and the wait for the grid before.

#include <utility>

#include "engine/api.h"
#include "engine/collective.h"

namespace tandem::model {
namespace {

void check_arrival(const NamedBarrier& barrier, const Warp& warp, Op op, int id, int threads, Site site) {
  Machine& machine = Machine::current();
  const std::string name = machine.names().of(Place::named(id));
  const auto fail = [&](ReportKind kind, const std::string& what) {
    machine.fail_here(kind, op, site, name + ": " + what);
  };
  if (threads <= 0 || threads % kWarpSize != 0) {
    fail(ReportKind::kBarrierMisuse, std::to_string(threads) + " threads are not a multiple of a warp");
  }
  if (barrier.expected != 0 && barrier.expected != threads) {
    fail(ReportKind::kBarrierMisuse,
         "this call counts " + std::to_string(threads) + " threads, another one " + std::to_string(barrier.expected));
  }
  if ((barrier.arrived_warps >> warp.index & 1) != 0) {
    fail(ReportKind::kOverArrival, "the warp has come already, and the barrier is not complete");
  }
  if (barrier.arrived + warp.size > threads) fail(ReportKind::kOverArrival, "more threads come than it counts");
}

// The whole warp is here; this is its last thread.
void arrive_warp(Op op, int id, int threads, Site site) {
  Machine& machine = Machine::current();
  Warp& warp = *machine.self().warp;
  NamedBarrier& barrier = warp.block->named[id];
  check_arrival(barrier, warp, op, id, threads, site);
  barrier.expected = threads;
  barrier.arrived += warp.size;
  barrier.arrived_warps |= 1u << warp.index;
  for (int lane = 0; lane < warp.size; ++lane) machine.release_by(*warp.threads[lane], barrier.gathered);
  const bool complete = barrier.arrived == threads;
  if (op == Op::kNamedArrive || complete) release(warp);
  if (complete) {
    const auto known = std::make_shared<const Clock>(std::move(barrier.gathered));
    const auto learn = [&](const Warp& synced) {
      for (int lane = 0; lane < synced.size; ++lane) machine.learn(*synced.threads[lane], known);
    };
    if (op == Op::kNamedSync) learn(warp);
    for (Warp* waiting : barrier.waiting) {
      learn(*waiting);
      machine.record(*waiting->threads[machine.elected_lane() % waiting->size], op, Place::named(id), Moment::kEnd);
      for (int lane = 0; lane < waiting->size; ++lane) machine.wake(*waiting->threads[lane]);
    }
    barrier = {};
  } else if (op == Op::kNamedSync) {
    const Wait wait = {Wait::Kind::kNamedBarrier, op, Place::named(id), 0, site};
    for (int lane = 0; lane < warp.size; ++lane) warp.threads[lane]->wait = wait;
    barrier.waiting.push_back(&warp);
    machine.record(*warp.threads[machine.elected_lane() % warp.size], op, Place::named(id), Moment::kBegin);
    machine.suspend(wait);
  }
}

void come(Op op, int id, int threads, Site site) {
  Machine& machine = Machine::current();
  const Verdict verdict = machine.judge(op, Place::named(id), site);
  if (id < 0 || id >= kNamedBarriers) {
    machine.fail_here(ReportKind::kBarrierMisuse, op, site, "there are named barriers 0 to 15 only");
  }
  for (int i = 0; i < verdict.times; ++i) {
    if (gather(op, Place::named(id), site)) arrive_warp(op, id, threads + static_cast<int>(verdict.add), site);
  }
}

}  // namespace

void named_barrier_sync(int id, int threads, Site site) {
  come(Op::kNamedSync, id, threads, site);
}

void named_barrier_arrive(int id, int threads, Site site) {
  come(Op::kNamedArrive, id, threads, site);
}

void block_sync(Site site) {
  come(Op::kNamedSync, 0, static_cast<int>(Machine::current().self().block->threads.size()), site);
}

// A thread has arrived once more than it has waited, or as often.
void cluster_arrive(Site site) {
  Machine& machine = Machine::current();
  if (machine.judge(Op::kClusterArrive, {}, site).times == 0) return;
  gather_all(Op::kClusterArrive, {}, site);
  Thread& thread = machine.self();
  Cluster& cluster = *thread.block->cluster;
  if (thread.cluster_arrivals > cluster.phase) {
    machine.fail_here(ReportKind::kBarrierMisuse, Op::kClusterArrive, site,
                      "the thread has arrived already and has not waited");
  }
  thread.cluster_arrivals = cluster.phase + 1;
  machine.release_by(thread, cluster.gathered);
  if (++cluster.arrived < cluster.threads) return;
  cluster.arrived = 0;
  cluster.completed = std::make_shared<const Clock>(std::exchange(cluster.gathered, {}));
  ++cluster.phase;
  for (Thread* waiting : cluster.waiting) machine.wake(*waiting);
  cluster.waiting.clear();
}

void cluster_wait(Site site) {
  Machine& machine = Machine::current();
  if (machine.judge(Op::kClusterWait, {}, site).times == 0) return;
  gather_all(Op::kClusterWait, {}, site);
  Thread& thread = machine.self();
  Cluster& cluster = *thread.block->cluster;
  if (thread.cluster_arrivals == 0) {
    machine.fail_here(ReportKind::kBarrierMisuse, Op::kClusterWait, site, "the thread has not arrived");
  }
  while (cluster.phase < thread.cluster_arrivals) {
    cluster.waiting.push_back(&thread);
    machine.suspend({Wait::Kind::kCluster, Op::kClusterWait, {}, 0, site});
  }
  machine.learn(thread, cluster.completed);
}

// A hint: here a grid begins when the one before has ended.
void launch_dependent_grid(Site site) {
  Machine::current().judge(Op::kGridLaunch, {}, site);
}

// Returns at once, for the same reason; but from now on the thread may touch what that grid has written.
void wait_for_previous_grid(Site site) {
  Machine& machine = Machine::current();
  if (machine.judge(Op::kGridWait, {}, site).times == 0) return;
  machine.learn(machine.self(), machine.previous_grid());
}

}  // namespace tandem::model
