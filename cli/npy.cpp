#include "npy.h"

#include <cctype>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "exit_codes.h"
#include "float_formats.h"

namespace tandem::cli {
namespace {

constexpr char kMagic[] = "\x93NUMPY";
constexpr uint64_t kMagicBytes = 6;
constexpr uint64_t kMaxHeaderBytes = 1 << 20;  // NumPy itself asks for consent past 10000

struct NpyHeader {
  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<int64_t>> shape;
};

// The header is a Python dict literal: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class HeaderParser {
 public:
  HeaderParser(const InputFile& file, const std::string& text) : file_(file), text_(text) {}

  NpyHeader parse() {
    NpyHeader header;
    expect('{');
    while (!accept('}')) {
      parse_entry(header);
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (position_ != text_.size() || !header.descr || !header.fortran_order || !header.shape) malformed();
    return header;
  }

 private:
  void parse_entry(NpyHeader& header) {
    const std::string key = parse_string();
    expect(':');
    if (key == "descr") {
      skip_space();
      if (peek() == '[') file_.fail("it holds a structured dtype, not plain numbers.");
      header.descr = parse_string();
    } else if (key == "fortran_order") {
      header.fortran_order = parse_bool();
    } else if (key == "shape") {
      header.shape = parse_shape();
    } else {
      malformed();
    }
  }

  std::string parse_string() {
    skip_space();
    const char quote = peek();
    if (quote != '\'' && quote != '"') malformed();
    const size_t end = text_.find(quote, position_ + 1);
    if (end == std::string::npos) malformed();
    const std::string value = text_.substr(position_ + 1, end - position_ - 1);
    position_ = end + 1;
    return value;
  }

  bool parse_bool() {
    skip_space();
    for (const char* word : {"False", "True"}) {
      if (text_.compare(position_, std::strlen(word), word) == 0) {
        position_ += std::strlen(word);
        return word[0] == 'T';
      }
    }
    malformed();
  }

  std::vector<int64_t> parse_shape() {
    std::vector<int64_t> shape;
    expect('(');
    while (!accept(')')) {
      if (shape.size() == TANDEM_MAX_NDIM) file_.fail("it has more than 6 axes.");
      shape.push_back(parse_extent());
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return shape;
  }

  int64_t parse_extent() {
    skip_space();
    if (!std::isdigit(static_cast<unsigned char>(peek()))) malformed();
    int64_t value = 0;
    while (std::isdigit(static_cast<unsigned char>(peek()))) {
      const int digit = text_[position_++] - '0';
      if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, digit, &value)) {
        file_.fail("its shape does not fit 64-bit numbers.");
      }
    }
    return value;
  }

  char peek() const { return position_ < text_.size() ? text_[position_] : '\0'; }

  void skip_space() {
    while (position_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[position_]))) ++position_;
  }

  bool accept(char token) {
    skip_space();
    if (peek() != token) return false;
    ++position_;
    return true;
  }

  void expect(char token) {
    if (!accept(token)) malformed();
  }

  [[noreturn]] void malformed() const { file_.fail("its .npy header is malformed."); }

  const InputFile& file_;
  const std::string& text_;
  size_t position_ = 0;
};

std::string read_header_text(InputFile& file) {
  unsigned char preamble[kMagicBytes + 2];
  if (file.remaining() < sizeof(preamble)) file.fail("it is too short for a .npy file.");
  file.read(preamble, sizeof(preamble));
  if (std::memcmp(preamble, kMagic, kMagicBytes) != 0) file.fail("it is not a .npy file.");
  const int version = preamble[kMagicBytes];
  if (version < 1 || version > 3) file.fail("it is a .npy file of unknown version " + std::to_string(version) + ".");

  unsigned char length_bytes[4] = {};
  file.read(length_bytes, version == 1 ? 2 : 4);
  uint64_t length = 0;
  for (int i = 3; i >= 0; --i) length = length << 8 | length_bytes[i];
  if (length > kMaxHeaderBytes || length > file.remaining()) file.fail("its .npy header is longer than the file.");
  std::string text(length, '\0');
  file.read(text.data(), length);
  return text;
}

int32_t narrow(const InputFile& file, int64_t value) {
  if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max()) {
    file.fail("it holds the int64 value " + std::to_string(value) + ", which does not fit int32.");
  }
  return static_cast<int32_t>(value);
}

TensorBuffer read_int64_as_int32(InputFile& file, const std::vector<int64_t>& shape) {
  TensorBuffer tensor(TANDEM_INT32, shape);
  for (int64_t i = 0; i < tensor.size(); ++i) {
    int64_t value;
    file.read(&value, sizeof(value));
    const int32_t narrowed = narrow(file, value);
    std::memcpy(tensor.data() + i * 4, &narrowed, sizeof(narrowed));
  }
  return tensor;
}

int32_t dtype_of_descr(const InputFile& file, const std::string& descr) {
  if (descr == "<f2") return TANDEM_FP16;
  if (descr == "<f4") return TANDEM_FP32;
  if (descr == "<f8") return TANDEM_FP64;
  if (descr == "<i4") return TANDEM_INT32;
  if (!descr.empty() && descr[0] == '>') file.fail("it is big-endian (" + descr + "); save it as little-endian.");
  file.fail("its dtype " + descr.substr(0, 32) +
            " is none of float16, float32, float64, int32 and int64 (.npy has no bf16 and no fp8; use .safetensors).");
}

const char* descr_of_dtype(int32_t dtype) {
  switch (dtype) {
    case TANDEM_FP16: return "<f2";
    case TANDEM_FP32: return "<f4";
    case TANDEM_FP64: return "<f8";
    case TANDEM_INT32: return "<i4";
    default: return nullptr;
  }
}

void check_size(const InputFile& file, const std::vector<int64_t>& shape, int64_t element_bytes) {
  std::optional<int64_t> bytes = checked_element_count(shape);
  if (!bytes || __builtin_mul_overflow(*bytes, element_bytes, &*bytes)) {
    file.fail("its shape " + shape_text(shape) + " does not fit any memory.");
  }
  if (static_cast<uint64_t>(*bytes) != file.remaining()) {
    file.fail("its shape " + shape_text(shape) + " needs " + std::to_string(*bytes) + " bytes of data, but it has " +
              std::to_string(file.remaining()) + ".");
  }
}

}  // namespace

TensorBuffer read_npy(const std::string& path) {
  InputFile file(path);
  const std::string text = read_header_text(file);
  const NpyHeader header = HeaderParser(file, text).parse();
  const bool is_int64 = *header.descr == "<i8";
  const int32_t dtype = is_int64 ? TANDEM_INT32 : dtype_of_descr(file, *header.descr);
  if (*header.fortran_order) file.fail("it is in Fortran order; save it in C order (numpy.ascontiguousarray).");
  check_size(file, *header.shape, is_int64 ? 8 : dtype_bytes(dtype));
  if (is_int64) return read_int64_as_int32(file, *header.shape);
  TensorBuffer tensor(dtype, *header.shape);
  file.read(tensor.data(), static_cast<uint64_t>(tensor.bytes()));
  return tensor;
}

bool npy_can_hold(int32_t dtype) {
  return descr_of_dtype(dtype) != nullptr;
}

void write_npy(OutputFile& file, const TensorBuffer& tensor) {
  std::string shape = shape_text(tensor.shape());
  if (tensor.shape().size() == 1) shape.insert(shape.size() - 1, ",");
  std::string header = std::string("{'descr': '") + descr_of_dtype(tensor.dtype()) +
                       "', 'fortran_order': False, 'shape': " + shape + ", }";
  constexpr size_t kPrefixBytes = kMagicBytes + 2 + 2;
  header.append(63 - (kPrefixBytes + header.size()) % 64, ' ');  // data starts at a multiple of 64
  header.push_back('\n');
  const char prefix[] = {1, 0, static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  file.write(kMagic, kMagicBytes);
  file.write(prefix, sizeof(prefix));
  file.write(header.data(), header.size());
  file.write(tensor.data(), static_cast<uint64_t>(tensor.bytes()));
}

}  // namespace tandem::cli
