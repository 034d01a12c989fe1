#include "progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace tandem::cli {
namespace {

constexpr int64_t kBarWidth = 30;
constexpr int kLabelWidth = 40;

}  // namespace

Progress::Progress(int64_t steps) : steps_(std::max<int64_t>(steps, 1)), on_terminal_(::isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  clear();
}

void Progress::show(int64_t done, const std::string& label) {
  if (!on_terminal_) return;
  const auto filled = static_cast<size_t>(kBarWidth * std::min(done, steps_) / steps_);
  const std::string bar = std::string(filled, '#') + std::string(static_cast<size_t>(kBarWidth) - filled, '.');
  std::fprintf(stderr, "\r[%s] %lld/%lld %-*.*s", bar.c_str(), static_cast<long long>(done),
               static_cast<long long>(steps_), kLabelWidth, kLabelWidth, label.c_str());
  std::fflush(stderr);
}

void Progress::clear() {
  if (on_terminal_) std::fputs("\r\x1b[K", stderr);
}

}  // namespace tandem::cli
