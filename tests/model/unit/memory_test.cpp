// Bounds, alignment and first writes of ordinary accesses; what a warp does together.

#include <set>

#include "sm90/ptx/device.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/matrix.cuh"
#include "sm90/ptx/warp.cuh"
#include "unit/micro.h"

namespace tandem::model {
namespace {

struct Sixteen {
  uint32_t words[4];
};

RunResult run_one(std::function<void()> kernel) {
  return run_micro({1}, std::move(kernel));
}

TEST(SharedMemory, Rules) {
  expect_report(run_one([] { ptx::load_shared<uint32_t>(kBase); }), ReportKind::kUnwrittenRead, "nobody has written");
  expect_report(run_one([] { ptx::store_shared(kBase - 4, 1u); }), ReportKind::kOutOfBounds,
                "outside of shared memory");
  expect_report(run_one([] { ptx::store_shared(kBase + 16 * 1024, 1u); }), ReportKind::kOutOfBounds, "outside");
  expect_report(run_one([] { ptx::store_shared(kBase + 8, Sixteen{}); }), ReportKind::kMisaligned,
                "not a multiple of 16");
  const auto half_written = [] {
    ptx::store_shared(kBase, 1u);
    ptx::load_shared<uint64_t>(kBase);
  };
  expect_report(run_one(half_written), ReportKind::kUnwrittenRead, "8 bytes at shared 0x400");
}

TEST(SharedMemory, NamesInReports) {
  Machine machine(Options{});
  machine.names().shared("k", kBase, 1024, 4);
  const RunResult result = run_micro(machine, {1}, [] { ptx::load_shared<uint32_t>(kBase + 2048 + 12); });
  expect_report(result, ReportKind::kUnwrittenRead, "4 bytes at k[2] + 12");
  expect_report(result, ReportKind::kUnwrittenRead,
                "block 0, warpgroup 0, warp 0 (warp 0), thread 0, load_shared at memory_test.cpp");
}

TEST(GlobalMemory, Rules) {
  const auto run = [](std::function<void(uint32_t*, uint32_t*)> kernel) {
    Machine machine(Options{});
    uint32_t* in = machine.global().upload("in", std::vector<uint32_t>(8, 1));
    auto* out = static_cast<uint32_t*>(machine.global().allocate("out", 32));
    return run_micro(machine, {1}, [=] { kernel(in, out); });
  };
  expect_finished(run([](uint32_t* in, uint32_t* out) { ptx::store_global(out + 7, ptx::load_global(in + 7)); }));
  expect_report(run([](uint32_t* in, uint32_t*) { ptx::load_global(in + 8); }), ReportKind::kOutOfBounds,
                "4 bytes at in + 32, which has 32 bytes");
  expect_report(run([](uint32_t* in, uint32_t*) { ptx::load_global(in - 1); }), ReportKind::kOutOfBounds, "4 bytes at");
  expect_report(run([](uint32_t*, uint32_t* out) { ptx::store_global(out + 8, 1u); }), ReportKind::kOutOfBounds,
                "out + 32");
  expect_report(run([](uint32_t*, uint32_t* out) { ptx::load_global(out + 3); }), ReportKind::kUnwrittenRead,
                "4 bytes, but nobody has written out + 12");
  expect_report(run([](uint32_t* in, uint32_t*) { ptx::load_global(reinterpret_cast<uint64_t*>(in + 1)); }),
                ReportKind::kMisaligned, "in + 4 is not a multiple of 8");
  expect_report(run([](uint32_t*, uint32_t* out) { ptx::atomic_add(out, 1); }), ReportKind::kUnwrittenRead, "out + 0");
}

TEST(Warp, CollectivesThatLanesMiss) {
  const auto run = [](std::function<void()> kernel) { return run_micro({32}, std::move(kernel)); };
  const auto divergent = [] {
    if (ptx::lane_index() < 16) {
      ptx::shuffle_xor(1u, 1);
    } else {
      ptx::warp_sync();
    }
  };
  expect_report(run(divergent), ReportKind::kCollective, "other threads of the warp are in");
  const auto two_places = [] {
    if (ptx::lane_index() == 9) {
      ptx::warp_sync();
    } else {
      ptx::warp_sync();
    }
  };
  expect_report(run(two_places), ReportKind::kCollective, "warp_sync at memory_test.cpp");
  const auto some_left = [] {
    if (ptx::lane_index() != 9) ptx::any_sync(true);
  };
  expect_report(run(some_left), ReportKind::kCollective, "vote");
}

TEST(Warp, MatrixRowsAreAligned) {
  const RunResult result = run_micro({32}, [] {
    uint32_t registers[4] = {};
    ptx::stmatrix_x4(kBase + 8 + static_cast<uint32_t>(ptx::lane_index()) * 16, registers);
  });
  expect_report(result, ReportKind::kMisaligned, "not a multiple of 16");
}

// The ISA does not say which lane elect.sync chooses.
TEST(Warp, ElectedLaneDependsOnTheSeed) {
  std::set<int> elected;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Options options;
    options.seed = seed;
    Machine machine(options);
    int count = 0;
    expect_finished(run_micro(machine, {32}, [&] {
      if (!ptx::elect_one()) return;
      elected.insert(ptx::lane_index());
      ++count;
    }));
    EXPECT_EQ(count, 1);
  }
  EXPECT_GT(elected.size(), 5u);
}

TEST(Warp, Trap) {
  expect_report(run_one([] { ptx::trap(); }), ReportKind::kTrap, "thread 0 at memory_test.cpp");
}

TEST(Scheduler, OrderOfWarpsDependsOnTheSeedAlone) {
  const auto order = [](uint64_t seed) {
    Options options;
    options.seed = seed;
    Machine machine(options);
    std::vector<int> warps;
    run_micro(machine, {256, 2}, [&] {
      if (ptx::lane_index() == 0) warps.push_back(ptx::block_index() * 8 + ptx::thread_rank() / 32);
    });
    return warps;
  };
  EXPECT_EQ(order(3), order(3));
  EXPECT_NE(order(3), order(4));
}

}  // namespace
}  // namespace tandem::model
