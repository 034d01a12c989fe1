// Writes what every wrapper case gives on this GPU, for the host model to be compared with.
//
//   wrapper_bits --seed S --output FILE
//
// FILE, little-endian, case after case: length of the name (u32), the name, number of words (u32), the words (u32
// each).

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "cuda_check.h"
#include "wrappers/run.h"

namespace {

using tandem::sm90::wrappers::CaseResult;
using tandem::sm90::wrappers::NamedCase;

bool write_words(std::FILE* file, const void* data, size_t bytes) {
  return std::fwrite(data, 1, bytes, file) == bytes;
}

bool write_case(std::FILE* file, const std::string& name, const CaseResult& result) {
  const auto name_bytes = static_cast<uint32_t>(name.size());
  const auto words = static_cast<uint32_t>(result.got.size());
  return write_words(file, &name_bytes, 4) && write_words(file, name.data(), name_bytes) &&
         write_words(file, &words, 4) && write_words(file, result.got.data(), words * size_t{4});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5 || std::strcmp(argv[1], "--seed") != 0 || std::strcmp(argv[3], "--output") != 0) {
    std::fprintf(stderr, "wrapper_bits --seed S --output FILE\n");
    return 2;
  }
  if (const std::string reason = tandem::gpu_test::missing_gpu(); !reason.empty()) {
    std::fprintf(stderr, "wrapper_bits: %s\n", reason.c_str());
    return 1;
  }
  const uint64_t seed = std::strtoull(argv[2], nullptr, 10);
  std::FILE* file = std::fopen(argv[4], "wb");
  bool ok = file != nullptr;
  for (const NamedCase& test : tandem::sm90::wrappers::gpu_cases()) {
    const CaseResult result = test.run(seed);
    if (!result.error.empty()) std::fprintf(stderr, "%s: %s\n", test.name.c_str(), result.error.c_str());
    ok = ok && result.error.empty() && write_case(file, test.name, result);
  }
  if (file != nullptr) ok = std::fclose(file) == 0 && ok;
  if (!ok) std::fprintf(stderr, "wrapper_bits: %s is not complete\n", argv[4]);
  return ok ? 0 : 1;
}
