#pragma once

#include <locale>
#include <sstream>
#include <string>

namespace tandem {

// "k.shape[1] is " + 7 + ...: the parts one after the other. Numbers look the same whatever the process's locale.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream stream;
  stream.imbue(std::locale::classic());
  (stream << ... << parts);
  return stream.str();
}

}  // namespace tandem
