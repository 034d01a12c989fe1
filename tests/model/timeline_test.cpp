// Timelines of events written here.

#include <gtest/gtest.h>

#include "timeline/spans.h"

namespace tandem::model {
namespace {

class TimelineTest : public testing::Test {
 protected:
  TimelineTest() {
    names_.mbarrier("full", 1024, 1, true);
    names_.shared("k", 2048, 1024, 1);
    names_.warp_role("load", 0, 1);
    names_.warp_role("consumer", 4, 4);
  }
  void add(uint64_t step, int thread, Op op, Moment moment, Place place = {}) {
    events_.push_back({step, 0, thread, op, moment, place});
  }
  Timeline timeline() const { return make_timeline(events_, names_, 0, 20); }

  Names names_;
  std::vector<Event> events_;
};

TEST_F(TimelineTest, MarksByRoleAndStep) {
  add(2, 0, Op::kTmaLoad, Moment::kBegin, Place::shared(2048));
  add(1, 128, Op::kBarrierWait, Moment::kBegin, Place::shared(1024));
  add(9, 3, Op::kCopyDone, Moment::kInstant, Place::shared(2048));
  add(10, 128, Op::kBarrierWait, Moment::kEnd, Place::shared(1024));
  add(11, 128, Op::kWgmma, Moment::kInstant);
  add(15, 128, Op::kProductDone, Moment::kInstant);
  add(13, 131, Op::kMma, Moment::kInstant);
  add(13, 163, Op::kMma, Moment::kInstant);  // another warp's
  add(16, 130, Op::kExponential, Moment::kInstant);
  add(17, 130, Op::kExponential, Moment::kInstant);
  EXPECT_EQ(timeline_text(timeline(), 0, 20, 20),
            "steps 0 to 20, 1 a character\n"
            "load                   |  L                 |\n"
            "consumer               | ......... M m  ee  |\n"
            "copy engine            |  =======           |\n"
            "tensor cores, consumer |           ####     |\n"
            ". waits  L, S issues a load, a store  M issues a wgmma  m one warp's mma  e softmax  = copy under way  # "
            "wgmma under way\n");
}

TEST_F(TimelineTest, Json) {
  add(1, 0, Op::kBarrierWait, Moment::kBegin, Place::shared(1024));
  add(4, 0, Op::kBarrierWait, Moment::kEnd, Place::shared(1024));
  const std::string json = timeline_json(timeline());
  EXPECT_NE(json.find("{\"name\": \"wait for full[0]\", \"ph\": \"X\", \"ts\": 1, \"pid\": 0, \"tid\": 0, \"dur\": 3}"),
            std::string::npos)
      << json;
}

// One lane waits while others of its warp are at their exponentials still: the softmax ends where the wait begins.
TEST_F(TimelineTest, SpansOfARowNest) {
  add(2, 128, Op::kExponential, Moment::kInstant);
  add(5, 129, Op::kBarrierWait, Moment::kBegin, Place::shared(1024));
  add(6, 130, Op::kExponential, Moment::kInstant);
  add(7, 128, Op::kBarrierWait, Moment::kBegin, Place::shared(1024));
  add(9, 128, Op::kBarrierWait, Moment::kEnd, Place::shared(1024));
  add(9, 129, Op::kBarrierWait, Moment::kEnd, Place::shared(1024));
  for (const Span& span : timeline().spans) {
    if (span.kind == Span::Kind::kSoftmax) {
      EXPECT_EQ(span.end, 5u);
    }
  }
  EXPECT_EQ(timeline().spans.size(), 3u);
}

TEST_F(TimelineTest, OtherBlocksAreLeftOut) {
  events_.push_back({1, 1, 0, Op::kTmaLoad, Moment::kBegin, Place::shared(2048)});
  EXPECT_TRUE(timeline().spans.empty());
}

}  // namespace
}  // namespace tandem::model
