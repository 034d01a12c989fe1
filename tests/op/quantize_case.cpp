#include "quantize_case.h"

#include <algorithm>

#include "device.h"
#include "runner.h"

namespace tandem::optest {
namespace {

HostTensor filled(Shape shape, int32_t dtype, const std::vector<double>& values, const Layout& layout = {}) {
  HostTensor tensor(std::move(shape), dtype, layout);
  for (size_t n = 0; n < values.size(); ++n) tensor.set(static_cast<int64_t>(n), values[n]);
  return tensor;
}

HostTensor int32_vector(const std::vector<int32_t>& values) {
  if (values.empty()) return {};
  return filled({static_cast<int64_t>(values.size())}, TANDEM_INT32, {values.begin(), values.end()});
}

HostTensor table(const QuantizeCase& test, const std::vector<double>& values) {
  if (values.empty()) return {};
  return filled({static_cast<int64_t>(values.size()) / test.pairs, test.pairs}, test.table_dtype, values);
}

}  // namespace

int64_t QuantizeCase::begin(int64_t b) const {
  return packed ? cu_seqlens[static_cast<size_t>(b)] : 0;
}

int64_t QuantizeCase::length(int64_t b) const {
  const size_t n = static_cast<size_t>(b);
  if (!seqused.empty()) return seqused[n];
  return packed ? cu_seqlens[n + 1] - cu_seqlens[n] : seqlen;
}

int64_t QuantizeCase::slots() const {
  return packed ? 16 * (total / 16 + batch) : (seqlen + 15) / 16 * 16;
}

int64_t QuantizeCase::scale_blocks() const {
  if (blocks > 0) return blocks;
  int64_t longest = packed ? 1 : seqlen;
  for (int64_t b = 0; packed && b < batch; ++b) longest = std::max(longest, length(b));
  return (longest + 127) / 128;
}

Shape QuantizeCase::x_shape() const {
  return packed ? Shape{total, nheads, headdim} : Shape{batch, seqlen, nheads, headdim};
}

Shape QuantizeCase::out_shape() const {
  if (!transposed) return x_shape();
  return packed ? Shape{nheads, headdim, slots()} : Shape{batch, nheads, headdim, slots()};
}

Shape QuantizeCase::scale_shape() const {
  switch (granularity) {
    case Granularity::kTensor: return {1};
    case Granularity::kHead: return {batch, nheads};
    default: return {batch, nheads, scale_blocks()};
  }
}

int64_t QuantizeCase::x_index(int64_t b, int64_t row, int64_t head, int64_t column) const {
  const int64_t buffer_row = packed ? begin(b) + row : b * seqlen + row;
  return (buffer_row * nheads + head) * headdim + column;
}

// The layout of tandem.h, by its own table.
int64_t QuantizeCase::out_index(int64_t b, int64_t row, int64_t head, int64_t column) const {
  if (!transposed) return x_index(b, row, head, column);
  constexpr int kKeys[16] = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};
  const int64_t first = packed ? 16 * (begin(b) / 16 + b) : 0;
  const int64_t slot = first + row / 16 * 16 + (std::find(kKeys, kKeys + 16, row % 16) - kKeys);
  return ((packed ? 0 : b * nheads * headdim) + head * headdim + column) * slots() + slot;
}

int64_t QuantizeCase::scale_index(int64_t b, int64_t row, int64_t head) const {
  switch (granularity) {
    case Granularity::kTensor: return 0;
    case Granularity::kHead: return b * nheads + head;
    default: return (b * nheads + head) * scale_blocks() + std::min(row / 128, scale_blocks() - 1);
  }
}

Quantized quantize(const QuantizeCase& test, const std::vector<double>& x, int32_t backend) {
  HostTensor x_tensor = filled(test.x_shape(), test.dtype, x, test.x_layout);
  HostTensor out(test.out_shape(), TANDEM_E4M3, test.out_layout);
  HostTensor scale(test.scale_shape(), TANDEM_FP32);
  HostTensor cu_seqlens = int32_vector(test.cu_seqlens);
  HostTensor seqused = int32_vector(test.seqused);
  HostTensor cos = table(test, test.cos);
  HostTensor sin = table(test, test.sin);
  HostTensor offset = int32_vector(test.rotary_offset);
  for (HostTensor* tensor : {&x_tensor, &out, &scale}) tensor->snapshot();

  CallMemory memory(backend);
  tandem_quantize_fp8_params params = {};
  params.struct_size = sizeof params;
  memory.set_place(params.exec);
  params.exec.backend = backend;
  params.exec.num_threads = test.num_threads;
  params.exec.checked = test.checked;
  params.x = memory.view(x_tensor);
  params.out = memory.view(out);
  params.scale = memory.view(scale);
  params.cu_seqlens = memory.view(cu_seqlens);
  params.seqused = memory.view(seqused);
  params.rotary_cos = memory.view(cos);
  params.rotary_sin = memory.view(sin);
  params.rotary_offset = memory.view(offset);
  params.rotate = test.rotate;
  params.transposed = test.transposed;
  params.rotary_interleaved = test.interleaved;
  params.seed = test.seed;

  Quantized result;
  uint64_t bytes = 0;
  uint64_t alignment = 0;
  result.status = tandem_quantize_fp8_workspace(&params, &bytes, &alignment);
  GuardedBytes workspace;
  if (result.status == TANDEM_OK) {
    workspace = GuardedBytes(bytes, alignment);
    params.exec.workspace = memory.address(workspace.storage()) + workspace.offset();
    params.exec.workspace_bytes = bytes;
    result.status = tandem_quantize_fp8(&params);
  }
  if (result.status != TANDEM_OK) {
    result.error = tandem_last_error();
    return result;
  }
  memory.bring_home();
  result.error = x_tensor.changes_anywhere() + out.changes_outside_view() + scale.changes_outside_view();
  if (!workspace.guards_intact()) result.error += "scratch memory was overrun";
  result.out = out.values();
  result.scale = scale.values();
  result.x = x_tensor.values();
  return result;
}

}  // namespace tandem::optest
