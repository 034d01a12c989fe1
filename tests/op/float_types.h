#pragma once

#include <cstdint>

// The element types as the tests see them, written without the library's conversions so that the two can disagree.
namespace tandem::optest {

int64_t element_bytes(int32_t dtype);

// Rounds to nearest even in the type's precision and range (overflow gives infinity, in e4m3 NaN).
double round_to(int32_t dtype, double value);

double load(const uint8_t* storage, int32_t dtype, int64_t index);
void store(uint8_t* storage, int32_t dtype, int64_t index, double value);

// One unit in the last place of the type at this magnitude.
double ulp(int32_t dtype, double magnitude);

}  // namespace tandem::optest
