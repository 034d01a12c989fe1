#pragma once

#include <string>

namespace tandem::model {

// What the model finds wrong with a kernel. docs/MODEL.md says what each means.
enum class ReportKind {
  kDeadlock,            // nobody can go on
  kTouchedAccumulator,  // registers of a wgmma under way were read or written
  kMissingWgmmaFence,   // registers changed without wgmma_fence() before the wgmma that uses them
  kUnwrittenRead,       // of shared or global memory
  kMissingProxyFence,   // the copy engine or wgmma reads ordinary stores that their thread has not fenced
  kRace,                // accesses of the same memory, one of them a write, that no barrier or wait orders
  kMissingGridWait,     // an access of what the grid before has written, without waiting for it
  kOutOfBounds,         // of shared memory, or of a global allocation
  kMisaligned,          // an access, or an address that the copy engine asks to be aligned
  kOverArrival,         // more arrivals than a barrier's phase takes
  kWrongPhase,          // a thread has waited for a phase twice, or has missed one
  kWrongByteCount,      // the bytes announced to an mbarrier are not those that came
  kBarrierMisuse,       // not initialized, initialized twice, overwritten; thread counts that differ
  kCollective,          // not all threads of the warp or warpgroup came to the same call
  kDescriptor,          // a matrix descriptor that the hardware refuses, or that no layout means
  kTensorMap,           // a tensor map or box that the copy engine refuses
  kUnfinishedAtExit,    // a block ends while its stores, copies or products are not waited for
  kRegisterBudget,      // setmaxnreg asks for registers that the block does not have
  kTrap,                // the kernel called trap()
};

const char* kind_name(ReportKind kind);

struct Report {
  ReportKind kind;
  std::string message;
};

// Unwinds the fiber, or the scheduler, that has filed the run's report.
struct Stopped {};

}  // namespace tandem::model
