// mbarriers, named barriers, the cluster's barrier and setmaxnreg, by the PTX ISA.

#include "sm90/ptx/cluster.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/mbarrier.cuh"
#include "sm90/ptx/named_barrier.cuh"
#include "sm90/ptx/setmaxnreg.cuh"
#include "sm90/ptx/tma.cuh"
#include "unit/micro.h"

namespace tandem::model {
namespace {

constexpr uint32_t kBarrier = kBase;
constexpr uint32_t kData = kBase + 1024;

// One thread of one warp announces `announced` bytes and copies `copied`, then waits.
RunResult copy_bytes(uint32_t announced, uint32_t copied, bool wait = true) {
  Machine machine(Options{});
  machine.names().mbarrier("data", kBarrier, 1, false);
  const uint32_t* source = machine.global().upload("source", std::vector<uint32_t>(64, 7));
  return run_micro(machine, {1}, [=] {
    ptx::mbarrier_init(kBarrier, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_tx(kBarrier, announced);
    if (copied > 0) ptx::bulk_load(kData, source, copied, kBarrier);
    if (wait) ptx::mbarrier_wait(kBarrier, 0);
    if (wait) {
      EXPECT_EQ(ptx::load_shared<uint32_t>(kData), 7u);
    }
  });
}

TEST(Mbarrier, PhaseNeedsArrivalsAndBytes) {
  expect_finished(copy_bytes(64, 64));
}

TEST(Mbarrier, FewerBytesThanAnnounced) {
  expect_report(copy_bytes(64, 48), ReportKind::kWrongByteCount,
                "data[0]: phase 0, 0 of 1 arrivals and 16 bytes to come");
}

TEST(Mbarrier, MoreBytesThanAnnounced) {
  expect_report(copy_bytes(48, 64), ReportKind::kWrongByteCount, "data[0] gets 16 bytes more in phase 0");
}

TEST(Mbarrier, BytesAnnouncedAndNobodyWaits) {
  expect_report(copy_bytes(64, 0, false), ReportKind::kWrongByteCount, "data[0] has 64 bytes more announced than come");
}

TEST(Mbarrier, BlockEndsBeforeTheCopy) {
  expect_report(copy_bytes(64, 64, false), ReportKind::kUnfinishedAtExit, "copies into its shared memory");
}

TEST(Mbarrier, OverArrival) {
  const RunResult result = run_micro({1}, [] {
    ptx::mbarrier_init(kBarrier, 1);
    ptx::mbarrier_arrive_expect_tx(kBarrier, 16);
    ptx::mbarrier_arrive(kBarrier);
  });
  expect_report(result, ReportKind::kOverArrival, "all 1 arrivals of phase 0");
}

TEST(Mbarrier, SecondArrivalOfAWarpWhereTheKernelForbidsIt) {
  Machine machine(Options{});
  machine.names().mbarrier("empty", kBarrier, 1, true);
  const RunResult result = run_micro(machine, {32}, [] {
    if (ptx::lane_index() == 0) ptx::mbarrier_init(kBarrier, 8);
    ptx::block_sync();
    ptx::mbarrier_arrive_if(kBarrier, ptx::lane_index() < 2);
  });
  expect_report(result, ReportKind::kOverArrival, "second arrival at empty[0] in phase 0");
}

TEST(Mbarrier, Misuse) {
  const auto run = [](std::function<void()> kernel) { return run_micro({1}, std::move(kernel)); };
  expect_report(run([] { ptx::mbarrier_wait(kBarrier, 0); }), ReportKind::kBarrierMisuse,
                "not an initialized mbarrier");
  expect_report(run([] { ptx::mbarrier_init(kBarrier + 4, 1); }), ReportKind::kMisaligned, "not a multiple of 8");
  expect_report(run([] { ptx::mbarrier_init(kBarrier, 0); }), ReportKind::kBarrierMisuse, "1 to 2^20 - 1 arrivals");
  expect_report(run([] { ptx::mbarrier_init(kBase + 16 * 1024, 1); }), ReportKind::kOutOfBounds,
                "not in shared memory");
  const auto twice = [] {
    ptx::mbarrier_init(kBarrier, 1);
    ptx::mbarrier_init(kBarrier, 1);
  };
  expect_report(run(twice), ReportKind::kBarrierMisuse, "initialized already");
  const auto overwritten = [] {
    ptx::mbarrier_init(kBarrier, 1);
    ptx::store_shared(kBarrier + 4, 0u);
  };
  expect_report(run(overwritten), ReportKind::kBarrierMisuse, "an mbarrier's");
}

TEST(Mbarrier, DeadlockNamesEverybody) {
  Machine machine(Options{});
  machine.names().mbarrier("done", kBarrier, 1, false);
  machine.names().warp_role("waiter", 0, 1);
  const RunResult result = run_micro(machine, {32}, [] {
    if (ptx::lane_index() == 3) ptx::mbarrier_init(kBarrier, 2);
    ptx::block_sync();
    if (ptx::lane_index() == 3) ptx::mbarrier_arrive(kBarrier);
    if (ptx::lane_index() == 4) ptx::mbarrier_wait(kBarrier, 0);
  });
  expect_report(result, ReportKind::kDeadlock,
                "warp 0 (waiter): 1 thread, 4, wait for done[0], parity 0 at barrier_test.cpp");
  expect_report(result, ReportKind::kDeadlock, "done[0]: phase 0, 1 of 2 arrivals and 0 bytes to come, 1 threads wait");
}

TEST(Mbarrier, PollingForEver) {
  const RunResult result = run_micro({1}, [] {
    ptx::mbarrier_init(kBarrier, 1);
    while (!ptx::mbarrier_test(kBarrier, 0)) {
    }
  });
  expect_report(result, ReportKind::kDeadlock, "threads only poll");
}

TEST(Mbarrier, FlagThatNobodySets) {
  Machine machine(Options{});
  const uint32_t* flag = machine.global().upload("flag", std::vector<uint32_t>{0});
  const RunResult result = run_micro(machine, {1}, [=] {
    while (ptx::load_acquire(flag) == 0) {
    }
  });
  expect_report(result, ReportKind::kDeadlock, "threads only poll");
}

TEST(NamedBarrier, Misuse) {
  const auto run = [](std::function<void()> kernel) { return run_micro({64}, std::move(kernel)); };
  expect_report(run([] { ptx::named_barrier_sync(16, 64); }), ReportKind::kBarrierMisuse, "0 to 15");
  expect_report(run([] { ptx::named_barrier_sync(1, 40); }), ReportKind::kBarrierMisuse, "multiple of a warp");
  expect_report(run([] { ptx::named_barrier_sync(1, 64 + 32 * ptx::warp_index()); }), ReportKind::kBarrierMisuse,
                "threads, another");
  const auto twice = [] {
    ptx::named_barrier_arrive(1, 96);
    ptx::named_barrier_arrive(1, 96);
  };
  expect_report(run(twice), ReportKind::kOverArrival, "named barrier 1: the warp has come already");
  expect_report(run([] { ptx::named_barrier_sync(1, 96); }), ReportKind::kDeadlock,
                "named barrier 1: 64 of 96 threads have come");
}

// Every number, and any whole number of warps, in blocks of all sizes that kernels have.
TEST(NamedBarrier, EveryNumberAndCount) {
  for (const int threads : {32, 96, 384, 512, 640, 1024}) {
    const RunResult result = run_micro({threads}, [=] {
      for (int id = 0; id < 16; ++id) ptx::named_barrier_sync(id, threads);
      if (ptx::warp_index() % 2 == 0) ptx::named_barrier_sync(15, (threads / 32 + 1) / 2 * 32);
    });
    expect_finished(result);
  }
}

TEST(NamedBarrier, ArrivalsThatNobodyWaitsFor) {
  const RunResult result = run_micro({64}, [] { ptx::named_barrier_arrive(3, 96); });
  expect_report(result, ReportKind::kUnfinishedAtExit, "at named barrier 3 64 of 96 threads have come");
}

TEST(NamedBarrier, HalfAWarp) {
  const RunResult result = run_micro({32}, [] {
    if (ptx::lane_index() < 16) ptx::block_sync();
  });
  expect_report(result, ReportKind::kCollective, "named_barrier_sync");
}

TEST(ClusterBarrier, ArriveAndWaitTakeTurns) {
  const MicroLaunch pair = {32, 2, 2};
  const auto twice = [] {
    ptx::cluster_arrive();
    ptx::cluster_arrive();
  };
  expect_report(run_micro(pair, twice), ReportKind::kBarrierMisuse, "has arrived already");
  expect_report(run_micro(pair, [] { ptx::cluster_wait(); }), ReportKind::kBarrierMisuse, "has not arrived");
}

TEST(Cluster, AddressesBelongToOneBlock) {
  const MicroLaunch pair = {32, 2, 2};
  expect_report(run_micro(pair, [] { ptx::store_shared(kBase, 1u); }), ReportKind::kOutOfBounds,
                "an address in block 0 of the cluster, not in its own, 1");
}

TEST(Cluster, BlockThatHasEnded) {
  const RunResult result = run_micro({1, 2, 2}, [] {
    if (ptx::cluster_rank() == 1) return;
    const uint32_t theirs = ptx::map_shared(ptx::dynamic_shared_base(), 1);
    ptx::mbarrier_init(kBarrier, 1);
    for (;;) {  // looking at an mbarrier lets the other block run, to its end
      ptx::store_cluster_shared(theirs, 1u);
      ptx::mbarrier_test(kBarrier, 0);
    }
  });
  expect_report(result, ReportKind::kOutOfBounds, "a block of this cluster that still runs");
}

TEST(Registers, IncreaseWaitsForDecrease) {
  const RunResult result = run_micro({384}, [] {
    if (ptx::warpgroup_index() == 0) {
      ptx::setmaxnreg_decrease<40>();
    } else {
      ptx::setmaxnreg_increase<232>();
    }
  });
  expect_finished(result);
}

// The divisions of the register file that kernels use: one producer warpgroup, the rest consumers.
template <int kConsumers, int kProducer, int kConsumer>
RunResult move_registers() {
  return run_micro({(1 + kConsumers) * 128}, [] {
    if (ptx::warpgroup_index() == 0) {
      ptx::setmaxnreg_decrease<kProducer>();
    } else if constexpr (kConsumer * (1 + kConsumers) >= 512) {
      ptx::setmaxnreg_increase<kConsumer>();
    } else {
      ptx::setmaxnreg_decrease<kConsumer>();
    }
  });
}

TEST(Registers, Divisions) {
  expect_finished(move_registers<2, 24, 240>());
  expect_finished(move_registers<2, 40, 232>());
  expect_finished(move_registers<3, 32, 160>());
  expect_finished(move_registers<3, 56, 152>());
  expect_finished(move_registers<4, 32, 112>());
  expect_report(move_registers<2, 32, 240>(), ReportKind::kRegisterBudget, "wait for 240 registers");
  expect_report(move_registers<3, 40, 160>(), ReportKind::kRegisterBudget, "wait for 160 registers");
  expect_report(move_registers<4, 40, 112>(), ReportKind::kRegisterBudget, "wait for 112 registers");
}

TEST(Registers, BeyondTheBudget) {
  const RunResult too_many = run_micro({384}, [] {
    if (ptx::warpgroup_index() == 0) {
      ptx::setmaxnreg_decrease<40>();
    } else {
      ptx::setmaxnreg_increase<240>();
    }
  });
  expect_report(too_many, ReportKind::kRegisterBudget, "wait for 240 registers");
  expect_report(run_micro({384}, [] { ptx::setmaxnreg_decrease<200>(); }), ReportKind::kRegisterBudget,
                "from 168 to 200 is no decrease");
}

}  // namespace
}  // namespace tandem::model
