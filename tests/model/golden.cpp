#include "golden.h"

#include <cstdlib>
#include <fstream>
#include <stdexcept>

namespace tandem::model {
namespace {

uint32_t read_word(std::ifstream& file) {
  uint32_t word = 0;
  file.read(reinterpret_cast<char*>(&word), sizeof(word));
  return word;
}

bool is_nan(uint32_t bits) {
  return (bits & 0x7fffffff) > 0x7f800000;
}

// Floats in order, as integers: -0 and +0 are both 0.
int64_t ordinal(uint32_t bits) {
  const int64_t magnitude = bits & 0x7fffffff;
  return bits >> 31 != 0 ? -magnitude : magnitude;
}

}  // namespace

std::map<std::string, std::vector<uint32_t>> read_golden(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::map<std::string, std::vector<uint32_t>> cases;
  while (file.peek() != std::ifstream::traits_type::eof()) {
    std::string name(read_word(file), '\0');
    file.read(name.data(), static_cast<std::streamsize>(name.size()));
    std::vector<uint32_t> words(read_word(file));
    file.read(reinterpret_cast<char*>(words.data()), static_cast<std::streamsize>(words.size() * sizeof(uint32_t)));
    if (!file) throw std::runtime_error(path + " is cut short");
    cases[name] = std::move(words);
  }
  return cases;
}

int64_t ulps_between(uint32_t a_bits, uint32_t b_bits) {
  if (is_nan(a_bits) && is_nan(b_bits)) return 0;
  if (is_nan(a_bits) || is_nan(b_bits)) return INT64_MAX;
  return std::llabs(ordinal(a_bits) - ordinal(b_bits));
}

}  // namespace tandem::model
