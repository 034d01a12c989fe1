#pragma once

#include <string>

namespace tandem::model {

// A place in the sources. As the default argument `Site site = Site::here()` it is the caller's.
struct Site {
  const char* file = "";
  int line = 0;
  const char* function = "";

  static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE(),
                             const char* function = __builtin_FUNCTION()) {
    return {file, line, function};
  }
  // Without template arguments.
  std::string function_name() const {
    const std::string name = function;
    return name.substr(0, name.find('<'));
  }
  bool operator==(const Site& other) const { return file == other.file && line == other.line; }
};

}  // namespace tandem::model
