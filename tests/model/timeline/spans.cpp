#include "timeline/spans.h"

#include <algorithm>
#include <deque>
#include <map>

namespace tandem::model {
namespace {

constexpr const char* kCopyRow = "copy engine";

// Reads a block's events in order and closes spans as their ends come.
class Reader {
 public:
  Reader(const Names& names, Timeline& timeline) : names_(names), timeline_(timeline) {
    for (const std::string& role : names.roles()) row_of(role);
    row_of(kCopyRow);
  }

  void read(const Event& event) {
    switch (event.op) {
      case Op::kBarrierWait:
      case Op::kNamedSync:
      case Op::kWgmmaWait:
      case Op::kBulkWait:
      case Op::kBulkWaitRead: return wait(event);
      case Op::kExponential: return softmax(event);
      case Op::kMma: return warp_product(event);
      case Op::kWgmma: return issue_product(event);
      case Op::kProductDone: return finish(products_, event.thread / 128, Span::Kind::kProduct, event.step);
      case Op::kTmaLoad:
      case Op::kBulkLoad: return issue_copy(event, Span::Kind::kIssueLoad, loads_);
      case Op::kTmaStore:
      case Op::kBulkStore:
      case Op::kBulkReduce: return issue_copy(event, Span::Kind::kIssueStore, stores_);
      case Op::kCopyDone: return finish(loads_, static_cast<int>(event.place.number), Span::Kind::kCopy, event.step);
      case Op::kStoreDone: return finish(stores_, static_cast<int>(event.place.number), Span::Kind::kCopy, event.step);
      default: return;
    }
  }

 private:
  struct Open {
    size_t row;
    std::string name;
    uint64_t begin;
  };
  // Operations under way, oldest first, by place or warpgroup.
  using Pending = std::map<int, std::deque<Open>>;

  size_t row_of(const std::string& name) {
    const auto found = std::find(timeline_.rows.begin(), timeline_.rows.end(), name);
    if (found != timeline_.rows.end()) return static_cast<size_t>(found - timeline_.rows.begin());
    timeline_.rows.push_back(name);
    return timeline_.rows.size() - 1;
  }
  // One warp speaks for a role.
  bool speaks(const Event& event) const {
    const int warp = event.thread / 32;
    return warp == 0 || names_.role(warp) != names_.role(warp - 1);
  }
  size_t role_row(const Event& event) { return row_of(names_.role(event.thread / 32)); }
  void add(Span::Kind kind, size_t row, const std::string& name, uint64_t begin, uint64_t end) {
    timeline_.spans.push_back({kind, row, name, begin, end});
  }

  void wait(const Event& event) {
    if (!speaks(event)) return;
    if (event.moment == Moment::kBegin) {
      const std::string place = names_.of(event.place);
      waits_[event.thread] = {role_row(event), "wait for " + (place.empty() ? op_name(event.op) : place), event.step};
      return;
    }
    const auto open = waits_.find(event.thread);
    if (event.moment != Moment::kEnd || open == waits_.end()) return;
    if (open->second.begin < event.step) {
      add(Span::Kind::kWait, open->second.row, open->second.name, open->second.begin, event.step);
    }
    waits_.erase(open);
    softmax_.erase(event.thread / 32);
  }

  // Exponentials of a warp that no wait separates are one span.
  void softmax(const Event& event) {
    if (!speaks(event)) return;
    const int warp = event.thread / 32;
    const auto open = softmax_.find(warp);
    if (open != softmax_.end()) {
      timeline_.spans[open->second].end = event.step + 1;
      return;
    }
    softmax_[warp] = timeline_.spans.size();
    add(Span::Kind::kSoftmax, role_row(event), "softmax", event.step, event.step + 1);
  }

  void warp_product(const Event& event) {
    if (speaks(event)) add(Span::Kind::kWarpProduct, role_row(event), "mma", event.step, event.step + 1);
  }

  void issue_product(const Event& event) {
    if (event.thread / 32 % 4 != 0) return;
    const int warpgroup = event.thread / 128;
    const size_t row = row_of("tensor cores, " + names_.role(event.thread / 32));
    // Perfetto gives asynchronous events of one name one track.
    products_[warpgroup].push_back({row, "wgmma of " + names_.role(event.thread / 32), event.step});
    add(Span::Kind::kIssueProduct, role_row(event), "issue wgmma", event.step, event.step + 1);
    softmax_.erase(event.thread / 32);
  }

  void issue_copy(const Event& event, Span::Kind kind, Pending& pending) {
    if (event.moment != Moment::kBegin) return;
    const std::string name = std::string(op_name(event.op)) + " " + names_.of(event.place);
    pending[static_cast<int>(event.place.number)].push_back({row_of(kCopyRow), name, event.step});
    add(kind, role_row(event), name, event.step, event.step + 1);
  }

  void finish(Pending& pending, int key, Span::Kind kind, uint64_t step) {
    std::deque<Open>& open = pending[key];
    if (open.empty()) return;
    add(kind, open.front().row, open.front().name, open.front().begin, step);
    open.pop_front();
  }

  const Names& names_;
  Timeline& timeline_;
  std::map<int, Open> waits_;      // by thread
  std::map<int, size_t> softmax_;  // by warp: its open span
  Pending products_, loads_, stores_;
};

// Lanes that come to a wait last are at their exponentials when it begins. In a row, spans lie in each other or apart.
void end_softmax_at_waits(Timeline& timeline) {
  for (Span& softmax : timeline.spans) {
    if (softmax.kind != Span::Kind::kSoftmax) continue;
    for (const Span& wait : timeline.spans) {
      const bool across = softmax.begin < wait.begin && wait.begin < softmax.end && softmax.end < wait.end;
      if (wait.kind == Span::Kind::kWait && wait.row == softmax.row && across) softmax.end = wait.begin;
    }
  }
}

}  // namespace

Timeline make_timeline(const std::vector<Event>& events, const Names& names, int block, uint64_t steps) {
  Timeline timeline;
  timeline.steps = steps;
  Reader reader(names, timeline);
  for (const Event& event : events) {
    if (event.block == block) reader.read(event);
  }
  end_softmax_at_waits(timeline);
  return timeline;
}

}  // namespace tandem::model
