#include "engine/register_file.h"

#include <algorithm>

#include "engine/api.h"
#include "engine/collective.h"

// setmaxnreg: dec gives registers to the block, inc waits until the block has enough.
namespace tandem::model {
namespace {

// Wakes everyone who waits for registers; who finds too few waits again.
void wake_waiting(Block& block) {
  for (const auto& thread : block.threads) {
    if (!thread->exited && thread->wait.kind == Wait::Kind::kRegisters) Machine::current().wake(*thread);
  }
}

}  // namespace

int registers_at_launch(int threads) {
  constexpr int kRegisters = 64 * 1024;
  return std::min(kRegisters / threads / 8 * 8, 255);
}

// The warps of a warpgroup come one by one; each moves its own registers.
void set_max_registers(int registers, bool increase, Site site) {
  Machine& machine = Machine::current();
  const Verdict verdict = machine.judge(Op::kSetMaxRegisters, {}, site);
  if (verdict.times == 0) return;
  registers += static_cast<int>(verdict.add);
  Thread& thread = machine.self();
  Block& block = *thread.block;
  int& held = thread.warp->registers;
  const bool last = gather(Op::kSetMaxRegisters, {}, site);
  if (!last) return;
  if (increase ? registers < held : registers > held) {
    machine.fail_here(ReportKind::kRegisterBudget, Op::kSetMaxRegisters, site,
                      "from " + std::to_string(held) + " to " + std::to_string(registers) + " is no " +
                          (increase ? "increase" : "decrease"));
  }
  const int wanted = (registers - held) * thread.warp->size;
  while (wanted > block.spare_registers) {
    const auto number = static_cast<uint32_t>(registers);
    machine.suspend({Wait::Kind::kRegisters, Op::kSetMaxRegisters, {}, number, site});
  }
  block.spare_registers -= wanted;
  held = registers;
  release(*thread.warp);
  if (wanted < 0) wake_waiting(block);
}

}  // namespace tandem::model
