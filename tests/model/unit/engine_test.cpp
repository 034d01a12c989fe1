// The parts of the model that are not instructions: faults, names, traces, golden files.

#include <gtest/gtest.h>

#include "engine/faults.h"
#include "engine/trace.h"

namespace tandem::model {
namespace {

TEST(Names, Places) {
  Names names;
  names.mbarrier("full", 1024, 2, true);
  names.shared("k", 2048, 1024, 2);
  names.named_barrier("turn", 1, 2);
  names.warp_role("consumer", 4, 4);
  EXPECT_EQ(names.of(Place::shared(1032)), "full[1]");
  EXPECT_EQ(names.of(Place::shared(3080)), "k[1] + 8");
  EXPECT_EQ(names.of(Place::shared(9000)), "shared 0x2328");
  EXPECT_EQ(names.of(Place::named(2)), "turn[1]");
  EXPECT_EQ(names.of(Place::named(0)), "block_sync");
  EXPECT_EQ(names.of({}), "");
  EXPECT_EQ(names.role(7), "consumer");
  EXPECT_EQ(names.role(8), "warp 8");
  EXPECT_TRUE(names.in_turn(1024));
  EXPECT_FALSE(names.in_turn(2048));
}

TEST(Faults, ChooseByPlaceThreadAndOccurrence) {
  Names names;
  names.mbarrier("full", 1024, 2, true);
  Fault fault;
  fault.op = Op::kBarrierArrive;
  fault.at = "full[1]";
  fault.warp = 1;
  fault.occurrence = 1;
  Faults faults({fault});
  const auto times = [&](Op op, uint32_t address, int thread) {
    return faults.judge(op, Place::shared(address), {}, 0, thread, names).times;
  };
  EXPECT_EQ(times(Op::kBarrierArrive, 1024, 32), 1);  // full[0]
  EXPECT_EQ(times(Op::kBarrierWait, 1032, 32), 1);
  EXPECT_EQ(times(Op::kBarrierArrive, 1032, 0), 1);   // warp 0
  EXPECT_EQ(times(Op::kBarrierArrive, 1032, 32), 1);  // occurrence 0
  EXPECT_FALSE(faults.any_applied());
  EXPECT_EQ(times(Op::kBarrierArrive, 1032, 32), 0);
  EXPECT_EQ(times(Op::kBarrierArrive, 1032, 32), 1);
  EXPECT_EQ(times(Op::kBarrierArrive, 1032, 33), 1);  // each thread counts its own
  EXPECT_TRUE(faults.any_applied());
  EXPECT_EQ(fault.text(), "skip mbarrier_arrive at full[1], warp 1, number 1");
}

TEST(Trace, HashCoversEveryEvent) {
  const auto hash = [](uint64_t step, int thread, Op op, bool keep) {
    Trace trace(keep);
    trace.record({step, 0, thread, op, Moment::kInstant, {}}, true);
    return trace.hash();
  };
  EXPECT_EQ(hash(1, 2, Op::kFence, false), hash(1, 2, Op::kFence, true));
  EXPECT_NE(hash(1, 2, Op::kFence, false), hash(2, 2, Op::kFence, false));
  EXPECT_NE(hash(1, 2, Op::kFence, false), hash(1, 3, Op::kFence, false));
  EXPECT_NE(hash(1, 2, Op::kFence, false), hash(1, 2, Op::kVote, false));
}

}  // namespace
}  // namespace tandem::model
