// What the copy engine refuses, and when its operations are complete. That boxes go where they should: wrapper_test.

#include "sm90/ptx/fence.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/mbarrier.cuh"
#include "sm90/ptx/tma.cuh"
#include "unit/micro.h"

namespace tandem::model {
namespace {

constexpr uint32_t kBarrier = kBase;
constexpr uint32_t kBox = kBase + 1024;
constexpr uint32_t kBoxBytes = 8 * 128;

// A tensor of 16 rows of 64 elements, boxes of 8 rows.
struct Fixture {
  explicit Fixture(std::function<void(TensorMapSpec&)> change = [](TensorMapSpec&) {}) : machine(Options{}) {
    data = machine.global().upload("tensor", std::vector<uint16_t>(16 * 64, 3));
    TensorMapSpec spec;
    spec.base = data;
    spec.dtype = DType::kBf16;
    spec.rank = 2;
    spec.dims[0] = spec.box[0] = 64;
    spec.dims[1] = 16;
    spec.box[1] = 8;
    spec.strides_bytes[1] = 128;
    change(spec);
    map = machine.encode(spec);
  }
  RunResult run(std::function<void()> kernel) { return run_micro(machine, {1}, std::move(kernel)); }
  // Loads the box at row `row` and waits.
  RunResult load(uint32_t smem, int row) {
    return run([this, smem, row] {
      ptx::mbarrier_init(kBarrier, 1);
      ptx::fence_mbarrier_init();
      ptx::mbarrier_arrive_expect_tx(kBarrier, kBoxBytes);
      ptx::tma_load_2d(smem, &map, kBarrier, 0, row);
      ptx::mbarrier_wait(kBarrier, 0);
    });
  }

  Machine machine;
  uint16_t* data;
  ptx::TensorMap map;
};

TEST(TensorMap, WhatIsRefused) {
  const auto load_with = [](std::function<void(TensorMapSpec&)> change) { return Fixture(change).load(kBox, 0); };
  expect_finished(load_with([](TensorMapSpec&) {}));
  expect_report(load_with([](TensorMapSpec& spec) { spec.strides_bytes[1] = 120; }), ReportKind::kTensorMap,
                "multiples of 16");
  expect_report(load_with([](TensorMapSpec& spec) { spec.box[0] = 128; }), ReportKind::kTensorMap, "a box's row");
  expect_report(load_with([](TensorMapSpec& spec) { spec.box[1] = 257; }), ReportKind::kTensorMap, "1 to 256");
  expect_report(load_with([](TensorMapSpec& spec) { spec.base = static_cast<const char*>(spec.base) + 8; }),
                ReportKind::kTensorMap, "multiple of 16 bytes");
  const auto third_axis = [](TensorMapSpec& spec) {
    spec.rank = 3;
    spec.dims[2] = spec.box[2] = 1;
    spec.strides_bytes[2] = 16;
  };
  expect_report(load_with(third_axis), ReportKind::kTensorMap, "the map has 3 axes, the instruction 2");
}

TEST(TensorMap, ReadsOutsideOfTheAllocation) {
  Fixture fixture([](TensorMapSpec& spec) { spec.dims[1] = 20; });
  expect_report(fixture.load(kBox, 16), ReportKind::kOutOfBounds, "tensor + 2048");
}

TEST(Tma, SharedAddresses) {
  expect_report(Fixture().load(kBox + 64, 0), ReportKind::kMisaligned, "no multiple of 128");
  expect_report(Fixture().load(kBase + 16 * 1024 - 128, 0), ReportKind::kOutOfBounds, "outside of shared memory");
  expect_report(Fixture().load(kBarrier, 0), ReportKind::kBarrierMisuse, "an mbarrier's");
}

TEST(Tma, NoMap) {
  Fixture fixture;
  fixture.map = {};
  expect_report(fixture.load(kBox, 0), ReportKind::kTensorMap, "no tensor map");
}

TEST(Tma, StoreReadsWrittenMemoryOnly) {
  Fixture fixture;
  const RunResult result = fixture.run([&] {
    ptx::tma_store_2d(&fixture.map, kBox, 0, 0);
    ptx::bulk_commit();
    ptx::bulk_wait<0>();
  });
  expect_report(result, ReportKind::kUnwrittenRead, "tma_store");
}

TEST(Tma, StoreCoordinatesAreNotNegative) {
  Fixture fixture;
  expect_report(fixture.run([&] { ptx::tma_store_2d(&fixture.map, kBox, 0, -1); }), ReportKind::kTensorMap,
                "is negative");
}

// Storing what bulk copies are: 64 bytes from shared memory to `target`.
RunResult store_bytes(std::function<void(uint32_t*)> store) {
  Machine machine(Options{});
  uint32_t* target = machine.global().upload("target", std::vector<uint32_t>(16, 0));
  return run_micro(machine, {1}, [=] {
    for (uint32_t i = 0; i < 16; ++i) ptx::store_shared(kBox + 4 * i, i);
    ptx::fence_proxy_async_shared();
    store(target);
  });
}

// From the issue to the landing the place is the copy's.
TEST(Tma, PlaceUnderACopy) {
  const auto touch = [](std::function<void()> access) {
    Fixture fixture;
    return fixture.run([&fixture, access = std::move(access)] {
      for (uint32_t i = 0; i < kBoxBytes / 4; ++i) ptx::store_shared(kBox + 4 * i, i);
      ptx::mbarrier_init(kBarrier, 1);
      ptx::fence_mbarrier_init();
      ptx::mbarrier_arrive_expect_tx(kBarrier, kBoxBytes);
      ptx::tma_load_2d(kBox, &fixture.map, kBarrier, 0, 0);
      access();
      ptx::mbarrier_wait(kBarrier, 0);
      EXPECT_EQ(ptx::load_shared<uint32_t>(kBox + 32), 0x30003u);
    });
  };
  expect_finished(touch([] {}));
  expect_finished(touch([] { ptx::store_shared(kBox + kBoxBytes, 1u); }));
  expect_report(touch([] { ptx::load_shared<uint32_t>(kBox + 32); }), ReportKind::kRace,
                "4 bytes at shared 0x820 of shared memory, to which a copy is under way");
  expect_report(touch([] { ptx::store_shared(kBox + 32, 1u); }), ReportKind::kRace, "store_shared");
}

// Rows, columns and whole boxes beyond the tensor come as zeros; nothing outside is read.
TEST(Tma, BeyondTheTensor) {
  Fixture fixture([](TensorMapSpec& spec) { spec.dims[0] = 40; });
  const auto expect_box = [&](int column, int row, int columns, int rows) {
    ptx::mbarrier_init(kBarrier, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect_tx(kBarrier, kBoxBytes);
    ptx::tma_load_2d(kBox, &fixture.map, kBarrier, column, row);
    ptx::mbarrier_wait(kBarrier, 0);
    int threes = 0;
    for (uint32_t i = 0; i < kBoxBytes / 4; ++i) {
      const auto pair = ptx::load_shared<uint32_t>(kBox + 4 * i);
      EXPECT_TRUE(pair == 0 || pair == 0x30003) << pair;
      threes += pair != 0;
    }
    EXPECT_EQ(threes, columns / 2 * rows) << column << ", " << row;
  };
  const auto run = [&](int column, int row, int columns, int rows) {
    return fixture.run([=, &expect_box] { expect_box(column, row, columns, rows); });
  };
  expect_finished(run(0, 0, 40, 8));
  expect_finished(run(0, 12, 40, 4));
  expect_finished(run(0, 16, 40, 0));
  expect_finished(run(0, 1'000'000, 40, 0));
  expect_finished(run(0, -1'000'000, 40, 0));
  expect_finished(run(64, 3, 0, 8));
  expect_finished(run(24, 3, 16, 8));
}

TEST(Bulk, ReadsFencedMemoryOnly) {
  expect_report(store_bytes([](uint32_t* target) {
                  ptx::store_shared(kBox + 4, 9u);
                  ptx::bulk_store(target, kBox, 64);
                  ptx::bulk_commit();
                  ptx::bulk_wait<0>();
                }),
                ReportKind::kMissingProxyFence, "bulk_store");
}

// Until its issuer has waited, what a store reads is the store's.
TEST(Bulk, PlaceBeingRead) {
  const auto overwrite = [](bool wait) {
    return store_bytes([=](uint32_t* target) {
      ptx::bulk_store(target, kBox, 32);
      ptx::bulk_commit();
      ptx::store_shared(kBox + 32, 1u);
      if (wait) ptx::bulk_wait_read<0>();
      ptx::store_shared(kBox + 28, 1u);
      ptx::bulk_wait<0>();
    });
  };
  expect_finished(overwrite(true));
  expect_report(overwrite(false), ReportKind::kRace, "4 bytes at shared 0x81c of shared memory, which a bulk store");
}

TEST(Bulk, StoresMustBeCommittedAndWaitedFor) {
  expect_report(store_bytes([](uint32_t* target) { ptx::bulk_store(target, kBox, 64); }), ReportKind::kUnfinishedAtExit,
                "bulk_commit() has not closed");
  const auto committed = [](uint32_t* target) {
    ptx::bulk_store(target, kBox, 64);
    ptx::bulk_commit();
  };
  expect_report(store_bytes(committed), ReportKind::kUnfinishedAtExit, "may still read shared memory");
  expect_finished(store_bytes([&](uint32_t* target) {
    committed(target);
    ptx::bulk_wait_read<0>();
  }));
}

TEST(Bulk, WaitLeavesTheLatestGroups) {
  const auto two_groups = [](uint32_t* target) {
    ptx::bulk_store(target, kBox, 16);
    ptx::bulk_commit();
    ptx::bulk_store(target + 4, kBox + 16, 16);
    ptx::bulk_commit();
    ptx::bulk_wait<1>();
    EXPECT_EQ(ptx::load_global(target + 3), 3u);
    ptx::bulk_wait<0>();
    EXPECT_EQ(ptx::load_global(target + 7), 7u);
  };
  expect_finished(store_bytes(two_groups));
}

TEST(Bulk, Alignment) {
  expect_report(store_bytes([](uint32_t* target) { ptx::bulk_store(target, kBox, 24); }), ReportKind::kMisaligned,
                "24 bytes");
  expect_report(store_bytes([](uint32_t* target) { ptx::bulk_store(target + 1, kBox, 16); }), ReportKind::kMisaligned,
                "target + 4");
  expect_report(store_bytes([](uint32_t* target) { ptx::bulk_store(target, kBox + 8, 16); }), ReportKind::kMisaligned,
                "shared address");
}

TEST(Bulk, OutOfBounds) {
  const auto store = [](uint32_t* target) {
    ptx::bulk_store(target + 12, kBox, 32);
    ptx::bulk_commit();
    ptx::bulk_wait<0>();
  };
  expect_report(store_bytes(store), ReportKind::kOutOfBounds, "32 bytes at target + 48, which has 64 bytes");
}

}  // namespace
}  // namespace tandem::model
