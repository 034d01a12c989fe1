#include "waits/kept.h"

#include <cstddef>
#include <vector>

namespace tandem::model {
namespace {

int g_left_out = -1;
std::vector<bool> g_come_to;

}  // namespace

bool kept(int place) {
  const auto index = static_cast<size_t>(place);
  if (index >= g_come_to.size()) g_come_to.resize(index + 1);
  g_come_to[index] = true;
  return place != g_left_out;
}

void leave_out(int place) {
  g_left_out = place;
  g_come_to.clear();
}

bool come_to(int place) {
  const auto index = static_cast<size_t>(place);
  return place >= 0 && index < g_come_to.size() && g_come_to[index];
}

}  // namespace tandem::model
