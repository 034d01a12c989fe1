#pragma once

#include <cstdint>

#include "core/host_device.h"

// Tiles in shared memory as the copy engine writes them and wgmma reads them. Pure arithmetic, host and device.
// PTX: Asynchronous Warpgroup Level Matrix Instructions: Shared Memory Matrix Layout, Matrix Descriptor Format.
namespace tandem::sm90 {

// Rows of a warpgroup's matrix product, and so of a consumer.
constexpr int kFragmentRows = 64;

// The unit in which the copy engine permutes: 16-byte chunks within rows of so many bytes.
enum class Swizzle : int { k64Bytes = 64, k128Bytes = 128 };

// Of the panels that rows of so many bytes lie in.
TANDEM_HD constexpr Swizzle panel_of(int row_bytes) {
  return row_bytes % 128 == 0 ? Swizzle::k128Bytes : Swizzle::k64Bytes;
}

// Byte offsets within a swizzled panel (one TMA box, aligned to 8 rows): bits 4.. are XORed with bits 7.., two of them
// at 64 bytes, three at 128.
TANDEM_HD constexpr uint32_t swizzled(uint32_t offset, Swizzle swizzle) {
  const uint32_t chunks = static_cast<uint32_t>(swizzle) / 16;
  return offset ^ (((offset >> 7) & (chunks - 1)) << 4);
}

// wgmma's view of an operand: where it starts, and two strides. Addresses count bytes, all multiples of 16; the panel
// begins at a multiple of 8 of its rows, so that the base offset (bits 49-51) is 0.
TANDEM_HD constexpr uint64_t matrix_descriptor(uint32_t address, uint32_t leading_bytes, uint32_t stride_bytes,
                                               Swizzle swizzle) {
  const uint32_t mode = swizzle == Swizzle::k128Bytes ? 1 : 2;
  const uint32_t low = ((address & 0x3ffff) >> 4) | (leading_bytes >> 4 << 16);
  const uint32_t high = (stride_bytes >> 4) | (mode << 30);
  return static_cast<uint64_t>(high) << 32 | low;
}

// The same operand `bytes` (a multiple of 16) further on, as in another stage: one 32-bit addition. A descriptor
// made anew of a run-time address takes four dependent ones, before each wgmma.
TANDEM_HD constexpr uint64_t advance(uint64_t descriptor, uint32_t bytes) {
  const uint64_t low = static_cast<uint32_t>(descriptor) + bytes / 16;
  return (descriptor & 0xffffffff00000000u) | low;
}

// A matrix of kRows rows of kRowBytes in shared memory, row-major in panels: panel p holds bytes [p * kPanelRowBytes,
// (p + 1) * kPanelRowBytes) of every row, and is one box of a tensor map of this swizzle, {kPanelRowBytes / element,
// kRows}. Its address is a multiple of 8 * kPanelRowBytes.
template <int kRowsOfTile, int kRowBytesOfTile, Swizzle kSwizzleOfTile = Swizzle::k128Bytes>
struct SwizzledTile {
  static constexpr int kRows = kRowsOfTile;
  static constexpr int kRowBytes = kRowBytesOfTile;
  static constexpr Swizzle kSwizzle = kSwizzleOfTile;
  static constexpr int kPanelRowBytes = static_cast<int>(kSwizzle);
  static constexpr int kPanels = kRowBytes / kPanelRowBytes;
  static constexpr int kPanelBytes = kRows * kPanelRowBytes;
  static constexpr int kBytes = kRows * kRowBytes;
  static constexpr int kPatternBytes = 8 * kPanelRowBytes;  // after so many the swizzle repeats
  static_assert(kRowBytes % kPanelRowBytes == 0 && kRows % 8 == 0);

  // Of the 16-byte chunk that holds byte `byte` of row `row`.
  TANDEM_HD static constexpr uint32_t chunk_offset(int row, int byte) {
    constexpr uint32_t kPanelRow = kPanelRowBytes;
    const uint32_t position = static_cast<uint32_t>(byte);
    const uint32_t in_panel = static_cast<uint32_t>(row) * kPanelRow + position % kPanelRow / 16 * 16;
    return position / kPanelRow * kPanelBytes + swizzled(in_panel, kSwizzle);
  }

  // K along the rows: k-step `step` covers 32 bytes of every row (16 bf16, 32 e4m3). Rows `first_row`.. (a multiple of
  // 8) are M or N. The leading offset is not used.
  TANDEM_HD static constexpr uint64_t k_major(uint32_t address, int step, int first_row = 0) {
    const int byte = step * 32;
    const int offset = byte / kPanelRowBytes * kPanelBytes + byte % kPanelRowBytes + first_row * kPanelRowBytes;
    return matrix_descriptor(address + static_cast<uint32_t>(offset), 16, kPatternBytes, kSwizzle);
  }

  // K down the columns, 16-bit elements: k-step `step` covers 16 rows, M or N the bytes of the row from panel
  // `first_panel` on. Leading offset: to the next panel; stride: to the next 8 rows.
  TANDEM_HD static constexpr uint64_t mn_major(uint32_t address, int step, int first_panel = 0) {
    const int offset = first_panel * kPanelBytes + step * 16 * kPanelRowBytes;
    return matrix_descriptor(address + static_cast<uint32_t>(offset), kPanelBytes, kPatternBytes, kSwizzle);
  }
};

}  // namespace tandem::sm90
