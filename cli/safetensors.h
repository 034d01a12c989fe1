#pragma once

#include <map>
#include <string>

#include "files.h"
#include "tensor_buffer.h"

namespace tandem::cli {

using TensorMap = std::map<std::string, TensorBuffer>;

// The .safetensors format: F64, F32, F16, BF16, F8_E4M3, F8_E5M2, I32 (and I64 whose values fit int32). The data of the
// tensors must fill the file without holes or overlaps. Anything else is a CliError(kFileError) that names the file.
TensorMap read_safetensors(const std::string& path);
void write_safetensors(OutputFile& file, const TensorMap& tensors);

}  // namespace tandem::cli
