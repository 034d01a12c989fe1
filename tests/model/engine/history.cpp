#include "engine/history.h"

#include <algorithm>

namespace tandem::model {
namespace {

bool same(Stamp a, Stamp b) {
  return a.party == b.party && a.count == b.count;
}

bool knows_all(const Accessor& by, const Access& earlier) {
  for (uint32_t i = 0; i < earlier.parties; ++i) {
    if (!by.knows({earlier.stamp.party + i, earlier.stamp.count})) return false;
  }
  return true;
}

bool lacks_fence(const Accessor& by, const Access& write) {
  if (by.proxy == Proxy::kOrdinary || write.proxy == Proxy::kAsync) return false;
  return write.fenced == 0 || !by.knows({write.stamp.party, write.fenced});
}

Access as_access(const Accessor& by, uint16_t bytes) {
  return {by.stamp, by.parties, 0, bytes, by.proxy, by.atomic, by.op, by.thread, by.site};
}

// Of the accesses that a write has followed, only atomic ones that it does not know of matter any longer.
void forget(std::vector<Access>& accesses, const Accessor& by, uint16_t bytes) {
  for (Access& access : accesses) {
    if (!access.atomic || knows_all(by, access)) access.bytes &= static_cast<uint16_t>(~bytes);
  }
  const auto gone = [](const Access& access) { return access.bytes == 0; };
  accesses.erase(std::remove_if(accesses.begin(), accesses.end(), gone), accesses.end());
}

void keep(std::vector<Access>& accesses, const Accessor& by, uint16_t bytes) {
  for (Access& access : accesses) {
    if (access.stamp.party != by.stamp.party || access.atomic != by.atomic) continue;
    const bool replaces = (access.bytes & ~bytes) == 0;
    if (!replaces && !same(access.stamp, by.stamp)) continue;
    access = as_access(by, access.bytes | bytes);
    return;
  }
  accesses.push_back(as_access(by, bytes));
}

}  // namespace

bool Accessor::knows(Stamp earlier) const {
  for (size_t i = 0; i < view_count; ++i) {
    if (!views[i].covers(earlier)) return false;
  }
  return true;
}

template <typename Visit>
Conflict History::for_each_cell(uint64_t address, size_t bytes, Visit visit) {
  const uint64_t end = address + bytes;
  if (cells_.size() * kCellBytes < end) cells_.resize((end + kCellBytes - 1) / kCellBytes);
  while (address < end) {
    const uint64_t cell = address / kCellBytes;
    const auto first = static_cast<uint32_t>(address % kCellBytes);
    const auto count = static_cast<uint32_t>(std::min<uint64_t>(kCellBytes - first, end - address));
    const auto mask = static_cast<uint16_t>(((1u << count) - 1) << first);
    const Conflict conflict = visit(cells_[cell], mask);
    if (conflict.earlier != nullptr) return conflict;
    address += count;
  }
  return {};
}

Conflict History::read(uint64_t address, size_t bytes, const Accessor& by) {
  return for_each_cell(address, bytes, [&](Cell& cell, uint16_t mask) -> Conflict {
    for (const Access& write : cell.writes) {
      if ((write.bytes & mask) == 0) continue;
      if (!(write.atomic && by.atomic) && !knows_all(by, write)) return {&write, true, false};
      if (lacks_fence(by, write)) return {&write, true, true};
    }
    keep(cell.reads, by, mask);
    return {};
  });
}

Conflict History::write(uint64_t address, size_t bytes, const Accessor& by) {
  return for_each_cell(address, bytes, [&](Cell& cell, uint16_t mask) -> Conflict {
    for (const Access& write : cell.writes) {
      if ((write.bytes & mask) == 0 || (write.atomic && by.atomic)) continue;
      if (!knows_all(by, write)) return {&write, true, false};
    }
    for (const Access& read : cell.reads) {
      if ((read.bytes & mask) == 0 || (read.atomic && by.atomic)) continue;
      if (!knows_all(by, read)) return {&read, false, false};
    }
    forget(cell.reads, by, mask);
    forget(cell.writes, by, mask);
    keep(cell.writes, by, mask);
    return {};
  });
}

void History::fence(uint64_t address, size_t bytes, Stamp writer) {
  for_each_cell(address, bytes, [&](Cell& cell, uint16_t mask) -> Conflict {
    for (Access& write : cell.writes) {
      if ((write.bytes & mask) != 0 && write.stamp.party == writer.party && write.fenced == 0) {
        write.fenced = writer.count;
      }
    }
    return {};
  });
}

}  // namespace tandem::model
