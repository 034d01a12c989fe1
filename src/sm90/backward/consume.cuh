#pragma once

#include <cstdint>

#include "sm90/backward/finish.cuh"
#include "sm90/backward/params.h"
#include "sm90/backward/step.cuh"
#include "sm90/backward/traits.h"
#include "sm90/backward/work.cuh"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/fence.cuh"
#include "sm90/ptx/mbarrier.cuh"
#include "sm90/ptx/named_barrier.cuh"
#include "sm90/ptx/shared.cuh"
#include "sm90/ptx/warp.cuh"
#include "sm90/ptx/wgmma.cuh"
#include "sm90/tile/fragment.cuh"
#include "sm90/tile/pipeline.cuh"

// A consumer warpgroup: 64 keys of each work tile, step after step.
namespace tandem::sm90 {

template <typename Traits>
class BackwardConsumer {
 public:
  TANDEM_DEVICE BackwardConsumer(const BackwardParams& params, int w) : params_(params), w_(w) {}

  TANDEM_DEVICE void run() {
    while (reader_.next()) {
      const TileQueryRange rows = reader_.slot().rows();
      ptx::mbarrier_wait(Traits::kKFull, reader_.parity());
      if (rows.m_begin < rows.m_end) {
        if constexpr (Traits::kLateP) {
          run_steps_late();
        } else {
          run_steps();
        }
        finish_tile();
      } else {
        ptx::mbarrier_wait(Traits::kVFull, reader_.parity());
        clear_gradient<typename Traits::DkTile>(Traits::kSmemK, w_);
        clear_gradient<typename Traits::DvTile>(Traits::kSmemV, w_);
      }
      hand_over_gradients<Traits>();
      reader_.release_by_warp();
    }
    ptx::bulk_wait<0>();  // shared memory must outlive the reductions, the grid's end publish them
  }

 private:
  using QPipe = PipelineState<Traits::kQStages>;
  using DoPipe = PipelineState<Traits::kDoStages>;

  // Of the step whose Q lies in stage q.
  TANDEM_DEVICE int load_flags(int q) const { return ptx::load_shared<int>(step_address<Traits>(q) + kStepFlags); }
  TANDEM_DEVICE static bool is_first(int flags) { return (flags & kStepFirst) != 0; }
  TANDEM_DEVICE static bool is_last(int flags) { return (flags & kStepLast) != 0; }
  // Of the step before the one whose Q lies in stage q.
  TANDEM_DEVICE static int stage_before(int q) { return (q == 0 ? Traits::kQStages : q) - 1; }

  // Of the number of a step, of all tiles.
  TANDEM_DEVICE static uint32_t parity_of(DoPipe o) {
    const auto index = static_cast<uint32_t>(o.index);
    return (Traits::kDoStages % 2 == 0 ? index : index + o.phase) % 2;
  }

  TANDEM_DEVICE uint32_t lse_address(int q) const { return values_address<Traits>(Traits::kLse, q); }
  TANDEM_DEVICE uint32_t delta_address(int o) const { return values_address<Traits>(Traits::kDelta, o); }

  // S^T as it comes from the product, to P^T.
  TANDEM_DEVICE void make_p(int flags, int q) {
    if constexpr (Traits::kGeneral) transform_scores(state_, params_);
    if (TANDEM_UNLIKELY((flags & kStepMasked) != 0)) hide_scores(state_, params_, reader_.slot(), q, w_);
    scores_to_p(state_, params_, lse_address(q));
  }

  // Both consumers: dS is written, and the products with the buffer that comes next are done.
  TANDEM_DEVICE void meet() const { ptx::named_barrier_sync(kDsBarrier, 2 * ptx::kWarpgroupThreads); }

  // In the tensor cores' order: dQ(i) S(i+1) dP(i+1) dK(i) dV(i+1). Between two steps dS(i) is written, and dV(i) and
  // dK(i-1) are under way.
  TANDEM_DEVICE void run_steps() {
    QPipe q = q_pipe_;  // of step i
    DoPipe o = do_pipe_;
    int ds = 0;
    wait(Traits::kQFull, q);
    int flags = load_flags(q.index);
    ptx::wgmma_fence();
    issue_s(state_, q.index, w_);
    prefetch_values(state_, lse_address(q.index));
    ptx::mbarrier_wait(Traits::kVFull, reader_.parity());
    wait(Traits::kDoFull, o);
    issue_dp(state_, o.index, w_);
    ptx::wgmma_wait<1>();
    ptx::wgmma_fence_operand(state_.acc_s);
    make_p(flags, q.index);
    prefetch_values(state_, delta_address(o.index));
    ptx::wgmma_fence();
    issue_dv(state_, o.index, false);
    ptx::wgmma_wait<1>();
    ptx::wgmma_fence_operand(state_.acc_dp);
    store_ds(state_, delta_address(o.index), ds, w_);
    ptx::fence_proxy_async_shared();
    QPipe next_q = q;
    int next_flags = flags;
    if (!is_last(flags)) next_flags = await(next_q);
    meet();

    TANDEM_NO_UNROLL
    while (!is_last(flags)) {
      ptx::wgmma_fence();
      issue_dq(state_, ds, w_);
      issue_s(state_, next_q.index, w_);
      ptx::wgmma_wait<1>();  // dQ(i), dV(i), dK(i-1)
      ptx::wgmma_fence_operand(state_.acc_dq());
      release(Traits::kDoEmpty, o);
      if (!is_first(flags)) release_q(stage_before(q.index));
      stage_dq(state_, params_, w_, parity_of(o));
      o.advance();
      wait(Traits::kDoFull, o);
      ptx::wgmma_fence();
      issue_dp(state_, o.index, w_);
      issue_dk(state_, ds, q.index, w_, !is_first(flags));
      ptx::wgmma_wait<2>();  // S(i+1)
      ptx::wgmma_fence_operand(state_.acc_s);
      make_p(next_flags, next_q.index);
      prefetch_values(state_, delta_address(o.index));
      ptx::wgmma_fence();
      issue_dv(state_, o.index, true);
      ptx::wgmma_wait<2>();  // dP(i+1)
      ptx::wgmma_fence_operand(state_.acc_dp);
      ds ^= 1;
      store_ds(state_, delta_address(o.index), ds, w_);
      ptx::fence_proxy_async_shared();
      send_dq<Traits>(params_, q_block_of_stage<Traits>(q.index), w_, w_);
      q = next_q;
      flags = next_flags;
      if (!is_last(flags)) next_flags = await(next_q);
      meet();
    }

    finish_steps(flags, q, o, ds);
  }

  // The same where P is packed with dS: dQ(i) S(i+1) dP(i+1) dK(i) | dV(i+1). Between two steps P(i) and dP(i) are in
  // registers, and dK(i-1) is under way. The buffers of dS take turns as the stages of dO do.
  TANDEM_DEVICE void run_steps_late() {
    QPipe q = q_pipe_;  // of step i
    DoPipe o = do_pipe_;
    wait(Traits::kQFull, q);
    int flags = load_flags(q.index);
    ptx::wgmma_fence();
    issue_s(state_, q.index, w_);
    ptx::mbarrier_wait(Traits::kVFull, reader_.parity());
    wait(Traits::kDoFull, o);
    issue_dp(state_, o.index, w_);
    ptx::wgmma_wait<1>();
    ptx::wgmma_fence_operand(state_.acc_s);
    make_p(flags, q.index);
    ptx::wgmma_wait<0>();
    ptx::wgmma_fence_operand(state_.acc_dp);

    TANDEM_NO_UNROLL
    while (!is_last(flags)) {
      write_ds_and_issue_dv(flags, q.index, o.index);
      ptx::wgmma_fence();
      issue_dq(state_, o.index, w_);
      QPipe next_q = q;
      const int next_flags = await(next_q);
      issue_s(state_, next_q.index, w_);
      ptx::wgmma_wait<1>();  // dK(i-1), dV(i), dQ(i)
      ptx::wgmma_fence_operand(state_.acc_dq());
      release(Traits::kDoEmpty, o);
      if (!is_first(flags)) release_q(stage_before(q.index));
      const int ds = o.index;
      stage_dq(state_, params_, w_, parity_of(o));
      o.advance();
      wait(Traits::kDoFull, o);
      ptx::wgmma_fence();
      issue_dp(state_, o.index, w_);
      issue_dk(state_, ds, q.index, w_, !is_first(flags));
      ptx::wgmma_wait<2>();  // S(i+1)
      ptx::wgmma_fence_operand(state_.acc_s);
      make_p(next_flags, next_q.index);
      ptx::wgmma_wait<1>();  // dP(i+1)
      ptx::wgmma_fence_operand(state_.acc_dp);
      q = next_q;
      flags = next_flags;
    }

    write_ds_and_issue_dv(flags, q.index, o.index);
    finish_steps(flags, q, o, o.index);
  }

  // Between dP and dQ of a late step.
  TANDEM_DEVICE void write_ds_and_issue_dv(int flags, int q, int o) {
    store_ds(state_, delta_address(o), o, w_);
    ptx::fence_proxy_async_shared();  // dS, and dQ of the step before
    if (!is_first(flags)) send_dq<Traits>(params_, q_block_of_stage<Traits>(stage_before(q)), w_, w_);
    ptx::wgmma_fence();
    issue_dv(state_, o, !is_first(flags));
    meet();
  }

  // The last step's dQ and dK.
  TANDEM_DEVICE void finish_steps(int flags, QPipe q, DoPipe o, int ds) {
    ptx::wgmma_fence();
    issue_dq(state_, ds, w_);
    issue_dk(state_, ds, q.index, w_, !is_first(flags));
    ptx::wgmma_wait<1>();
    ptx::wgmma_fence_operand(state_.acc_dq());
    stage_dq(state_, params_, w_, parity_of(o));
    ptx::fence_proxy_async_shared();
    send_dq<Traits>(params_, q_block_of_stage<Traits>(q.index), w_, w_);
    ptx::wgmma_wait<0>();
    release(Traits::kDoEmpty, o);
    if (!is_first(flags)) release_q(stage_before(q.index));
    release_q(q.index);
    q.advance();
    o.advance();
    q_pipe_ = q;
    do_pipe_ = o;
  }

  // Until the next step's Q is there; returns its flags.
  TANDEM_DEVICE int await(QPipe& q) {
    q.advance();
    wait(Traits::kQFull, q);
    prefetch_values(state_, lse_address(q.index));
    return load_flags(q.index);
  }

  TANDEM_DEVICE void release_q(int stage) const {
    ptx::warp_sync();
    ptx::mbarrier_arrive_if(barrier_at(Traits::kQEmpty, stage), ptx::lane_index() == 0);
  }

  TANDEM_DEVICE void finish_tile() {
    ptx::wgmma_fence_operand(state_.acc_dk);
    ptx::wgmma_fence_operand(state_.acc_dv);
    meet_at_the_end();
    write_gradient<Traits, typename Traits::DkTile>(state_.acc_dk, reader_.slot(), Traits::kSmemK, w_,
                                                    params_.softmax_scale);
    write_gradient<Traits, typename Traits::DvTile>(state_.acc_dv, reader_.slot(), Traits::kSmemV, w_, 1.0f);
  }

  const BackwardParams& params_;
  const int w_;
  BackwardState<Traits> state_;
  BackwardReader<Traits> reader_;
  QPipe q_pipe_;
  DoPipe do_pipe_;
};

}  // namespace tandem::sm90
