#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tandem::model {

// What an H200 gave for the cases of tests/gpu/wrappers, by name: a file that tests/gpu's wrapper_bits has written.
std::map<std::string, std::vector<uint32_t>> read_golden(const std::string& path);

// How many floats lie from one to the other: 0 for the same bits, for zeros of either sign and for two NaNs.
int64_t ulps_between(uint32_t a_bits, uint32_t b_bits);

}  // namespace tandem::model
