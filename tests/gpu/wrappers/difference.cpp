#include <cmath>
#include <cstdio>

#include "wrappers/run.h"

namespace tandem::sm90::wrappers {
namespace {

bool close(const NamedCase& test, uint32_t want_bits, uint32_t got_bits) {
  if (want_bits == got_bits) return true;
  if (test.kind == Kind::kBits) return false;
  const double want = float_of(want_bits);
  const double got = float_of(got_bits);
  if (std::isnan(want) || std::isnan(got)) return std::isnan(want) && std::isnan(got);
  if (std::isinf(want) || std::isinf(got)) return want == got;
  return std::fabs(got - want) <= test.absolute + test.relative * std::fabs(want);
}

}  // namespace

std::string difference(const NamedCase& test, const CaseResult& result) {
  if (!result.error.empty()) return result.error;
  if (result.want.size() != result.got.size()) return "sizes differ";
  size_t bad = 0;
  size_t first = 0;
  for (size_t i = 0; i < result.want.size(); ++i) {
    if (close(test, result.want[i], result.got[i])) continue;
    if (bad++ == 0) first = i;
  }
  if (bad == 0) return "";
  char text[200];
  std::snprintf(text, sizeof(text), "%zu of %zu words differ; word %zu: want %08x (%g), got %08x (%g)", bad,
                result.want.size(), first, result.want[first], static_cast<double>(float_of(result.want[first])),
                result.got[first], static_cast<double>(float_of(result.got[first])));
  return text;
}

}  // namespace tandem::sm90::wrappers
