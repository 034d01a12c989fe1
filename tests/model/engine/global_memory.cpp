#include "engine/global_memory.h"

#include <cstring>

namespace tandem::model {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kGuardBytes = 1 << 16;  // an index that is wrong by a row or a tile lands in it

}  // namespace

void* GlobalMemory::allocate(const std::string& name, size_t bytes) {
  const size_t room = bytes + 2 * kGuardBytes + kAlignment;
  auto storage = std::make_unique<unsigned char[]>(room);
  const uintptr_t first = reinterpret_cast<uintptr_t>(storage.get()) + kGuardBytes;
  const uintptr_t address = (first + kAlignment - 1) / kAlignment * kAlignment;
  std::memset(storage.get(), 0xff, room);
  allocations_[address] = {name, std::move(storage), bytes, std::vector<Writer>(bytes, kNobody), true, {}};
  return reinterpret_cast<void*>(address);
}

void* GlobalMemory::upload_bytes(const std::string& name, const void* data, size_t bytes) {
  void* memory = allocate(name, bytes);
  if (bytes > 0) std::memcpy(memory, data, bytes);
  mark_written(memory, bytes);
  allocations_.at(reinterpret_cast<uintptr_t>(memory)).changes = false;
  return memory;
}

const std::pair<const uintptr_t, GlobalMemory::Allocation>* GlobalMemory::below(const void* pointer) const {
  auto next = allocations_.upper_bound(reinterpret_cast<uintptr_t>(pointer));
  if (next == allocations_.begin()) return nullptr;
  return &*std::prev(next);
}

std::string GlobalMemory::out_of_bounds(const void* pointer, size_t bytes) const {
  const auto* found = below(pointer);
  if (found == nullptr) return "a pointer into no allocation";
  const size_t offset = reinterpret_cast<uintptr_t>(pointer) - found->first;
  if (offset + bytes <= found->second.bytes) return "";
  return describe(pointer) + ", which has " + std::to_string(found->second.bytes) + " bytes";
}

std::string GlobalMemory::unwritten(const void* pointer, size_t bytes) const {
  const auto* found = below(pointer);
  const size_t offset = reinterpret_cast<uintptr_t>(pointer) - found->first;
  const Writer* written = found->second.written.data() + offset;
  const void* first = bytes == 0 ? nullptr : std::memchr(written, kNobody, bytes);
  if (first == nullptr) return "";
  return describe(static_cast<const char*>(pointer) + (static_cast<const uint8_t*>(first) - written));
}

void GlobalMemory::mark_written(const void* pointer, size_t bytes) {
  if (bytes == 0) return;
  const uintptr_t address = below(pointer)->first;
  const size_t offset = reinterpret_cast<uintptr_t>(pointer) - address;
  std::memset(allocations_.at(address).written.data() + offset, writer_, bytes);
}

std::string GlobalMemory::written_by_earlier_grid(const void* pointer, size_t bytes) const {
  const auto* found = below(pointer);
  const size_t offset = reinterpret_cast<uintptr_t>(pointer) - found->first;
  for (size_t i = offset; i < offset + bytes; ++i) {
    const Writer writer = found->second.written[i];
    if (writer > kHost && writer != writer_) return describe(static_cast<const char*>(pointer) + (i - offset));
  }
  return "";
}

GlobalMemory::Allocation& GlobalMemory::of(const void* pointer, uint64_t& offset) {
  const uintptr_t address = below(pointer)->first;
  offset = reinterpret_cast<uintptr_t>(pointer) - address;
  return allocations_.at(address);
}

Conflict GlobalMemory::read(const void* pointer, size_t bytes, const Accessor& by) {
  uint64_t offset;
  Allocation& allocation = of(pointer, offset);
  if (!allocation.changes) return {};
  return allocation.history.read(offset, bytes, by);
}

Conflict GlobalMemory::write(const void* pointer, size_t bytes, const Accessor& by) {
  uint64_t offset;
  Allocation& allocation = of(pointer, offset);
  allocation.changes = true;
  return allocation.history.write(offset, bytes, by);
}

void GlobalMemory::sum_in_order(const void* pointer, size_t bytes) {
  summed_in_order_[reinterpret_cast<uintptr_t>(pointer)] = bytes;
}

bool GlobalMemory::is_summed_in_order(const void* pointer) const {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const auto next = summed_in_order_.upper_bound(address);
  return next != summed_in_order_.begin() && address < std::prev(next)->first + std::prev(next)->second;
}

// The end of a grid orders all that it has done before the next.
void GlobalMemory::begin_grid() {
  for (auto& [address, allocation] : allocations_) allocation.history.clear();
  flags_.clear();
  writer_ = static_cast<Writer>(kHost + ++grids_ % 200);
}

std::string GlobalMemory::describe(const void* pointer) const {
  const auto* found = below(pointer);
  if (found == nullptr) return "a pointer into no allocation";
  const size_t offset = reinterpret_cast<uintptr_t>(pointer) - found->first;
  return found->second.name + " + " + std::to_string(offset);
}

}  // namespace tandem::model
