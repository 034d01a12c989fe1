#include "engine/operand.h"

#include <cstring>
#include <vector>

#include "core/dtype.h"

namespace tandem::model {
namespace {

constexpr int kChunkBytes = 16;
constexpr int kAtomRows = 8;  // rows of K-major operands, k of MN-major ones, after which the stride applies

// Of all bit patterns.
template <typename Element>
std::vector<float> values_of(int patterns) {
  std::vector<float> values;
  for (int bits = 0; bits < patterns; ++bits) {
    values.push_back(to_float(Element{static_cast<decltype(Element::bits)>(bits)}));
  }
  return values;
}

uint32_t field(uint64_t bits, int first) {
  return static_cast<uint32_t>(bits >> first & 0x3fff) << 4;
}

// Address bits 4.. XOR bits 7..: as many as the swizzle has chunks.
uint32_t swizzle(uint32_t address, int swizzle_bytes) {
  const uint32_t mask = static_cast<uint32_t>(swizzle_bytes / kChunkBytes - 1);
  return address ^ ((address >> 7 & mask) << 4);
}

}  // namespace

MatrixDescriptor::MatrixDescriptor(uint64_t bits)
    : address(field(bits, 0)),
      leading_bytes(field(bits, 16)),
      stride_bytes(field(bits, 32)),
      base_offset(static_cast<uint32_t>(bits >> 49 & 7)),
      reserved(bits & 0x3ff1c000c000c000u) {
  constexpr int kSwizzleBytes[4] = {16, 128, 64, 32};
  swizzle_bytes = kSwizzleBytes[bits >> 62];
}

std::string refusal(const MatrixDescriptor& d, bool mn_major, int extent) {
  if (d.reserved != 0) return "reserved bits are set";
  if (d.base_offset != 0) return "a base offset, which no layout of this project has";
  const auto width = static_cast<uint32_t>(d.swizzle_bytes);
  if (width > 16 && d.address / 128 % (width / kChunkBytes) != 0) {
    return "it begins inside a repetition of the " + std::to_string(width) + "-byte swizzle, with base offset 0";
  }
  const bool uses_stride = mn_major || extent > kAtomRows;
  const bool uses_leading = width == 16 || (mn_major && extent * 2 > d.swizzle_bytes);
  if (uses_stride && d.stride_bytes == 0)
    return "its stride byte offset is 0: eight rows would be read again and again";
  if (uses_leading && d.leading_bytes == 0) return "its leading byte offset is 0: the same columns would be read again";
  return "";
}

AddressRange range_of(const MatrixDescriptor& d, bool mn_major, int extent) {
  const auto width = static_cast<uint32_t>(d.swizzle_bytes);
  const uint32_t atom = kAtomRows * width;
  if (width == kChunkBytes) return {d.address, d.address + atom};
  const uint32_t first = d.address / atom * atom;
  const uint32_t spans = (static_cast<uint32_t>(extent) * 2 + width - 1) / width;
  const uint32_t last = mn_major ? (spans - 1) * d.leading_bytes + d.stride_bytes
                                 : static_cast<uint32_t>(extent - 1) / kAtomRows * d.stride_bytes;
  return {first, first + last + atom};
}

uint32_t k_major_chunk(const MatrixDescriptor& d, int index, int k_byte) {
  const uint32_t atom = static_cast<uint32_t>(index / kAtomRows) * d.stride_bytes;
  const int row = index % kAtomRows;
  if (d.swizzle_bytes == kChunkBytes) {
    return d.address + atom + static_cast<uint32_t>(k_byte / kChunkBytes) * d.leading_bytes +
           static_cast<uint32_t>(row * kChunkBytes);
  }
  return swizzle(d.address + atom + static_cast<uint32_t>(row * d.swizzle_bytes + k_byte), d.swizzle_bytes);
}

uint32_t mn_major_chunk(const MatrixDescriptor& d, int index, int k) {
  const int byte = index * 2;
  const auto span = static_cast<uint32_t>(byte / d.swizzle_bytes);
  const auto atom = static_cast<uint32_t>(k / kAtomRows);
  const auto inside = static_cast<uint32_t>(k % kAtomRows * d.swizzle_bytes + byte % d.swizzle_bytes);
  if (d.swizzle_bytes == kChunkBytes) return d.address + span * d.stride_bytes + atom * d.leading_bytes + inside;
  return swizzle(d.address + span * d.leading_bytes + atom * d.stride_bytes + inside, d.swizzle_bytes);
}

float decode_element(ElementType type, const uint8_t* bytes) {
  static const std::vector<float> e4m3 = values_of<E4m3>(1 << 8);
  static const std::vector<float> fp16 = values_of<Fp16>(1 << 16);
  if (type == ElementType::kE4m3) return e4m3[bytes[0]];
  uint16_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return type == ElementType::kBf16 ? to_float(Bf16{bits}) : fp16[bits];
}

}  // namespace tandem::model
