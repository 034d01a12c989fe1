#include "engine/names.h"

#include <cstdio>

namespace tandem::model {

void Names::shared(const std::string& name, uint32_t address, uint32_t stride, uint32_t count) {
  shared_.push_back({name, address, stride, count, false});
}
void Names::mbarrier(const std::string& name, uint32_t address, uint32_t count, bool in_turn) {
  shared_.push_back({name, address, 8, count, in_turn});
}
void Names::named_barrier(const std::string& name, int first, int count) {
  named_.push_back({name, static_cast<uint32_t>(first), 1, static_cast<uint32_t>(count), false});
}
void Names::warp_role(const std::string& name, int first_warp, int count) {
  roles_.push_back({name, static_cast<uint32_t>(first_warp), 1, static_cast<uint32_t>(count), false});
}

const Names::Range* Names::find(const std::vector<Range>& ranges, uint32_t number) {
  for (const Range& range : ranges) {
    if (number >= range.first && number < range.first + range.stride * range.count) return &range;
  }
  return nullptr;
}

std::string Names::of(Place place) const {
  if (place.kind == Place::Kind::kNone) return "";
  const bool is_shared = place.kind == Place::Kind::kShared;
  const Range* range = find(is_shared ? shared_ : named_, place.number);
  if (range == nullptr) {
    if (!is_shared) return place.number == 0 ? "block_sync" : "named barrier " + std::to_string(place.number);
    char text[32];
    std::snprintf(text, sizeof(text), "shared 0x%x", place.number);
    return text;
  }
  const uint32_t offset = place.number - range->first;
  std::string name = range->name + "[" + std::to_string(offset / range->stride) + "]";
  if (offset % range->stride != 0) name += " + " + std::to_string(offset % range->stride);
  return name;
}

bool Names::in_turn(uint32_t barrier) const {
  const Range* range = find(shared_, barrier);
  return range != nullptr && range->in_turn;
}

std::string Names::role(int warp) const {
  const Range* range = find(roles_, static_cast<uint32_t>(warp));
  return range != nullptr ? range->name : "warp " + std::to_string(warp);
}

std::vector<std::string> Names::roles() const {
  std::vector<std::string> names;
  for (const Range& range : roles_) names.push_back(range.name);
  return names;
}

}  // namespace tandem::model
