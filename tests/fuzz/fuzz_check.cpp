// libFuzzer: no parameter struct, however wild, crashes the check and workspace calls or sends them out of bounds. Data
// pointers are as wild as the rest: these calls must not follow them.
//
// An input's first byte chooses the operation and how the rest is used: as the bytes of the struct, or as changes to a
// valid one, which reach deeper.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <vector>

#include "tandem/tandem.hpp"

namespace {

constexpr uint64_t kMaxStructBytes = 1 << 16;

void require(bool condition) {
  if (!condition) std::abort();
}

// Takes numbers off the front of the input; zeros when it is used up.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

  template <class T>
  T take() {
    T value = 0;
    const size_t bytes = size_ < sizeof(T) ? size_ : sizeof(T);
    std::memcpy(&value, data_, bytes);
    data_ += bytes;
    size_ -= bytes;
    return value;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

tandem_tensor tensor(tandem::ElementType type, std::initializer_list<int64_t> shape) {
  return tandem::view(nullptr, type, shape);
}

constexpr auto kBf16 = tandem::ElementType::kBf16;
constexpr auto kFp32 = tandem::ElementType::kFp32;
constexpr auto kInt32 = tandem::ElementType::kInt32;

template <class Params>
void fill_common(Params& params) {
  params.sink = tensor(kFp32, {4});
  params.seqused_q = tensor(kInt32, {2});
  params.seqused_k = tensor(kInt32, {2});
  params.mask.has_window = 1;
}

void fill(tandem_forward_params& params) {
  params.q = params.out = tensor(kBf16, {2, 5, 4, 64});
  params.k = params.v = tensor(kBf16, {2, 7, 2, 64});
  params.lse = tensor(kFp32, {2, 4, 5});
  params.mask.lo = params.mask.hi = tensor(kInt32, {1, 4, 5});
  fill_common(params);
}

void fill(tandem_varlen_forward_params& params) {
  params.q = params.out = tensor(kBf16, {9, 4, 64});
  params.k = params.v = tensor(kBf16, {11, 2, 64});
  params.lse = tensor(kFp32, {4, 9});
  params.cu_seqlens_q = params.cu_seqlens_k = tensor(kInt32, {3});
  fill_common(params);
}

void fill(tandem_backward_params& params) {
  params.q = params.out = params.dout = params.dq = tensor(kBf16, {2, 5, 4, 64});
  params.k = params.v = params.dk = params.dv = tensor(kBf16, {2, 7, 2, 64});
  params.lse = params.dlse = tensor(kFp32, {2, 4, 5});
  params.dsink = tensor(kFp32, {4});
  fill_common(params);
}

void fill(tandem_varlen_backward_params& params) {
  params.q = params.out = params.dout = params.dq = tensor(kBf16, {9, 4, 64});
  params.k = params.v = params.dk = params.dv = tensor(kBf16, {11, 2, 64});
  params.lse = params.dlse = tensor(kFp32, {4, 9});
  params.cu_seqlens_q = params.cu_seqlens_k = tensor(kInt32, {3});
  params.dsink = tensor(kFp32, {4});
  fill_common(params);
}

void fill(tandem_merge_params& params) {
  params.out_partial = tensor(kFp32, {3, 2, 5, 4, 64});
  params.lse_partial = tensor(kFp32, {3, 2, 4, 5});
  params.out = tensor(kBf16, {2, 5, 4, 64});
  params.lse = tensor(kFp32, {2, 4, 5});
  params.sink = tensor(kFp32, {4});
}

// The struct's bytes, in a buffer that ends where struct_size says, so that a read beyond it is found.
std::vector<uint8_t> raw_struct(Input input) {
  uint64_t bytes = 0;
  std::memcpy(&bytes, input.data(), input.size() < sizeof bytes ? input.size() : sizeof bytes);
  if (bytes > kMaxStructBytes) bytes = sizeof bytes;
  std::vector<uint8_t> buffer(bytes < sizeof bytes ? sizeof bytes : bytes);
  std::memcpy(buffer.data(), input.data(), input.size() < buffer.size() ? input.size() : buffer.size());
  return buffer;
}

template <class Params>
std::vector<uint8_t> changed_struct(Input input) {
  constexpr int64_t kInteresting[] = {0,
                                      1,
                                      2,
                                      3,
                                      -1,
                                      -2,
                                      64,
                                      256,
                                      257,
                                      std::numeric_limits<int32_t>::max(),
                                      std::numeric_limits<int32_t>::min(),
                                      int64_t{1} << 31,
                                      int64_t{1} << 33,
                                      int64_t{1} << 62,
                                      std::numeric_limits<int64_t>::max(),
                                      std::numeric_limits<int64_t>::min()};
  Params params{};
  params.struct_size = sizeof params;
  fill(params);
  std::vector<uint8_t> buffer(sizeof params);
  std::memcpy(buffer.data(), &params, sizeof params);
  while (!input.empty()) {
    const size_t bytes = input.take<uint8_t>() % 2 ? 4 : 8;
    // From struct_size on: the struct stays as long as the buffer.
    const size_t position = sizeof(uint64_t) + input.take<uint16_t>() * 4 % (sizeof params - sizeof(uint64_t) - 4);
    const uint8_t choice = input.take<uint8_t>();
    const int64_t value = choice < 16 ? kInteresting[choice] : input.take<int64_t>();
    std::memcpy(buffer.data() + position, &value, position + bytes > sizeof params ? 4 : bytes);
  }
  return buffer;
}

template <class Params>
void call(Input input, bool raw) {
  const std::vector<uint8_t> buffer = raw ? raw_struct(input) : changed_struct<Params>(input);
  const Params* params = reinterpret_cast<const Params*>(buffer.data());
  const auto calls = tandem::detail::calls_of(Params{});

  const tandem_status status = calls.check(params);
  require(status >= TANDEM_OK && status < TANDEM_OUT_OF_MEMORY);
  require((status == TANDEM_OK) == (*tandem_last_error() == '\0'));
  uint64_t bytes = 0;
  uint64_t alignment = 0;
  require(calls.workspace(params, &bytes, &alignment) == status);
  if (status == TANDEM_OK) require(alignment > 0 && (alignment & (alignment - 1)) == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const uint8_t choice = input.take<uint8_t>();
  const bool raw = choice >= 128;
  switch (choice % 5) {
    case 0: call<tandem_forward_params>(input, raw); break;
    case 1: call<tandem_varlen_forward_params>(input, raw); break;
    case 2: call<tandem_backward_params>(input, raw); break;
    case 3: call<tandem_varlen_backward_params>(input, raw); break;
    default: call<tandem_merge_params>(input, raw); break;
  }
  return 0;
}
