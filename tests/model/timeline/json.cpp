#include "timeline/spans.h"

namespace tandem::model {
namespace {

// Names hold no characters that JSON escapes.
std::string field(const char* name, const std::string& value) {
  return std::string("\"") + name + "\": \"" + value + "\"";
}
std::string field(const char* name, uint64_t value) {
  return std::string("\"") + name + "\": " + std::to_string(value);
}

std::string event(const Span& span, const char* phase, uint64_t step) {
  return "{" + field("name", span.name) + ", " + field("ph", phase) + ", " + field("ts", step) + ", " +
         field("pid", 0) + ", " + field("tid", span.row);
}

// Copies and products overlap on their row: asynchronous events. The rest nests.
std::string span_json(const Span& span, size_t id) {
  if (span.kind == Span::Kind::kCopy || span.kind == Span::Kind::kProduct) {
    const std::string tail = ", " + field("cat", "async") + ", " + field("id", id) + "}";
    return event(span, "b", span.begin) + tail + ",\n" + event(span, "e", span.end) + tail;
  }
  return event(span, "X", span.begin) + ", " + field("dur", span.end - span.begin) + "}";
}

}  // namespace

std::string timeline_json(const Timeline& timeline) {
  std::string json = "{\"traceEvents\": [\n";
  for (size_t row = 0; row < timeline.rows.size(); ++row) {
    json += "{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": 0, " + field("tid", row) + ", \"args\": {" +
            field("name", timeline.rows[row]) + "}},\n";
  }
  for (size_t i = 0; i < timeline.spans.size(); ++i) json += span_json(timeline.spans[i], i) + ",\n";
  // Ends the list without a comma.
  return json + "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": 0, \"args\": {\"name\": \"block\"}}\n]}\n";
}

}  // namespace tandem::model
