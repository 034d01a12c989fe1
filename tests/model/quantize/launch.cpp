#include "quantize/launch.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "core/int_math.h"
#include "core/problem.h"
#include "host_tensor.h"
#include "sm90/quantize/narrow.cuh"
#include "sm90/quantize/plain.cuh"
#include "sm90/quantize/plan.h"
#include "sm90/quantize/prepare.cuh"
#include "sm90/quantize/turned.cuh"

namespace tandem::model {
namespace {

using optest::HostTensor;
using optest::QuantizeCase;
using optest::Shape;
using sm90::QuantizeKernel;
using sm90::QuantizeParams;

using Kernel = void (*)(QuantizeParams);

template <typename Element, int... kRows>
Kernel kernel_of(QuantizeKernel kernel, int row, std::integer_sequence<int, kRows...>) {
  constexpr Kernel plain[] = {&sm90::quantize_plain_kernel<sm90::QuantizeTraits<Element, kRows>, false>...};
  constexpr Kernel transposed[] = {&sm90::quantize_plain_kernel<sm90::QuantizeTraits<Element, kRows>, true>...};
  constexpr Kernel rotated[] = {&sm90::quantize_turned_kernel<sm90::QuantizeTraits<Element, kRows>, false>...};
  constexpr Kernel turned[] = {&sm90::quantize_turned_kernel<sm90::QuantizeTraits<Element, kRows>, true>...};
  switch (kernel) {
    case QuantizeKernel::kPlain: return plain[row];
    case QuantizeKernel::kTransposed: return transposed[row];
    case QuantizeKernel::kRotated: return rotated[row];
    case QuantizeKernel::kTurned: return turned[row];
    default: return &sm90::quantize_narrow_kernel<Element>;
  }
}

Kernel kernel_of(const sm90::QuantizePlan& plan) {
  constexpr std::make_integer_sequence<int, sm90::kQuantizeTilesCount> kRows;
  return plan.dtype == DType::kBf16 ? kernel_of<Bf16>(plan.kernel, plan.tiles_row, kRows)
                                    : kernel_of<Fp16>(plan.kernel, plan.tiles_row, kRows);
}

// A tensor of the host in the model's memory.
class Copy {
 public:
  Copy(GlobalMemory& global, const char* name, HostTensor tensor) : tensor_(std::move(tensor)) {
    if (!tensor_.present()) return;
    tensor_.snapshot();
    memory_ = static_cast<uint8_t*>(global.upload_bytes(name, tensor_.storage().data(), tensor_.storage().size()));
    view_ = tensor_.view_in(memory_);
  }
  HostTensor& home() {
    std::copy_n(memory_, tensor_.storage().size(), tensor_.storage().begin());
    return tensor_;
  }
  void* data() const { return view_.data; }
  DType dtype() const { return static_cast<DType>(view_.dtype); }
  int64_t stride(int axis) const { return view_.shape[axis] > 1 ? view_.stride[axis] : 0; }
  Vector vector() const { return {view_.data, dtype(), 1}; }

 private:
  HostTensor tensor_;
  uint8_t* memory_ = nullptr;
  tandem_tensor view_ = {};
};

HostTensor filled(Shape shape, int32_t dtype, const std::vector<double>& values, const optest::Layout& layout = {}) {
  if (values.empty() && dtype == TANDEM_INT32) return {};
  HostTensor tensor(std::move(shape), dtype, layout);
  for (size_t n = 0; n < values.size(); ++n) tensor.set(static_cast<int64_t>(n), values[n]);
  return tensor;
}

HostTensor numbers(const std::vector<int32_t>& values) {
  return filled({static_cast<int64_t>(values.size())}, TANDEM_INT32, {values.begin(), values.end()});
}

HostTensor table(const QuantizeCase& test, const std::vector<double>& values) {
  if (test.pairs == 0) return {};
  return filled({static_cast<int64_t>(values.size()) / test.pairs, test.pairs}, test.table_dtype, values);
}

// The case's tensors, and the problem that they make.
struct ModelCase {
  ModelCase(GlobalMemory& global, const QuantizeCase& given, const std::vector<double>& values)
      : test(given),
        x(global, "x", filled(given.x_shape(), given.dtype, values, given.x_layout)),
        out(global, "out", HostTensor(given.out_shape(), TANDEM_E4M3, given.out_layout)),
        scale(global, "scale", HostTensor(given.scale_shape(), TANDEM_FP32)),
        cu_seqlens(global, "cu_seqlens", numbers(given.cu_seqlens)),
        seqused(global, "seqused", numbers(given.seqused)),
        cos(global, "cos", table(given, given.cos)),
        sin(global, "sin", table(given, given.sin)),
        offset(global, "rotary_offset", numbers(given.rotary_offset)) {}

  QuantizeProblem problem() const {
    QuantizeProblem p;
    p.packed = test.packed;
    p.transposed = test.transposed;
    p.batch = test.batch;
    p.nheads = test.nheads;
    p.headdim = test.headdim;
    p.seqlen = test.packed ? 0 : test.seqlen;
    p.total = test.packed ? test.total : test.seqlen;
    const int row = test.packed ? 0 : 1;
    p.x = {x.data(), x.dtype(), test.packed ? 0 : x.stride(0), x.stride(row), x.stride(row + 1)};
    p.out = {out.data(), out.dtype(), test.packed ? 0 : out.stride(0), out.stride(row), out.stride(row + 1)};
    if (test.transposed) p.out.row_stride = out.stride(row + 1), p.out.head_stride = out.stride(row);
    p.scale.data = scale.data();
    p.scale.dtype = DType::kFp32;
    p.scale_per_head = test.granularity != optest::Granularity::kTensor;
    p.scale_per_block = test.granularity == optest::Granularity::kBlock;
    if (p.scale_per_block) p.scale.blocks = test.scale_blocks();
    if (p.scale_per_head) {
      p.scale.block_stride = p.scale_per_block ? 1 : 0;
      p.scale.head_stride = p.scale.blocks;
      p.scale.batch_stride = p.scale.blocks * test.nheads;
    }
    p.cu_seqlens = cu_seqlens.vector();
    p.seqused = seqused.vector();
    p.rotary_offset = offset.vector();
    if (test.pairs > 0) {
      p.rotary_positions = static_cast<int64_t>(test.cos.size()) / test.pairs;
      p.rotary_pairs = test.pairs;
      p.rotary_interleaved = test.interleaved;
      p.rotary_cos = {cos.data(), cos.dtype(), test.pairs};
      p.rotary_sin = {sin.data(), sin.dtype(), test.pairs};
    }
    p.rotate = test.rotate;
    p.seed = test.seed;
    return p;
  }

  const QuantizeCase& test;
  Copy x, out, scale, cu_seqlens, seqused, cos, sin, offset;
};

Launch launch_of(const sm90::QuantizePlan& plan, int64_t blocks, const QuantizeParams& params, int most_blocks) {
  Launch launch;
  launch.blocks = static_cast<int>(min_of(blocks, int64_t{most_blocks}));
  launch.threads = plan.threads;
  launch.shared_bytes = plan.smem_bytes;
  launch.dependent = plan.prepare_blocks > 0;
  launch.kernel = [kernel = kernel_of(plan), &params] { kernel(params); };
  return launch;
}

RunResult run_all(Machine& machine, const sm90::QuantizePlan& plan, int most_blocks) {
  RunResult result;
  if (plan.prepare_blocks > 0) {
    Launch launch;
    launch.blocks = static_cast<int>(min_of(plan.prepare_blocks, int64_t{most_blocks}));
    launch.threads = sm90::kPrepareThreads;
    launch.shared_bytes = sm90::kPrepareSmemBytes;
    launch.kernel = [&plan] { sm90::prepare_quantize_kernel(plan.prepare); };
    result = machine.run(launch);
  }
  QuantizeParams largest = plan.params;
  largest.pass = sm90::QuantizePass::kLargest;
  if (plan.largest_blocks > 0) result = machine.run(launch_of(plan, plan.largest_blocks, largest, most_blocks));
  if (plan.blocks > 0) result = machine.run(launch_of(plan, plan.blocks, plan.params, most_blocks));
  return result;
}

}  // namespace

QuantizeRun run_quantize(const QuantizeCase& test, const std::vector<double>& x, const QuantizeOptions& options) {
  Machine machine(options.machine);
  ModelCase memory(machine.global(), test, x);
  QuantizeProblem problem = memory.problem();
  const Status status = sm90::quantize_supports(problem);
  if (!status.is_ok()) throw std::invalid_argument(status.message());
  problem.exec.workspace = machine.global().allocate("workspace", sm90::quantize_workspace(problem).bytes);
  QuantizeRun run;
  run.result = run_all(machine, sm90::plan_quantize(problem), options.most_blocks);
  optest::Quantized& quantized = run.quantized;
  if (run.result.report) quantized.error = run.result.text();
  quantized.error += memory.out.home().changes_outside_view() + memory.scale.home().changes_outside_view();
  quantized.out = memory.out.home().values();
  quantized.scale = memory.scale.home().values();
  quantized.x = memory.x.home().values();
  return run;
}

optest::Quantized quantize_in_model(const QuantizeCase& test, const std::vector<double>& x,
                                    const QuantizeOptions& options) {
  return run_quantize(test, x, options).quantized;
}

}  // namespace tandem::model
