// libFuzzer: no parameter struct, however wild, crashes the check and workspace calls or sends them out of bounds. Data
// pointers are as wild as the rest: these calls must not follow them.
//
// An input's first byte chooses the operation and how the rest is used: as the bytes of the struct, or as changes to a
// valid one, of small or of any sizes, which reach deeper.
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
constexpr auto kE4m3 = tandem::ElementType::kE4m3;
constexpr auto kInt32 = tandem::ElementType::kInt32;

struct Sizes {
  int64_t batch = 2, seqlen_q = 5, seqlen_k = 7, nheads_q = 4, nheads_k = 2, headdim = 64, headdim_v = 64;
};

Sizes take_sizes(Input& input) {
  constexpr int64_t kSizes[] = {0, 1, 2, 3, 4, 5, 8, 59, 64, 128, 129, 256, 1 << 16, 1 << 20, 1 << 30, 2147483647};
  const auto take = [&] { return kSizes[input.take<uint8_t>() % 16]; };
  return {take(), take(), take(), take(), take(), take(), take()};
}

template <class Params>
void fill_common(Params& params, const Sizes& n) {
  params.sink = tensor(kFp32, {n.nheads_q});
  params.seqused_q = tensor(kInt32, {n.batch});
  params.seqused_k = tensor(kInt32, {n.batch});
  params.mask.has_window = 1;
}

template <class Params>
void fill_dense(Params& params, const Sizes& n) {
  params.q = tensor(kBf16, {n.batch, n.seqlen_q, n.nheads_q, n.headdim});
  params.k = tensor(kBf16, {n.batch, n.seqlen_k, n.nheads_k, n.headdim});
  params.v = tensor(kBf16, {n.batch, n.seqlen_k, n.nheads_k, n.headdim_v});
  params.out = tensor(kBf16, {n.batch, n.seqlen_q, n.nheads_q, n.headdim_v});
  params.lse = tensor(kFp32, {n.batch, n.nheads_q, n.seqlen_q});
  params.mask.lo = params.mask.hi = tensor(kInt32, {1, n.nheads_q, n.seqlen_q});
  fill_common(params, n);
}

// With buffers of the sizes of one dense sequence.
template <class Params>
void fill_packed(Params& params, const Sizes& n) {
  params.q = tensor(kBf16, {n.seqlen_q, n.nheads_q, n.headdim});
  params.k = tensor(kBf16, {n.seqlen_k, n.nheads_k, n.headdim});
  params.v = tensor(kBf16, {n.seqlen_k, n.nheads_k, n.headdim_v});
  params.out = tensor(kBf16, {n.seqlen_q, n.nheads_q, n.headdim_v});
  params.lse = tensor(kFp32, {n.nheads_q, n.seqlen_q});
  params.cu_seqlens_q = params.cu_seqlens_k = tensor(kInt32, {n.batch + 1});
  fill_common(params, n);
}

template <class Params>
void fill_gradients(Params& params) {
  params.dout = params.out;
  params.dq = params.q;
  params.dk = params.k;
  params.dv = params.v;
  params.dlse = params.lse;
  params.dsink = params.sink;
}

void fill(tandem_forward_params& params, const Sizes& n) {
  fill_dense(params, n);
}
void fill(tandem_varlen_forward_params& params, const Sizes& n) {
  fill_packed(params, n);
}
void fill(tandem_backward_params& params, const Sizes& n) {
  fill_dense(params, n);
  fill_gradients(params);
}
void fill(tandem_varlen_backward_params& params, const Sizes& n) {
  fill_packed(params, n);
  fill_gradients(params);
}
void fill(tandem_merge_params& params, const Sizes& n) {
  params.out_partial = tensor(kFp32, {n.seqlen_k, n.batch, n.seqlen_q, n.nheads_q, n.headdim_v});
  params.lse_partial = tensor(kFp32, {n.seqlen_k, n.batch, n.nheads_q, n.seqlen_q});
  params.out = tensor(kBf16, {n.batch, n.seqlen_q, n.nheads_q, n.headdim_v});
  params.lse = tensor(kFp32, {n.batch, n.nheads_q, n.seqlen_q});
  params.sink = tensor(kFp32, {n.nheads_q});
}

void fill(tandem_quantize_fp8_params& params, const Sizes& n) {
  params.x = tensor(kBf16, {n.batch, n.seqlen_k, n.nheads_k, n.headdim});
  params.out = tensor(kE4m3, {n.batch, n.seqlen_k, n.nheads_k, n.headdim});
  params.scale = tensor(kFp32, {n.batch, n.nheads_k, (n.seqlen_k + 127) / 128});
  params.rotary_cos = params.rotary_sin = tensor(kFp32, {n.seqlen_k, n.headdim / 2});
  params.rotate = 1;
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
std::vector<uint8_t> changed_struct(Input input, bool any_sizes) {
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
  fill(params, any_sizes ? take_sizes(input) : Sizes{});
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

enum class Form { kChanged, kChangedOfAnySize, kRaw };

template <class Params>
void call(Input input, Form form) {
  const std::vector<uint8_t> buffer =
      form == Form::kRaw ? raw_struct(input) : changed_struct<Params>(input, form == Form::kChangedOfAnySize);
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
  const Form form = choice < 64 ? Form::kChanged : choice < 192 ? Form::kChangedOfAnySize : Form::kRaw;
  switch (choice % 6) {
    case 0: call<tandem_forward_params>(input, form); break;
    case 1: call<tandem_varlen_forward_params>(input, form); break;
    case 2: call<tandem_backward_params>(input, form); break;
    case 3: call<tandem_varlen_backward_params>(input, form); break;
    case 4: call<tandem_merge_params>(input, form); break;
    default: call<tandem_quantize_fp8_params>(input, form); break;
  }
  return 0;
}
