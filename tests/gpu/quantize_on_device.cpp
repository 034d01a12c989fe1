#include "quantize_on_device.h"

#include <algorithm>
#include <random>
#include <stdexcept>

#include "float_types.h"
#include "quantize_definition.h"

namespace tandem::gpu_test {
namespace {

using optest::QuantizeCase;
using optest::Quantized;
using optest::Shape;

constexpr size_t kPatternElems = 1000003;  // a prime

int64_t product(const Shape& shape) {
  int64_t result = 1;
  for (const int64_t size : shape) result *= size;
  return result;
}

tandem_tensor tensor(void* data, int32_t dtype, const Shape& shape) {
  tandem_tensor result = {};
  result.data = data;
  result.dtype = dtype;
  result.ndim = static_cast<int32_t>(shape.size());
  int64_t stride = 1;
  for (size_t axis = shape.size(); axis-- > 0;) {
    result.shape[axis] = shape[axis];
    result.stride[axis] = stride;
    stride *= shape[axis];
  }
  return result;
}

tandem_tensor vector_of(const std::vector<int32_t>& values, const PoolBuffer& on_device) {
  if (values.empty()) return {};
  return tensor(on_device.as<void>(), TANDEM_INT32, {static_cast<int64_t>(values.size())});
}

tandem_quantize_fp8_params options_of(const QuantizeCase& test, cudaStream_t stream) {
  tandem_quantize_fp8_params params = {};
  params.struct_size = sizeof params;
  params.exec.device = {TANDEM_CUDA, 0};
  params.exec.backend = TANDEM_BACKEND_SM90;
  params.exec.stream = stream;
  params.rotate = test.rotate;
  params.seed = test.seed;
  params.transposed = test.transposed;
  return params;
}

template <typename T>
std::vector<T> downloaded(const GuardedBuffer& buffer) {
  std::vector<T> values(buffer.bytes() / sizeof(T));
  TANDEM_CHECK_CUDA(cudaMemcpy(values.data(), buffer.as<T>(), buffer.bytes(), cudaMemcpyDeviceToHost));
  return values;
}

std::vector<double> decoded(const std::vector<uint8_t>& bytes) {
  std::vector<double> values(bytes.size());
  for (size_t n = 0; n < bytes.size(); ++n) {
    values[n] = optest::load(bytes.data(), TANDEM_E4M3, static_cast<int64_t>(n));
  }
  return values;
}

}  // namespace

QuantizeOnDevice::QuantizeOnDevice(const QuantizeCase& test, uint64_t seed)
    : test_(test),
      pattern_(kPatternElems),
      x_(static_cast<size_t>(product(test.x_shape())) * sizeof(uint16_t)),
      cu_seqlens_(test.cu_seqlens.size() * sizeof(int32_t)),
      seqused_(test.seqused.size() * sizeof(int32_t)),
      out_(static_cast<size_t>(out_elements())),
      scale_(static_cast<size_t>(scales()) * sizeof(float)) {
  change(test, seed);
  tandem_quantize_fp8_params params = options_of(test_, nullptr);
  params.x = tensor(x_.as<void>(), test_.dtype, test_.x_shape());
  params.out = tensor(out_.as<void>(), TANDEM_E4M3, test_.out_shape());
  params.scale = tensor(scale_.as<void>(), TANDEM_FP32, test_.scale_shape());
  params.cu_seqlens = vector_of(test_.cu_seqlens, cu_seqlens_);
  workspace_ = make_workspace(params, tandem_quantize_fp8_workspace);
  poison_results();
}

int64_t QuantizeOnDevice::out_elements() const {
  return product(test_.out_shape());
}
int64_t QuantizeOnDevice::scales() const {
  return product(test_.scale_shape());
}

void QuantizeOnDevice::change(const QuantizeCase& test, uint64_t seed) {
  test_ = test;
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  for (size_t n = 0; n < pattern_.size(); ++n) {
    optest::store(reinterpret_cast<uint8_t*>(pattern_.data()), test_.dtype, static_cast<int64_t>(n), normal(random));
  }
  fill_x();
  cu_seqlens_.from_host(test_.cu_seqlens.data());
  seqused_.from_host(test_.seqused.data());
  TANDEM_CHECK_CUDA(cudaDeviceSynchronize());
}

// One copy from the host, the others on the device.
void QuantizeOnDevice::fill_x() const {
  const size_t elements = x_.bytes() / sizeof(uint16_t);
  for (size_t first = 0; first < elements; first += kPatternElems) {
    const size_t bytes = std::min(kPatternElems, elements - first) * sizeof(uint16_t);
    uint16_t* const target = x_.as<uint16_t>() + first;
    const void* const source = first == 0 ? static_cast<const void*>(pattern_.data()) : x_.as<void>();
    TANDEM_CHECK_CUDA(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, nullptr));
  }
}

void QuantizeOnDevice::poison_results() const {
  out_.fill(0xff);
  scale_.fill(0xff);
  workspace_.fill(0xff);
  TANDEM_CHECK_CUDA(cudaDeviceSynchronize());
}

tandem_status QuantizeOnDevice::run(cudaStream_t stream) {
  tandem_quantize_fp8_params params = options_of(test_, stream);
  params.x = tensor(x_.as<void>(), test_.dtype, test_.x_shape());
  params.out = tensor(out_.as<void>(), TANDEM_E4M3, test_.out_shape());
  params.scale = tensor(scale_.as<void>(), TANDEM_FP32, test_.scale_shape());
  params.cu_seqlens = vector_of(test_.cu_seqlens, cu_seqlens_);
  params.seqused = vector_of(test_.seqused, seqused_);
  params.exec.workspace = workspace_.as<void>();
  params.exec.workspace_bytes = workspace_.bytes();
  return tandem_quantize_fp8(&params);
}

std::vector<uint8_t> QuantizeOnDevice::results() const {
  std::vector<uint8_t> all = downloaded<uint8_t>(out_);
  const std::vector<uint8_t> scale = downloaded<uint8_t>(scale_);
  all.insert(all.end(), scale.begin(), scale.end());
  return all;
}

double QuantizeOnDevice::x_value(int64_t element) const {
  return optest::load(reinterpret_cast<const uint8_t*>(pattern_.data()), test_.dtype,
                      element % static_cast<int64_t>(kPatternElems));
}

std::string QuantizeOnDevice::fault() const {
  if (!out_.guards_intact() || !scale_.guards_intact() || !workspace_.guards_intact()) return "a guard was written";
  Quantized got;
  got.out = decoded(downloaded<uint8_t>(out_));
  const std::vector<float> scale = downloaded<float>(scale_);
  got.scale.assign(scale.begin(), scale.end());
  const int64_t elements = product(test_.x_shape());
  for (int64_t n = 0; n < elements; ++n) got.x.push_back(x_value(n));
  return definition_fault(test_, got);
}

// The block as a problem of its own has rows beside each other, and slots.
std::vector<double> QuantizeOnDevice::block_of_out(const QuantizeCase& block, int64_t sequence, int64_t head,
                                                   int64_t first) const {
  const int64_t entry = test_.packed ? 0 : sequence;
  const int64_t d = test_.headdim;
  const int64_t width = test_.transposed ? block.slots() : d;
  const int64_t lines = test_.transposed ? d : block.seqlen;
  const int64_t pitch = test_.transposed ? test_.slots() : test_.nheads * d;
  int64_t element = test_.x_index(sequence, first, head, 0);
  if (test_.transposed) {
    const int64_t first_slot = test_.packed ? 16 * (test_.begin(sequence) / 16 + sequence) : 0;
    element = (entry * test_.nheads + head) * d * pitch + first_slot + first;
  }
  std::vector<uint8_t> bytes(static_cast<size_t>(width * lines));
  const auto size = [](int64_t count) { return static_cast<size_t>(count); };
  TANDEM_CHECK_CUDA(cudaMemcpy2D(bytes.data(), size(width), out_.as<uint8_t>() + element, size(pitch), size(width),
                                 size(lines), cudaMemcpyDeviceToHost));
  return decoded(bytes);
}

std::string QuantizeOnDevice::fault_of_block(int64_t sequence, int64_t head, int64_t block) const {
  const int64_t first = block * 128;
  QuantizeCase alone = optest::dense_case(1, std::min<int64_t>(test_.length(sequence) - first, 128), 1, test_.headdim);
  alone.dtype = test_.dtype;
  alone.rotate = test_.rotate;
  alone.seed = test_.seed;
  alone.transposed = test_.transposed;
  Quantized got;
  for (int64_t row = 0; row < alone.seqlen; ++row) {
    for (int64_t c = 0; c < test_.headdim; ++c) {
      got.x.push_back(x_value(test_.x_index(sequence, first + row, head, c)));
    }
  }
  float scale = 0;
  TANDEM_CHECK_CUDA(cudaMemcpy(&scale, scale_.as<float>() + test_.scale_index(sequence, first, head), sizeof scale,
                               cudaMemcpyDeviceToHost));
  got.scale = {scale};
  got.out = block_of_out(alone, sequence, head, first);
  const std::string fault = definition_fault(alone, got);
  if (fault.empty()) return "";
  return fault + " of sequence " + std::to_string(sequence) + ", head " + std::to_string(head) + ", block " +
         std::to_string(block);
}

}  // namespace tandem::gpu_test
