#pragma once

#include <cstdint>
#include <string>
#include <vector>

// wgmma's operands in shared memory, by the PTX ISA: Asynchronous Warpgroup Level Matrix Instructions: Shared Memory
// Matrix Layout, Matrix Descriptor Format, Strides.
namespace tandem::model {

enum class ElementType { kBf16, kFp16, kE4m3 };

struct WgmmaShape {
  ElementType element = ElementType::kBf16;
  int n = 0;
  bool a_mn_major = false;
  bool b_mn_major = false;
  int k() const { return element == ElementType::kE4m3 ? 32 : 16; }
};

struct MatrixDescriptor {
  explicit MatrixDescriptor(uint64_t bits);
  uint32_t address;
  uint32_t leading_bytes;
  uint32_t stride_bytes;
  uint32_t base_offset;
  int swizzle_bytes;  // 16: none
  uint64_t reserved;  // bits that must be zero
};

// Empty, or what is wrong with a descriptor of an operand of `extent` rows (of M or N).
std::string refusal(const MatrixDescriptor& descriptor, bool mn_major, int extent);

// From where to where an operand of `extent` rows lies; a swizzled one, which begins at a whole repetition of the
// swizzle.
struct AddressRange {
  uint32_t begin, end;
};
AddressRange range_of(const MatrixDescriptor& descriptor, bool mn_major, int extent);

// Where the 16-byte chunk lies that holds element (index of M or N, byte of K). K-major: 16 bytes of K of one index;
// MN-major: 8 indices of one k.
uint32_t k_major_chunk(const MatrixDescriptor& descriptor, int index, int k_byte);
uint32_t mn_major_chunk(const MatrixDescriptor& descriptor, int index, int k);

float decode_element(ElementType type, const uint8_t* bytes);

}  // namespace tandem::model
