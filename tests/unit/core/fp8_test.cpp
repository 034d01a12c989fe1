#include "core/fp8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace tandem {
namespace {

// tandem.h's table.
TEST(Fp8, SlotsOfAGroup) {
  const int keys[16] = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};
  for (int group = 0; group < 3; ++group) {
    for (int slot = 0; slot < 16; ++slot) {
      EXPECT_EQ(slot_key(16 * group + slot), 16 * group + keys[slot]);
      EXPECT_EQ(key_slot(16 * group + keys[slot]), 16 * group + slot);
    }
  }
}

// What the layout is for: a row of S lies in the four threads of a quad, thread t with columns 2t and 2t + 1 of each 8;
// and each wants, of every 16 slots of V^T, the four from 4t on.
TEST(Fp8, AThreadOfTheQuadHasTheColumnsOfItsSlots) {
  for (int slot = 0; slot < 64; ++slot) EXPECT_EQ(slot_key(slot) % 8 / 2, slot % 16 / 4) << "slot " << slot;
}

TEST(Fp8, PackedSequencesHaveSlotsOfTheirOwn) {
  const std::vector<int64_t> lengths = {0, 1, 15, 16, 17, 0, 0, 31, 128, 1, 1, 1, 100};
  for (size_t first = 0; first < lengths.size(); ++first) {
    int64_t begin = 0;
    int64_t free = 0;
    int64_t index = 0;
    for (size_t n = 0; n < lengths.size(); ++n) {
      const int64_t length = lengths[(first + n) % lengths.size()];
      EXPECT_GE(packed_slot_begin(begin, index), free);
      EXPECT_EQ(packed_slot_begin(begin, index) % 16, 0);
      free = packed_slot_begin(begin, index) + dense_slots(length);
      begin += length;
      ++index;
    }
    EXPECT_GE(packed_slot_begin(begin, index), free);
  }
  EXPECT_EQ(dense_slots(0), 0);
  EXPECT_EQ(dense_slots(1), 16);
  EXPECT_EQ(dense_slots(32), 32);
}

// The generator's published outputs for the seeds 0 and 1234567.
TEST(Fp8, SignsAreTheBitsOfSplitmix64) {
  const uint64_t of_0 = 0xe220a8397b1dcdaf;
  const uint64_t of_1234567[2] = {6457827717110365317u, 3203168211198807973u};
  for (int c = 0; c < 64; ++c) {
    EXPECT_EQ(rotation_is_negative(0, c), (of_0 >> c & 1) != 0);
    EXPECT_EQ(rotation_is_negative(1234567, c), (of_1234567[0] >> c & 1) != 0);
    EXPECT_EQ(rotation_is_negative(1234567, 64 + c), (of_1234567[1] >> c & 1) != 0);
  }
}

TEST(Fp8, PaleysMatrixIsAHadamardMatrix) {
  for (int a = 0; a < 12; ++a) {
    for (int b = 0; b < 12; ++b) {
      int product = 0;
      for (int c = 0; c < 12; ++c) product += paley12(a, c) * paley12(b, c);
      EXPECT_EQ(product, a == b ? 12 : 0);
    }
  }
}

TEST(Fp8, HeadDimsWithARotation) {
  for (int64_t headdim : {1, 2, 16, 24, 32, 48, 64, 96, 128, 192, 256}) EXPECT_TRUE(has_hadamard(headdim)) << headdim;
  for (int64_t headdim : {0, 3, 20, 36, 40, 72, 80, 112, 144, 160, 224, 240}) EXPECT_FALSE(has_hadamard(headdim));
  EXPECT_EQ(sylvester_size(128), 128);
  EXPECT_EQ(sylvester_size(192), 16);
}

}  // namespace
}  // namespace tandem
