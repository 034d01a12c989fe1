#include "engine/knowledge.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace tandem::model {

void add(Clock& clock, const Knowledge& known) {
  if (known == nullptr) return;
  if (clock.size() < known->size()) clock.resize(known->size());
  const uint32_t* from = known->data();
  uint32_t* to = clock.data();
  const size_t parties = known->size();
  for (size_t i = 0; i < parties; ++i) to[i] = std::max(to[i], from[i]);
}

void add(Clock& clock, Stamp stamp) {
  if (clock.size() <= stamp.party) clock.resize(stamp.party + 1);
  clock[stamp.party] = std::max(clock[stamp.party], stamp.count);
}

Sums::Kept& Sums::place_of(const Knowledge& a, size_t key) {
  const size_t hash = std::hash<const void*>()(a.get()) / 16 * 31 + key;
  return kept_[hash % kept_.size()];
}

Knowledge Sums::of(const Knowledge& a, const Knowledge& b) {
  if (b == nullptr || a == b) return a;
  if (a == nullptr) return b;
  Kept& kept = place_of(a, std::hash<const void*>()(b.get()) / 16);
  if (kept.a == a && kept.b == b) return kept.sum;
  auto sum = std::make_shared<Clock>(*a);
  add(*sum, b);
  kept = {a, b, {}, *sum == *a ? a : std::move(sum)};
  return kept.sum;
}

Knowledge Sums::of(const Knowledge& a, Stamp b) {
  if (View{a, {}}.covers(b)) return a;
  Kept& kept = place_of(a, b.party * size_t{64} + b.count);
  if (kept.a == a && kept.b == nullptr && kept.stamp.party == b.party && kept.stamp.count == b.count) return kept.sum;
  auto sum = a == nullptr ? std::make_shared<Clock>() : std::make_shared<Clock>(*a);
  add(*sum, b);
  kept = {a, nullptr, b, std::move(sum)};
  return kept.sum;
}

}  // namespace tandem::model
