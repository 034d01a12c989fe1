#include "forward/launch.h"

#include <stdexcept>
#include <utility>

#include "compare.h"
#include "core/dtype.h"
#include "core/int_math.h"
#include "core/problem.h"
#include "dense_attention.h"
#include "float_types.h"
#include "forward/instance.h"
#include "sm90/forward/plan.h"
#include "sm90/forward/prepare.cuh"
#include "sm90/forward/tiles.h"

namespace tandem::model {
namespace {

using optest::Problem;

DType element_type(const Problem& p) {
  return p.dtype == TANDEM_BF16 ? DType::kBf16 : DType::kFp16;
}

// All that a problem has in global memory.
class Memory {
 public:
  Memory(GlobalMemory& global, const Problem& problem, const optest::Inputs& inputs)
      : global_(global), problem_(problem) {
    q_ = upload_elements("q", inputs.q);
    k_ = upload_elements("k", inputs.k);
    v_ = upload_elements("v", inputs.v);
    out_ = global.allocate("out", out_bytes());
    lse_ = global.allocate("lse", lse_bytes());
  }

  AttentionProblem attention_problem() {
    const Problem& p = problem_;
    AttentionProblem problem;
    problem.packed = p.packed;
    problem.batch = p.batch;
    problem.nheads_q = p.nheads_q;
    problem.nheads_k = p.nheads_k;
    problem.headdim = p.headdim;
    problem.headdim_v = p.headdim_v;
    problem.seqlen_q = p.packed ? 0 : p.seqlen_q;
    problem.seqlen_k = p.packed ? 0 : p.seqlen_k;
    problem.total_q = p.packed ? p.total_q : p.seqlen_q;
    problem.total_k = p.packed ? p.total_k : p.seqlen_k;
    problem.dtype = problem.out_dtype = element_type(p);
    problem.softmax_scale = p.scale();
    problem.softcap = p.softcap;
    problem.mask.causal = p.causal;
    problem.mask.top_left = p.top_left;
    problem.mask.window_left = p.has_window ? p.window_left : -1;
    problem.mask.window_right = p.has_window ? p.window_right : -1;
    problem.mask.attention_chunk = p.attention_chunk;
    problem.q = tensor(q_, problem.total_q, p.nheads_q, p.headdim);
    problem.k = tensor(k_, problem.total_k, p.nheads_k, p.headdim);
    problem.v = tensor(v_, problem.total_k, p.nheads_k, p.headdim_v);
    problem.out = tensor(out_, problem.total_q, p.nheads_q, p.headdim_v);
    problem.lse = {lse_, DType::kFp32, p.packed ? 0 : p.nheads_q * p.seqlen_q, problem.total_q, 1};
    if (p.lo) problem.lo = intervals("lo", *p.lo);
    if (p.hi) problem.hi = intervals("hi", *p.hi);
    if (!p.sink.empty()) problem.sink = vector("sink", DType::kFp32, std::vector<float>(p.sink.begin(), p.sink.end()));
    if (p.packed) problem.cu_seqlens_q = vector("cu_seqlens_q", DType::kInt32, p.cu_seqlens_q);
    if (p.packed) problem.cu_seqlens_k = vector("cu_seqlens_k", DType::kInt32, p.cu_seqlens_k);
    if (!p.seqused_q.empty()) problem.seqused_q = vector("seqused_q", DType::kInt32, p.seqused_q);
    if (!p.seqused_k.empty()) problem.seqused_k = vector("seqused_k", DType::kInt32, p.seqused_k);
    problem.exec.workspace = global_.allocate("workspace", sm90::forward_workspace(problem).bytes);
    return problem;
  }

  optest::Results outputs() const {
    optest::Results results;
    const auto elements = static_cast<int64_t>(out_bytes() / 2);
    for (int64_t i = 0; i < elements; ++i) {
      results.out.push_back(optest::load(static_cast<const uint8_t*>(out_), problem_.dtype, i));
    }
    const auto* lse = static_cast<const float*>(lse_);
    results.lse.assign(lse, lse + lse_bytes() / sizeof(float));
    return results;
  }
  std::string unwritten() const {
    const std::string first = global_.unwritten(out_, out_bytes());
    return first.empty() ? global_.unwritten(lse_, lse_bytes()) : first;
  }

 private:
  size_t out_bytes() const {
    return static_cast<size_t>(problem_.rows_q() * problem_.nheads_q * problem_.headdim_v) * 2;
  }
  size_t lse_bytes() const { return static_cast<size_t>(problem_.rows_q() * problem_.nheads_q) * sizeof(float); }
  void* upload_elements(const char* name, const std::vector<double>& values) {
    std::vector<uint8_t> bytes(values.size() * 2);
    for (size_t i = 0; i < values.size(); ++i) {
      optest::store(bytes.data(), problem_.dtype, static_cast<int64_t>(i), values[i]);
    }
    return global_.upload_bytes(name, bytes.data(), bytes.size());
  }
  Tensor tensor(void* data, int64_t rows, int64_t heads, int64_t headdim) const {
    const int64_t batch_stride = problem_.packed ? 0 : rows * heads * headdim;
    return {data, element_type(problem_), batch_stride, heads * headdim, headdim};
  }
  template <typename T>
  Vector vector(const char* name, DType dtype, const std::vector<T>& values) {
    return {global_.upload(name, values), dtype, 1};
  }
  RowTensor intervals(const char* name, const optest::Intervals& given) {
    const int64_t rows = problem_.packed ? problem_.total_q : problem_.seqlen_q;
    const int64_t heads = given.per_head ? problem_.nheads_q : 1;
    const int64_t batch_stride = given.per_batch && !problem_.packed ? heads * rows : 0;
    return {global_.upload(name, given.values), DType::kInt32, batch_stride, given.per_head ? rows : 0, 1};
  }

  GlobalMemory& global_;
  const Problem& problem_;
  void *q_, *k_, *v_, *out_, *lse_;
};

template <bool kGeneral, int... kRows>
ForwardInstance find_instance(int row, DType dtype, std::integer_sequence<int, kRows...>) {
  constexpr ForwardInstance (*kInstances[])(DType) = {&forward_instance<kRows, kGeneral>...};
  return kInstances[row](dtype);
}

ForwardInstance find_instance(const sm90::ForwardPlan& plan) {
  constexpr std::make_integer_sequence<int, sm90::kForwardTilesCount> kRows;
  return plan.general ? find_instance<true>(plan.tiles_row, plan.dtype, kRows)
                      : find_instance<false>(plan.tiles_row, plan.dtype, kRows);
}

// As sm90/forward/launch.cu does it.
Launch prepare_launch(const sm90::ForwardPlan& plan, bool packed) {
  Launch launch;
  if (packed) {
    launch.threads = sm90::kPrepareThreads;
    launch.shared_bytes = sm90::kPrepareSmemBytes;
    launch.kernel = [&plan] { sm90::prepare_kernel(plan.prepare); };
  } else {
    launch.threads = 1;
    launch.kernel = [&plan] { sm90::reset_kernel(plan.params.workspace); };
  }
  return launch;
}

}  // namespace

ForwardRun run_forward(const Problem& problem, const optest::Inputs& inputs, int blocks, const Options& options) {
  Machine machine(options);
  Memory memory(machine.global(), problem, inputs);
  const AttentionProblem attention = memory.attention_problem();
  const Status status = sm90::forward_supports(attention);
  if (!status.is_ok()) throw std::invalid_argument(status.message());
  const sm90::ForwardPlan plan = sm90::plan_forward(attention);
  const ForwardInstance instance = find_instance(plan);

  ForwardRun run;
  run.result = machine.run(prepare_launch(plan, problem.packed));
  if (run.result.report) return run;
  instance.name_everything(machine.names());
  sm90::ForwardParams params = plan.params;
  params.q = machine.encode(plan.q);
  params.k = machine.encode(plan.k);
  params.v = machine.encode(plan.v);
  params.out = machine.encode(plan.out);
  Launch launch;
  launch.blocks = static_cast<int>(min_of(int64_t{blocks}, plan.max_tiles));
  launch.threads = instance.threads;
  launch.shared_bytes = instance.shared_bytes;
  launch.dependent = true;
  launch.kernel = [&] { instance.kernel(params); };
  run.result = machine.run(launch);
  run.names = machine.names();
  if (run.result.report) return run;
  run.outputs = memory.outputs();
  run.unwritten = memory.unwritten();
  return run;
}

std::string fault_of(const Problem& problem, const optest::Inputs& inputs, const ForwardRun& run) {
  if (run.result.report) return run.result.text();
  if (!run.unwritten.empty()) return run.unwritten + " was not written";
  return optest::compare_with_oracle(problem, inputs, run.outputs,
                                     optest::dense_attention<double>(problem, inputs, false));
}

}  // namespace tandem::model
