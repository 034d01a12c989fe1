#include "engine/report.h"

namespace tandem::model {

const char* kind_name(ReportKind kind) {
  switch (kind) {
    case ReportKind::kDeadlock: return "deadlock";
    case ReportKind::kTouchedAccumulator: return "touched accumulator";
    case ReportKind::kMissingWgmmaFence: return "missing wgmma fence";
    case ReportKind::kUnwrittenRead: return "unwritten read";
    case ReportKind::kMissingProxyFence: return "missing proxy fence";
    case ReportKind::kRace: return "race";
    case ReportKind::kMissingGridWait: return "missing grid wait";
    case ReportKind::kOutOfBounds: return "out of bounds";
    case ReportKind::kMisaligned: return "misaligned";
    case ReportKind::kOverArrival: return "over-arrival";
    case ReportKind::kWrongPhase: return "wrong phase";
    case ReportKind::kWrongByteCount: return "wrong byte count";
    case ReportKind::kBarrierMisuse: return "barrier misuse";
    case ReportKind::kCollective: return "collective";
    case ReportKind::kDescriptor: return "descriptor";
    case ReportKind::kTensorMap: return "tensor map";
    case ReportKind::kUnfinishedAtExit: return "unfinished at exit";
    case ReportKind::kRegisterBudget: return "register budget";
    case ReportKind::kTrap: return "trap";
  }
  return "";
}

}  // namespace tandem::model
