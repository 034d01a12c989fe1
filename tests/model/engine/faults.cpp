#include "engine/faults.h"

namespace tandem::model {
namespace {

bool begins_with(const std::string& text, const std::string& prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

bool matches(const Fault& fault, Op op, Place place, Site site, int block, int thread, const Names& names) {
  return fault.op == op && (fault.block < 0 || fault.block == block) && (fault.warp < 0 || fault.warp == thread / 32) &&
         (fault.thread < 0 || fault.thread == thread) &&
         (fault.function.empty() || fault.function == site.function_name()) &&
         (fault.at.empty() || begins_with(names.of(place), fault.at));
}

}  // namespace

std::string Fault::text() const {
  constexpr const char* kVerbs[] = {"skip ", "repeat ", "add ", "delay "};
  std::string text = kVerbs[static_cast<int>(change)];
  if (change == Change::kAdd) text += std::to_string(amount) + " to ";
  text += op_name(op);
  if (!at.empty()) text += " at " + at;
  if (!function.empty()) text += " in " + function;
  if (block >= 0) text += ", block " + std::to_string(block);
  if (warp >= 0) text += ", warp " + std::to_string(warp);
  if (thread >= 0) text += ", thread " + std::to_string(thread);
  if (occurrence >= 0) text += ", number " + std::to_string(occurrence);
  return text;
}

Verdict Faults::judge(Op op, Place place, Site site, int block, int thread, const Names& names) {
  Verdict verdict;
  for (size_t i = 0; i < faults_.size(); ++i) {
    const Fault& fault = faults_[i];
    if (!matches(fault, op, place, site, block, thread, names)) continue;
    const int occurrence = counts_[i][{block, thread}]++;
    if (fault.occurrence >= 0 && fault.occurrence != occurrence) continue;
    applied_ = true;
    if (fault.change == Change::kSkip) verdict.times = 0;
    if (fault.change == Change::kRepeat) verdict.times = 2;
    if (fault.change == Change::kAdd) verdict.add += fault.amount;
    if (fault.change == Change::kDelay) verdict.delay += static_cast<uint64_t>(fault.amount);
  }
  return verdict;
}

}  // namespace tandem::model
