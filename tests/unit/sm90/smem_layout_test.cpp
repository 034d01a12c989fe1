#include "sm90/tile/smem_layout.cuh"

#include <gtest/gtest.h>

#include <set>

namespace tandem::sm90 {
namespace {

// The ISA's picture: in row r of an aligned panel, chunk c lies at place c XOR r (128 bytes), c XOR r/2 (64 bytes).
TEST(SmemLayout, SwizzlePermutesTheChunksOfEachRow) {
  for (uint32_t row = 0; row < 32; ++row) {
    for (uint32_t chunk = 0; chunk < 8; ++chunk) {
      EXPECT_EQ(swizzled(row * 128 + chunk * 16, Swizzle::k128Bytes), row * 128 + (chunk ^ (row % 8)) * 16);
    }
    for (uint32_t chunk = 0; chunk < 4; ++chunk) {
      EXPECT_EQ(swizzled(row * 64 + chunk * 16, Swizzle::k64Bytes), row * 64 + (chunk ^ (row / 2 % 4)) * 16);
    }
  }
}

template <typename Tile>
void expect_every_chunk_once() {
  std::set<uint32_t> offsets;
  for (int row = 0; row < Tile::kRows; ++row) {
    for (int byte = 0; byte < Tile::kRowBytes; byte += 16) offsets.insert(Tile::chunk_offset(row, byte));
  }
  EXPECT_EQ(offsets.size(), static_cast<size_t>(Tile::kBytes / 16));
  EXPECT_EQ(*offsets.rbegin(), static_cast<uint32_t>(Tile::kBytes - 16));
}

TEST(SmemLayout, ATileIsFilledOnce) {
  expect_every_chunk_once<SwizzledTile<64, 256>>();
  expect_every_chunk_once<SwizzledTile<128, 128>>();
  expect_every_chunk_once<SwizzledTile<80, 192, Swizzle::k64Bytes>>();
}

// Fields as the ISA's matrix descriptor format names them.
uint64_t field(uint64_t descriptor, int first_bit, int bits) {
  return descriptor >> first_bit & ((uint64_t{1} << bits) - 1);
}

TEST(SmemLayout, DescriptorsOfKMajorOperands) {
  using Tile = SwizzledTile<128, 256>;
  const uint64_t descriptor = Tile::k_major(0x8400, 5);  // the second step of the second panel
  EXPECT_EQ(field(descriptor, 0, 14) * 16, 0x8400u + 128 * 128 + 32);
  EXPECT_EQ(field(descriptor, 32, 14) * 16, 1024u);
  EXPECT_EQ(field(descriptor, 49, 3), 0u);
  EXPECT_EQ(field(descriptor, 62, 2), 1u);
}

TEST(SmemLayout, DescriptorsOfMnMajorOperands) {
  using Tile = SwizzledTile<96, 128, Swizzle::k64Bytes>;
  const uint64_t descriptor = Tile::mn_major(0x400, 3);
  EXPECT_EQ(field(descriptor, 0, 14) * 16, 0x400u + 3 * 16 * 64);
  EXPECT_EQ(field(descriptor, 16, 14) * 16, 96u * 64);
  EXPECT_EQ(field(descriptor, 32, 14) * 16, 512u);
  EXPECT_EQ(field(descriptor, 62, 2), 2u);
}

TEST(SmemLayout, AdvancingIsMakingAnew) {
  using Tile = SwizzledTile<128, 256>;
  for (uint32_t bytes = 0; bytes < 160 * 1024; bytes += Tile::kBytes) {
    EXPECT_EQ(advance(Tile::k_major(1024, 3), bytes), Tile::k_major(1024 + bytes, 3));
    EXPECT_EQ(advance(Tile::mn_major(1024, 3), bytes), Tile::mn_major(1024 + bytes, 3));
  }
}

}  // namespace
}  // namespace tandem::sm90
