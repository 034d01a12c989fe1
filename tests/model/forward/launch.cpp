#include "forward/launch.h"

#include <cmath>
#include <stdexcept>

#include "core/dtype.h"
#include "core/int_math.h"
#include "core/problem.h"
#include "sm90/forward/kernel.cuh"
#include "sm90/forward/plan.h"
#include "sm90/forward/traits.h"

namespace tandem::model {
namespace {

Tensor tensor_view(void* data, int64_t seqlen, int64_t heads, int64_t headdim) {
  Tensor tensor;
  tensor.data = data;
  tensor.dtype = DType::kBf16;
  tensor.batch_stride = seqlen * heads * headdim;
  tensor.row_stride = heads * headdim;
  tensor.head_stride = headdim;
  return tensor;
}

struct Arrays {
  uint16_t* q;
  uint16_t* k;
  uint16_t* v;
  uint16_t* out;
  float* lse;
  uint32_t* next_tile;
};

Arrays make_arrays(GlobalMemory& global, const ForwardProblem& p, const ForwardInputs& inputs) {
  const auto rows = static_cast<size_t>(p.batch * p.nheads_q * p.seqlen_q);
  Arrays arrays;
  arrays.q = global.upload("q", inputs.q);
  arrays.k = global.upload("k", inputs.k);
  arrays.v = global.upload("v", inputs.v);
  arrays.out = static_cast<uint16_t*>(global.allocate("out", inputs.q.size() * sizeof(uint16_t)));
  arrays.lse = static_cast<float*>(global.allocate("lse", rows * sizeof(float)));
  arrays.next_tile = global.upload("next_tile", std::vector<uint32_t>{0});
  return arrays;
}

AttentionProblem attention_problem(const ForwardProblem& p, const Arrays& arrays) {
  AttentionProblem problem;
  problem.q = tensor_view(arrays.q, p.seqlen_q, p.nheads_q, p.headdim);
  problem.k = tensor_view(arrays.k, p.seqlen_k, p.nheads_k, p.headdim);
  problem.v = tensor_view(arrays.v, p.seqlen_k, p.nheads_k, p.headdim);
  problem.out = tensor_view(arrays.out, p.seqlen_q, p.nheads_q, p.headdim);
  problem.lse.data = arrays.lse;
  problem.lse.dtype = DType::kFp32;
  problem.lse.batch_stride = p.nheads_q * p.seqlen_q;
  problem.lse.head_stride = p.seqlen_q;
  problem.lse.row_stride = 1;
  problem.batch = p.batch;
  problem.nheads_q = p.nheads_q;
  problem.nheads_k = p.nheads_k;
  problem.headdim = problem.headdim_v = p.headdim;
  problem.seqlen_q = problem.total_q = p.seqlen_q;
  problem.seqlen_k = problem.total_k = p.seqlen_k;
  problem.dtype = problem.out_dtype = DType::kBf16;
  problem.softmax_scale = 1.0 / std::sqrt(static_cast<double>(p.headdim));
  problem.mask = p.mask;
  return problem;
}

// By the barrier table of sm90/forward/traits.h.
template <typename Traits>
void name_everything(Names& names) {
  constexpr bool kOncePerWarp = true;
  names.mbarrier("q_full", Traits::kQFull, Traits::kConsumers, kOncePerWarp);
  names.mbarrier("q_empty", Traits::kQEmpty, Traits::kConsumers, kOncePerWarp);
  names.mbarrier("o_full", Traits::kOFull, Traits::kConsumers, kOncePerWarp);
  names.mbarrier("k_full", Traits::kKFull, Traits::kStages, kOncePerWarp);
  names.mbarrier("k_empty", Traits::kKEmpty, Traits::kStages, kOncePerWarp);
  names.mbarrier("v_full", Traits::kVFull, Traits::kStages, kOncePerWarp);
  names.mbarrier("v_empty", Traits::kVEmpty, Traits::kStages, kOncePerWarp);
  names.mbarrier("tile_full", Traits::kTileFull, Traits::kTileStages, kOncePerWarp);
  names.mbarrier("tile_empty", Traits::kTileEmpty, Traits::kTileStages, kOncePerWarp);
  names.shared("q", Traits::kSmemQ, Traits::QTile::kBytes, Traits::kConsumers);
  names.shared("k", Traits::kSmemK, Traits::KTile::kBytes, Traits::kStages);
  names.shared("v", Traits::kSmemV, Traits::VTile::kBytes, Traits::kStages);
  names.shared("tile_slot", Traits::kTileSlots, Traits::kTileSlotBytes, Traits::kTileStages);
  names.named_barrier("turn", sm90::kTurnBarrier, Traits::kConsumers);
  names.named_barrier("epilogue", sm90::kEpilogueBarrier, Traits::kConsumers);
  names.warp_role("load", 0, 1);
  names.warp_role("scheduler", 1, 1);
  names.warp_role("store 0", 2, 1);
  names.warp_role("store 1", 3, 1);
  names.warp_role("consumer 0", 4, 4);
  names.warp_role("consumer 1", 8, 4);
}

ForwardOutputs read_outputs(const ForwardInputs& inputs, const ForwardProblem& p, const Arrays& arrays) {
  ForwardOutputs outputs;
  for (size_t i = 0; i < inputs.q.size(); ++i) outputs.out.push_back(to_float(Bf16{arrays.out[i]}));
  outputs.lse.assign(arrays.lse, arrays.lse + p.batch * p.nheads_q * p.seqlen_q);
  return outputs;
}

template <typename Traits>
ForwardRun run(const ForwardProblem& p, const ForwardInputs& inputs, int blocks, const Options& options) {
  Machine machine(options);
  name_everything<Traits>(machine.names());
  const Arrays arrays = make_arrays(machine.global(), p, inputs);
  const sm90::ForwardPlan plan = sm90::plan_forward(attention_problem(p, arrays));
  sm90::ForwardParams params = plan.params;
  params.q = machine.encode(plan.q);
  params.k = machine.encode(plan.k);
  params.v = machine.encode(plan.v);
  params.out = machine.encode(plan.out);
  params.next_tile = arrays.next_tile;
  Launch launch;
  launch.blocks = static_cast<int>(min_of(int64_t{blocks}, params.tiles));
  launch.threads = Traits::kThreads;
  launch.shared_bytes = Traits::kSmemBytes;
  launch.kernel = [&params] { sm90::forward_kernel<Traits>(params); };
  ForwardRun run;
  run.result = machine.run(launch);
  run.names = machine.names();
  if (run.result.report) return run;
  run.outputs = read_outputs(inputs, p, arrays);
  run.unwritten = machine.global().unwritten(arrays.out, inputs.q.size() * sizeof(uint16_t));
  if (run.unwritten.empty())
    run.unwritten = machine.global().unwritten(arrays.lse, run.outputs.lse.size() * sizeof(float));
  return run;
}

}  // namespace

ForwardRun run_forward(const ForwardProblem& problem, const ForwardInputs& inputs, int blocks, const Options& options) {
  if (problem.headdim == 64) return run<sm90::ForwardTraits<Bf16, 64>>(problem, inputs, blocks, options);
  if (problem.headdim == 128) return run<sm90::ForwardTraits<Bf16, 128>>(problem, inputs, blocks, options);
  throw std::invalid_argument("the forward kernel has headdim 64 and 128 only");
}

}  // namespace tandem::model
