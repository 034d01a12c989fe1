#include <algorithm>

#include "timeline/spans.h"

namespace tandem::model {
namespace {

// Later kinds win where several fall on one character.
char mark_of(Span::Kind kind) {
  switch (kind) {
    case Span::Kind::kWait: return '.';
    case Span::Kind::kSoftmax: return 'e';
    case Span::Kind::kWarpProduct: return 'm';
    case Span::Kind::kIssueProduct: return 'M';
    case Span::Kind::kIssueLoad: return 'L';
    case Span::Kind::kIssueStore: return 'S';
    case Span::Kind::kProduct: return '#';
    case Span::Kind::kCopy: return '=';
  }
  return ' ';
}

}  // namespace

std::string timeline_text(const Timeline& timeline, uint64_t first, uint64_t end, int width) {
  end = std::max(first + 1, std::min(end, timeline.steps));
  const auto columns = static_cast<uint64_t>(width);
  std::vector<std::string> lines(timeline.rows.size(), std::string(columns, ' '));
  std::vector<Span> spans = timeline.spans;
  std::stable_sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.kind < b.kind; });
  for (const Span& span : spans) {
    const uint64_t begin = std::max(span.begin, first);
    const uint64_t last = std::min(std::max(span.end, span.begin + 1), end);
    if (begin >= last) continue;
    const auto column = [&](uint64_t step) { return (step - first) * columns / (end - first); };
    for (uint64_t c = column(begin); c <= column(last - 1); ++c) lines[span.row][c] = mark_of(span.kind);
  }
  size_t label = 0;
  for (const std::string& row : timeline.rows) label = std::max(label, row.size());
  std::string text = "steps " + std::to_string(first) + " to " + std::to_string(end) + ", " +
                     std::to_string((end - first + columns - 1) / columns) + " a character\n";
  for (size_t row = 0; row < lines.size(); ++row) {
    text += timeline.rows[row] + std::string(label - timeline.rows[row].size(), ' ') + " |" + lines[row] + "|\n";
  }
  return text +
         ". waits  L, S issues a load, a store  M issues a wgmma  m one warp's mma  e softmax  = copy under way  # "
         "wgmma under way\n";
}

}  // namespace tandem::model
