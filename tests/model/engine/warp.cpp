// Who a thread is, and what the threads of a warp do together.

#include <cstring>

#include "engine/access.h"
#include "engine/api.h"
#include "engine/collective.h"

namespace tandem::model {
namespace {

constexpr uint32_t kRowBytes = 16;  // of an 8x8 matrix of 16-bit elements

// Of a matrix, a lane has elements (lane / 4, lane % 4 * 2) and the next; transposed, row and column change places.
struct Element {
  int row;
  int column;
};
Element element_of(int lane, int which, bool transposed) {
  const Element plain = {lane / 4, lane % 4 * 2 + which};
  return transposed ? Element{plain.column, plain.row} : plain;
}

uint32_t row_offset(const Caller& caller, uint32_t address) {
  if (address % kRowBytes == 0) return own_offset(caller, address);
  Machine::current().fail_by(caller.thread, ReportKind::kMisaligned, caller.op, caller.site,
                             Machine::current().names().of(Place::shared(address)) + " is not a multiple of 16");
}

}  // namespace

int thread_rank() {
  return Machine::current().self().rank;
}
int block_index() {
  return Machine::current().self().block->index;
}
int grid_size() {
  return Machine::current().grid_size();
}

int warp_index(Site site) {
  gather_all(Op::kWarpIndex, {}, site);
  return Machine::current().self().warp->index;
}

bool elect_one(Site site) {
  gather_all(Op::kElect, {}, site);
  const Thread& thread = Machine::current().self();
  return thread.lane() == Machine::current().elected_lane() % thread.warp->size;
}

void trap(Site site) {
  const Thread& thread = Machine::current().self();
  Machine::current().fail(ReportKind::kTrap, who(thread, Machine::current().names()) + " at " + where(site));
}

uint32_t shared_base() {
  const Block& block = *Machine::current().self().block;
  return block.shared.first() | static_cast<uint32_t>(block.cluster_rank) << kWindowBits;
}

uint32_t shuffle(uint32_t value, int source_lane, Site site) {
  check_not_held(value, site);
  return exchange(Op::kShuffle, value, site)[source_lane % kWarpSize];
}

uint32_t ballot(bool predicate, Site site) {
  const auto& predicates = exchange(Op::kVote, predicate ? 1 : 0, site);
  if (Machine::current().judge(Op::kVote, {}, site).times == 0) return 0;
  const int size = Machine::current().self().warp->size;
  uint32_t bits = 0;
  for (int lane = 0; lane < size; ++lane) bits |= predicates[lane] << lane;
  return bits;
}

void warp_sync(Site site) {
  if (Machine::current().judge(Op::kWarpSync, {}, site).times == 0) return;
  if (!gather(Op::kWarpSync, {}, site)) return;
  Machine& machine = Machine::current();
  Warp& warp = *machine.self().warp;
  Clock gathered;
  for (int lane = 0; lane < warp.size; ++lane) machine.release_by(*warp.threads[lane], gathered);
  const auto known = std::make_shared<const Clock>(std::move(gathered));
  for (int lane = 0; lane < warp.size; ++lane) warp.threads[lane]->view.known = known;
  release(warp);
}

// Lanes 8i to 8i + 7 give the rows of matrix i.
void ldmatrix(uint32_t (&registers)[4], uint32_t address, bool transposed, Site site) {
  const auto& addresses = exchange(Op::kLdmatrix, address, site);
  const Thread& thread = Machine::current().self();
  const Caller caller = {thread, Op::kLdmatrix, site};
  for (int matrix = 0; matrix < 4; ++matrix) {
    registers[matrix] = 0;
    for (int which = 0; which < 2; ++which) {
      const Element element = element_of(thread.lane(), which, transposed);
      const uint32_t row = row_offset(caller, addresses[8 * matrix + element.row]);
      uint16_t value;
      std::memcpy(&value, read_shared(caller, *thread.block, row, kRowBytes) + 2 * element.column, sizeof(value));
      registers[matrix] |= static_cast<uint32_t>(value) << (16 * which);
    }
  }
}

void stmatrix(uint32_t address, const uint32_t (&registers)[4], bool transposed, Site site) {
  for (const uint32_t bits : registers) check_not_held(bits, site);
  const auto& addresses = exchange(Op::kStmatrix, address, site);
  const Thread& thread = Machine::current().self();
  const Caller caller = {thread, Op::kStmatrix, site};
  for (int matrix = 0; matrix < 4; ++matrix) {
    for (int which = 0; which < 2; ++which) {
      const Element element = element_of(thread.lane(), which, transposed);
      const uint32_t row = row_offset(caller, addresses[8 * matrix + element.row]);
      const auto value = static_cast<uint16_t>(registers[matrix] >> (16 * which));
      std::memcpy(write_shared(caller, *thread.block, row + 2 * static_cast<uint32_t>(element.column), 2), &value, 2);
    }
  }
}

}  // namespace tandem::model
