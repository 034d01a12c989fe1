#include "safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "exit_codes.h"
#include "float_formats.h"

namespace tandem::cli {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the format's own library
constexpr const char* kInt64 = "I64";

struct Entry {
  std::string name;
  std::string stored_dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes into the data section
  uint64_t end = 0;
};

struct DTypeName {
  int32_t dtype;
  const char* name;
};
constexpr DTypeName kDTypeNames[] = {
    {TANDEM_FP64, "F64"},     {TANDEM_FP32, "F32"},     {TANDEM_FP16, "F16"},  {TANDEM_BF16, "BF16"},
    {TANDEM_E4M3, "F8_E4M3"}, {TANDEM_E5M2, "F8_E5M2"}, {TANDEM_INT32, "I32"},
};

int32_t dtype_of(const std::string& stored) {
  for (const DTypeName& entry : kDTypeNames) {
    if (stored == entry.name) return entry.dtype;
  }
  return TANDEM_DTYPE_NONE;
}

const char* stored_name(int32_t dtype) {
  for (const DTypeName& entry : kDTypeNames) {
    if (entry.dtype == dtype) return entry.name;
  }
  return "";
}

std::string quoted(const std::string& name) {
  return "'" + name.substr(0, 64) + "'";
}

json read_header(InputFile& file) {
  unsigned char length_bytes[8];
  if (file.remaining() < sizeof(length_bytes)) file.fail("it is too short for a .safetensors file.");
  file.read(length_bytes, sizeof(length_bytes));
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | length_bytes[i];
  if (length > file.remaining() || length > kMaxHeaderBytes) {
    file.fail("its header claims " + std::to_string(length) + " bytes, which the file cannot hold.");
  }
  std::string text(length, '\0');
  file.read(text.data(), length);
  json header = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) file.fail("its header is not a JSON object.");
  return header;
}

bool is_array_of_sizes(const json& value) {
  if (!value.is_array()) return false;
  return std::all_of(value.begin(), value.end(), [](const json& item) {
    return item.is_number_unsigned() && item.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
  });
}

Entry parse_entry(const InputFile& file, const std::string& name, const json& value) {
  if (!value.is_object() || !value.contains("dtype") || !value["dtype"].is_string() || !value.contains("shape") ||
      !is_array_of_sizes(value["shape"]) || !value.contains("data_offsets") ||
      !is_array_of_sizes(value["data_offsets"]) || value["data_offsets"].size() != 2) {
    file.fail("the header of tensor " + quoted(name) + " is malformed.");
  }
  Entry entry{name, value["dtype"].get<std::string>(), value["shape"].get<std::vector<int64_t>>(),
              value["data_offsets"][0].get<uint64_t>(), value["data_offsets"][1].get<uint64_t>()};
  if (entry.shape.size() > TANDEM_MAX_NDIM) file.fail("tensor " + quoted(name) + " has more than 6 axes.");
  return entry;
}

void check_bytes(const InputFile& file, const Entry& entry, uint64_t expected_begin) {
  const int64_t element_bytes = entry.stored_dtype == kInt64 ? 8 : dtype_bytes(dtype_of(entry.stored_dtype));
  if (element_bytes == 0) {
    file.fail("tensor " + quoted(entry.name) + " has dtype " + entry.stored_dtype.substr(0, 32) +
              ", which is none of F64, F32, F16, BF16, F8_E4M3, F8_E5M2, I32 and I64.");
  }
  std::optional<int64_t> bytes = checked_element_count(entry.shape);
  if (!bytes || __builtin_mul_overflow(*bytes, element_bytes, &*bytes)) {
    file.fail("tensor " + quoted(entry.name) + " has a shape that does not fit any memory.");
  }
  if (entry.begin != expected_begin || entry.end < entry.begin ||
      entry.end - entry.begin != static_cast<uint64_t>(*bytes)) {
    file.fail("the data offsets of tensor " + quoted(entry.name) + " do not match its shape and its neighbours.");
  }
}

std::vector<Entry> parse_entries(const InputFile& file, const json& header) {
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name != "__metadata__") entries.push_back(parse_entry(file, name, value));
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;  // empty tensors before the one they touch
  });
  uint64_t position = 0;
  for (const Entry& entry : entries) {
    check_bytes(file, entry, position);
    position = entry.end;
  }
  if (position != file.remaining()) {
    file.fail("its tensors need " + std::to_string(position) + " bytes of data, but it has " +
              std::to_string(file.remaining()) + ".");
  }
  return entries;
}

TensorBuffer read_int64_as_int32(InputFile& file, const Entry& entry) {
  TensorBuffer tensor(TANDEM_INT32, entry.shape);
  for (int64_t i = 0; i < tensor.size(); ++i) {
    int64_t value;
    file.read(&value, sizeof(value));
    const int32_t narrowed = static_cast<int32_t>(value);
    if (narrowed != value) {
      file.fail("tensor " + quoted(entry.name) + " holds " + std::to_string(value) + ", which does not fit int32.");
    }
    std::memcpy(tensor.data() + i * 4, &narrowed, sizeof(narrowed));
  }
  return tensor;
}

}  // namespace

TensorMap read_safetensors(const std::string& path) {
  InputFile file(path);
  const json header = read_header(file);
  TensorMap tensors;
  for (const Entry& entry : parse_entries(file, header)) {
    if (entry.stored_dtype == kInt64) {
      tensors[entry.name] = read_int64_as_int32(file, entry);
      continue;
    }
    TensorBuffer tensor(dtype_of(entry.stored_dtype), entry.shape);
    file.read(tensor.data(), static_cast<uint64_t>(tensor.bytes()));
    tensors[entry.name] = std::move(tensor);
  }
  return tensors;
}

void write_safetensors(OutputFile& file, const TensorMap& tensors) {
  json header = json::object();
  int64_t position = 0;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", stored_name(tensor.dtype())},
                    {"shape", tensor.shape()},
                    {"data_offsets", {position, position + tensor.bytes()}}};
    position += tensor.bytes();
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // the format wants the data aligned to 8 bytes
  unsigned char length_bytes[8];
  for (int i = 0; i < 8; ++i) length_bytes[i] = static_cast<unsigned char>(text.size() >> (8 * i));
  file.write(length_bytes, sizeof(length_bytes));
  file.write(text.data(), text.size());
  for (const auto& [name, tensor] : tensors) file.write(tensor.data(), static_cast<uint64_t>(tensor.bytes()));
}

}  // namespace tandem::cli
