// Several grids in sequence on the same memory, and what a grid may touch that begins early.

#include "sm90/ptx/global.cuh"
#include "sm90/ptx/grid_dependency.cuh"
#include "sm90/ptx/named_barrier.cuh"
#include "unit/micro.h"

namespace tandem::model {
namespace {

struct TwoGrids {
  TwoGrids() : machine(Options{}) {
    given = machine.global().upload("given", std::vector<uint32_t>(64, 5));
    table = static_cast<uint32_t*>(machine.global().allocate("table", 64 * sizeof(uint32_t)));
  }
  // The first grid fills the table; the second is `kernel`, in two blocks.
  RunResult run(bool dependent, std::function<void()> kernel) {
    Launch launch;
    launch.threads = 64;
    launch.kernel = [this] {
      ptx::launch_dependent_grid();
      const int t = ptx::thread_rank();
      ptx::store_global(table + t, ptx::load_global(given + t) + 1);
    };
    expect_finished(machine.run(launch));
    launch.blocks = 2;
    launch.dependent = dependent;
    launch.kernel = std::move(kernel);
    return machine.run(launch);
  }
  Machine machine;
  uint32_t* given;
  uint32_t* table;
};

TEST(Grids, TheSecondSeesWhatTheFirstHasWritten) {
  TwoGrids grids;
  int blocks = 0;
  const RunResult result = grids.run(false, [&] {
    EXPECT_EQ(ptx::load_global(grids.table + ptx::thread_rank()), 6u);
    EXPECT_EQ(ptx::grid_size(), 2);
    if (ptx::thread_rank() == 0) ++blocks;
  });
  expect_finished(result);
  EXPECT_EQ(blocks, 2);
}

TEST(Grids, ADependentGridWaitsBeforeItReads) {
  TwoGrids waits;
  expect_finished(waits.run(true, [&] {
    EXPECT_EQ(ptx::load_global(waits.given), 5u);  // the host's
    if (ptx::thread_rank() == 0) ptx::wait_for_previous_grid();
    ptx::block_sync();
    EXPECT_EQ(ptx::load_global(waits.table), 6u);
  }));
  TwoGrids reads;
  expect_report(reads.run(true, [&] { ptx::load_global(reads.table + 3); }), ReportKind::kMissingGridWait,
                "table + 12 is the grid's before this one");
  TwoGrids writes;
  expect_report(writes.run(true, [&] { ptx::store_global(writes.table, 1u); }), ReportKind::kMissingGridWait,
                "no call of wait_for_previous_grid() is ordered before");
  TwoGrids counts;
  expect_report(counts.run(true, [&] { ptx::atomic_add(counts.table, 1); }), ReportKind::kMissingGridWait, "atomic");
}

TEST(Grids, OneBlocksWaitIsNotAnothers) {
  TwoGrids grids;
  const RunResult result = grids.run(true, [&] {
    if (ptx::block_index() == 1) ptx::wait_for_previous_grid();
    ptx::load_global(grids.table);
  });
  expect_report(result, ReportKind::kMissingGridWait, "block 0");
}

TEST(Grids, NothingRunsAfterAReport) {
  Machine machine(Options{});
  expect_report(run_micro(machine, {32}, [] { ptx::trap(); }), ReportKind::kTrap, "");
  bool ran = false;
  expect_report(run_micro(machine, {32}, [&] { ran = true; }), ReportKind::kTrap, "");
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace tandem::model
