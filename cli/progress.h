#pragma once

#include <cstdint>
#include <string>

namespace tandem::cli {

// A bar on stderr if that is a terminal, else nothing. It goes away with the object.
class Progress {
 public:
  explicit Progress(int64_t steps);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(int64_t done, const std::string& label);
  void clear();  // before other output

 private:
  int64_t steps_;
  bool on_terminal_;
};

}  // namespace tandem::cli
