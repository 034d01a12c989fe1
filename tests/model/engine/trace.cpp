#include "engine/trace.h"

namespace tandem::model {

void Trace::record(const Event& event, bool worth_keeping) {
  const auto mix = [this](uint64_t value) { hash_ = (hash_ ^ value) * 0x100000001b3u; };
  mix(event.step);
  mix(static_cast<uint64_t>(event.block) << 32 | static_cast<uint32_t>(event.thread));
  mix(static_cast<uint64_t>(event.op) << 8 | static_cast<uint64_t>(event.moment));
  mix(event.place.number);
  if (keep_ && worth_keeping) events_.push_back(event);
}

}  // namespace tandem::model
