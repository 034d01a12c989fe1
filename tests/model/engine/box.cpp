#include "engine/box.h"

#include <algorithm>
#include <cstring>

#include "core/dtype.h"

namespace tandem::model {
namespace {

constexpr uint32_t kChunkBytes = 16;
constexpr uint32_t kSharedAlignment = 128;

[[noreturn]] void fail(const Caller& caller, ReportKind kind, const std::string& what) {
  Machine::current().fail_by(caller.thread, kind, caller.op, caller.site, what);
}

// Of a 16-byte chunk: address bits 4.. XOR bits 7..; two of them in the 64-byte mode, three in the 128-byte mode.
uint32_t swizzled_address(uint32_t address, sm90::Swizzle swizzle) {
  const uint32_t mask = static_cast<uint32_t>(swizzle) / kChunkBytes - 1;
  return address ^ ((address >> 7 & mask) << 4);
}

// The part of a box's row that lies in the tensor: bytes [begin, end) of the row, and where `begin` is in memory.
struct RowPart {
  uint32_t begin = 0;
  uint32_t end = 0;
  const uint8_t* gmem = nullptr;
};

RowPart part_inside(const Box& box, uint32_t row) {
  const TensorMapSpec& spec = box.spec;
  const auto* gmem = static_cast<const uint8_t*>(spec.base);
  for (int axis = 1; axis < spec.rank; ++axis) {
    const auto size = static_cast<uint32_t>(spec.box[axis]);
    const int64_t position = box.corner.at[axis] + static_cast<int64_t>(row % size);
    row /= size;
    if (position < 0 || position >= spec.dims[axis]) return {};
    gmem += position * spec.strides_bytes[axis];
  }
  const int64_t element_bytes = dtype_bytes(spec.dtype);
  const int64_t first = box.corner.at[0];
  const int64_t begin = std::max<int64_t>(0, -first);
  const int64_t end = std::min<int64_t>(spec.box[0], spec.dims[0] - first);
  if (begin >= end) return {};
  return {static_cast<uint32_t>(begin * element_bytes), static_cast<uint32_t>(end * element_bytes),
          gmem + (first + begin) * element_bytes};
}

// Calls visit(shared address, offset in the row) for the chunks of a row.
template <typename Visit>
void for_each_chunk(const Box& box, uint32_t row, Visit visit) {
  for (uint32_t offset = 0; offset < box.row_bytes(); offset += kChunkBytes) {
    visit(swizzled_address(box.smem + row * box.row_bytes() + offset, box.spec.swizzle), offset);
  }
}

}  // namespace

uint32_t Box::row_bytes() const {
  return static_cast<uint32_t>(spec.box[0] * dtype_bytes(spec.dtype));
}

uint32_t Box::rows() const {
  uint32_t rows = 1;
  for (int axis = 1; axis < spec.rank; ++axis) rows *= static_cast<uint32_t>(spec.box[axis]);
  return rows;
}

const TensorMapSpec& check_map(const Caller& caller, const sm90::ptx::TensorMap& map) {
  if (reinterpret_cast<uintptr_t>(&map) % 64 != 0) {
    fail(caller, ReportKind::kMisaligned, "the tensor map does not lie at a multiple of 64 bytes");
  }
  const TensorMapSpec* spec = Machine::current().tensor_map(map);
  if (spec == nullptr) fail(caller, ReportKind::kTensorMap, "this is no tensor map");
  const Status status = check_tensor_map(*spec);
  if (!status.is_ok()) fail(caller, ReportKind::kTensorMap, status.message());
  return *spec;
}

Box check_box(const Caller& caller, const sm90::ptx::TensorMap& map, uint32_t smem, Coordinates corner) {
  const Box box = {check_map(caller, map), smem, corner};
  if (box.spec.rank != corner.rank) {
    fail(caller, ReportKind::kTensorMap,
         "the map has " + std::to_string(box.spec.rank) + " axes, the instruction " + std::to_string(corner.rank));
  }
  if (box.row_bytes() != static_cast<uint32_t>(box.spec.swizzle)) {
    fail(caller, ReportKind::kTensorMap, "a row of the box is narrower than the swizzle, whose pitch is not modelled");
  }
  if (smem % kSharedAlignment != 0) {
    fail(caller, ReportKind::kMisaligned,
         Machine::current().names().of(Place::shared(smem)) + " is no multiple of 128");
  }
  return box;
}

void check_store_corner(const Caller& caller, Coordinates corner) {
  for (int axis = 0; axis < corner.rank; ++axis) {
    if (corner.at[axis] >= 0) continue;
    fail(caller, ReportKind::kTensorMap,
         "a store's coordinate " + std::to_string(axis) + " is negative, " + std::to_string(corner.at[axis]));
  }
}

void load_box(const Caller& caller, const Box& box, Block& block) {
  std::vector<uint8_t> data(box.row_bytes());
  for (uint32_t row = 0; row < box.rows(); ++row) {
    std::fill(data.begin(), data.end(), 0);
    const RowPart part = part_inside(box, row);
    const uint32_t bytes = part.end - part.begin;
    if (bytes > 0) std::memcpy(data.data() + part.begin, read_global(caller, part.gmem, bytes), bytes);
    for_each_chunk(box, row, [&](uint32_t address, uint32_t offset) {
      std::memcpy(write_shared_async(caller, block, address, kChunkBytes), data.data() + offset, kChunkBytes);
    });
  }
}

std::vector<uint8_t> gather_box(const Caller& caller, const Box& box) {
  std::vector<uint8_t> data(box.bytes());
  for (uint32_t row = 0; row < box.rows(); ++row) {
    uint8_t* target = data.data() + row * box.row_bytes();
    for_each_chunk(box, row, [&](uint32_t address, uint32_t offset) {
      std::memcpy(target + offset, read_shared_async(caller, *caller.thread.block, address, kChunkBytes), kChunkBytes);
    });
  }
  return data;
}

void store_box(const Caller& caller, const Box& box, const std::vector<uint8_t>& data) {
  for (uint32_t row = 0; row < box.rows(); ++row) {
    const RowPart part = part_inside(box, row);
    const uint32_t bytes = part.end - part.begin;
    if (bytes == 0) continue;
    uint8_t* target = write_global(caller, const_cast<uint8_t*>(part.gmem), bytes);
    std::memcpy(target, data.data() + row * box.row_bytes() + part.begin, bytes);
  }
}

}  // namespace tandem::model
