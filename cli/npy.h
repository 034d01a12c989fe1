#pragma once

#include <string>

#include "files.h"
#include "tensor_buffer.h"

namespace tandem::cli {

// NumPy's .npy, versions 1 to 3: little-endian float16, float32, float64, int32 (and int64 whose values fit int32) in C
// order. The format has no bf16 and no fp8. Anything else is a CliError(kFileError) that names the file.
TensorBuffer read_npy(const std::string& path);

bool npy_can_hold(int32_t dtype);
void write_npy(OutputFile& file, const TensorBuffer& tensor);

}  // namespace tandem::cli
