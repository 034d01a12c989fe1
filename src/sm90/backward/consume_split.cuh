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
#include "sm90/ptx/wgmma.cuh"
#include "sm90/tile/pipeline.cuh"
#include "sm90/tile/unpack.cuh"

// The consumers of head dims beyond 128: dK and dV of 64 keys take all registers of one warpgroup each. Consumer 0
// makes S, P and dV, consumer 1 dP, dS and dK; P goes from one to the other through shared memory, in the element type.
// Of the columns of dQ consumer 0 makes the first 128, and 1 the others, one square after the other.
namespace tandem::sm90 {

// P^T, or P^T (1 - tanh^2), between the consumers: each thread's fragment to the same thread of the other warpgroup.
struct PFragment {
  uint32_t word[4];
};
template <typename Traits>
TANDEM_DEVICE uint32_t p_address(int group) {
  const int thread = ptx::thread_rank_anew() % ptx::kWarpgroupThreads;
  return Traits::kSmemP + static_cast<uint32_t>(group * ptx::kWarpgroupThreads + thread) * 16;
}

// What both do: the squares of dQ, and the books of the buffers.
template <typename Traits>
class SplitConsumer {
 public:
  TANDEM_DEVICE SplitConsumer(const BackwardParams& params, int w) : params_(params), w_(w) {}

 protected:
  using Element = typename Traits::Element;
  static constexpr int kGroups = BackwardState<Traits>::kGroups;

  TANDEM_DEVICE void arrive(uint32_t barrier) const {
    ptx::warp_sync();
    ptx::mbarrier_arrive_if(barrier, ptx::lane_index() == 0);
  }

  // PERF: the number of the step is all that is kept of where the rings stand; registers are short.
  static_assert(Traits::kQStages == 2 && (Traits::kDoStages == 1 || Traits::kDoStages == 2));
  TANDEM_DEVICE int q_stage() const { return static_cast<int>(step_ % 2); }
  TANDEM_DEVICE void wait_q() const { ptx::mbarrier_wait(barrier_at(Traits::kQFull, q_stage()), step_ / 2 % 2); }
  TANDEM_DEVICE void release_q(int stage) const { arrive(barrier_at(Traits::kQEmpty, stage)); }
  TANDEM_DEVICE static int do_stage(uint32_t step) { return static_cast<int>(step % Traits::kDoStages); }
  TANDEM_DEVICE void wait_do() const {
    ptx::mbarrier_wait(barrier_at(Traits::kDoFull, do_stage(step_)), step_ / Traits::kDoStages % 2);
  }
  TANDEM_DEVICE void release_do(uint32_t step) const { arrive(barrier_at(Traits::kDoEmpty, do_stage(step))); }
  TANDEM_DEVICE int q_block() const { return q_block_of_stage<Traits>(q_stage()); }
  TANDEM_DEVICE int flags() const { return ptx::load_shared<int>(step_address<Traits>(q_stage()) + kStepFlags); }

  // Of the step that is worked on; the dQ of the step before lies in the other buffer.
  TANDEM_DEVICE int ds() const { return static_cast<int>(step_ % 2); }
  TANDEM_DEVICE int ds_before() const { return 1 - ds(); }
  TANDEM_DEVICE uint32_t ds_phase_before() const { return (step_ - 1) / 2 % 2; }

  TANDEM_DEVICE int square(int i) const { return 2 * w_ + i; }

  // Square i of this consumer's, which is done, to its staging place.
  TANDEM_DEVICE void stage_square(int i) {
    ptx::wgmma_fence_operand(state_.acc_dq());
    const bool one = w_ == 1 && Traits::kDqSquaresOf1 == 1;
    stage_dq(state_, params_, w_, one ? step_ % 2 : static_cast<uint32_t>(i));
  }

  const BackwardParams& params_;
  const int w_;
  BackwardState<Traits> state_;
  BackwardReader<Traits> reader_;
  uint32_t step_ = 0;  // of all tiles
};

// Consumer 0.
template <typename Traits>
class SplitConsumerOfP : private SplitConsumer<Traits> {
 public:
  using SplitConsumer<Traits>::SplitConsumer;

  TANDEM_DEVICE void run() {
    while (reader_.next()) {
      const bool any = reader_.slot().rows().m_begin < reader_.slot().rows().m_end;
      ptx::mbarrier_wait(Traits::kKFull, reader_.parity());
      ptx::mbarrier_wait(Traits::kVFull, reader_.parity());
      if (any) run_steps();
      meet_at_the_end();
      if (any) {
        write_gradient<Traits, typename Traits::DvTile>(state_.acc_dv, reader_.slot(), Traits::kSmemV, 0, 1.0f);
      } else {
        clear_gradient<typename Traits::DvTile>(Traits::kSmemV, 0);
      }
      hand_over_gradients<Traits>();
      reader_.release_by_warp();
    }
    ptx::bulk_wait<0>();  // shared memory must outlive the reductions, the grid's end publish them
  }

 private:
  using Base = SplitConsumer<Traits>;
  using Base::arrive, Base::ds_before, Base::ds_phase_before, Base::square, Base::stage_square;
  using Base::params_, Base::w_, Base::state_, Base::reader_, Base::step_;
  using Base::q_stage, Base::wait_q, Base::release_q, Base::do_stage, Base::wait_do, Base::release_do;
  using typename Base::Element;

  // In its part of the tensor cores' order: S(i) dQ(i-1) dQ(i-1) dV(i).
  TANDEM_DEVICE void run_steps() {
    begin_step();
    int flags = Base::flags();
    int q_block = Base::q_block();
    ptx::wgmma_wait<0>();
    make_p(flags);
    send_p();
    wait_do();
    ptx::wgmma_fence();
    issue_dv(state_, do_stage(step_), false);
    ptx::wgmma_wait<0>();
    release_do(step_);
    ++step_;

    bool dv_under_way = false;
    TANDEM_NO_UNROLL
    while ((flags & kStepLast) == 0) {
      begin_step();
      flags = Base::flags();
      const int next_q_block = Base::q_block();
      begin_dq();
      ptx::wgmma_wait<2>();  // dV(i-1)
      if (dv_under_way) release_do(step_ - 1);
      ptx::wgmma_wait<1>();  // S(i)
      make_p(flags);
      ptx::wgmma_wait<0>();
      stage_square(0);
      ptx::wgmma_fence();
      issue_dq(state_, ds_before(), square(1));
      send_p();
      send_dq<Traits>(params_, q_block, square(0), w_);
      wait_do();
      ptx::wgmma_fence();
      issue_dv(state_, do_stage(step_), true);
      ptx::wgmma_wait<1>();
      finish_dq(q_block);
      q_block = next_q_block;
      dv_under_way = true;
      ++step_;
    }

    begin_dq();
    ptx::wgmma_wait<1>();
    if (dv_under_way) release_do(step_ - 1);
    ptx::wgmma_wait<0>();
    stage_square(0);
    ptx::wgmma_fence();
    issue_dq(state_, ds_before(), square(1));
    ptx::fence_proxy_async_shared();
    send_dq<Traits>(params_, q_block, square(0), w_);
    ptx::wgmma_wait<0>();
    finish_dq(q_block);
    ptx::wgmma_fence_operand(state_.acc_dv);
  }

  TANDEM_DEVICE void begin_step() {
    wait_q();
    prefetch_values(state_, values_address<Traits>(Traits::kLse, q_stage()));
    ptx::wgmma_fence();
    issue_s(state_, q_stage(), 0);
  }

  // S is done: P, and Q no longer needed here.
  TANDEM_DEVICE void make_p(int flags) {
    ptx::wgmma_fence_operand(state_.acc_s);
    if constexpr (Traits::kGeneral) transform_scores(state_, params_);
    if (TANDEM_UNLIKELY((flags & kStepMasked) != 0)) {
      hide_scores(state_, params_, reader_.slot(), q_stage(), 0);
    }
    scores_to_p(state_, params_, values_address<Traits>(Traits::kLse, q_stage()));
    release_q(q_stage());
  }

  TANDEM_DEVICE void send_p() {
    ptx::mbarrier_wait(Traits::kPEmpty, step_ % 2 ^ 1);
    TANDEM_UNROLL
    for (int group = 0; group < Base::kGroups; ++group) {
      PFragment fragment;
      TANDEM_UNROLL
      for (int r = 0; r < 4; ++r) {
        const int i = 8 * group + 2 * r;
        fragment.word[r] =
            Traits::kGeneral ? pack2<Element>(state_.acc_s[i], state_.acc_s[i + 1]) : state_.frag_p[group][r];
      }
      ptx::store_shared(p_address<Traits>(group), fragment);
    }
    ptx::fence_proxy_async_shared();  // the square of dQ that has been staged
    arrive(Traits::kPFull);
  }

  TANDEM_DEVICE void begin_dq() {
    ptx::mbarrier_wait(barrier_at(Traits::kDsFull, ds_before()), ds_phase_before());
    ptx::wgmma_fence();
    issue_dq(state_, ds_before(), square(0));
  }

  // Both squares are done.
  TANDEM_DEVICE void finish_dq(int q_block) {
    arrive(barrier_at(Traits::kDsEmpty, ds_before()));
    stage_square(1);
    ptx::fence_proxy_async_shared();
    send_dq<Traits>(params_, q_block, square(1), w_);
  }
};

// Consumer 1.
template <typename Traits>
class SplitConsumerOfDs : private SplitConsumer<Traits> {
 public:
  using SplitConsumer<Traits>::SplitConsumer;

  TANDEM_DEVICE void run() {
    while (reader_.next()) {
      const bool any = reader_.slot().rows().m_begin < reader_.slot().rows().m_end;
      ptx::mbarrier_wait(Traits::kKFull, reader_.parity());
      ptx::mbarrier_wait(Traits::kVFull, reader_.parity());
      if (any) run_steps();
      meet_at_the_end();
      if (any) {
        write_gradient<Traits, typename Traits::DkTile>(state_.acc_dk, reader_.slot(), Traits::kSmemK, 0,
                                                        params_.softmax_scale);
      } else {
        clear_gradient<typename Traits::DkTile>(Traits::kSmemK, 0);
      }
      hand_over_gradients<Traits>();
      reader_.release_by_warp();
    }
    ptx::bulk_wait<0>();
  }

 private:
  using Base = SplitConsumer<Traits>;
  using Base::arrive, Base::ds, Base::square, Base::stage_square;
  using Base::params_, Base::w_, Base::state_, Base::reader_, Base::step_;
  using Base::q_stage, Base::wait_q, Base::release_q, Base::do_stage, Base::wait_do, Base::release_do;
  using typename Base::Element;

  // In its part of the tensor cores' order: dP(i) dK(i) dQ(i), and dQ(i) again if it has two squares. Nothing is under
  // way between two steps.
  TANDEM_DEVICE void run_steps() {
    int flags;
    TANDEM_NO_UNROLL
    do {
      begin_step();
      flags = Base::flags();
      const int q_block = Base::q_block();
      ptx::mbarrier_wait(Traits::kPFull, step_ % 2);
      ptx::wgmma_wait<0>();  // dP
      make_ds();
      write_ds();
      ptx::wgmma_fence();
      issue_dk((flags & kStepFirst) == 0);
      ptx::mbarrier_wait(barrier_at(Traits::kDsFull, ds()), step_ / 2 % 2);  // of all four warps
      make_square(0);
      release_q(q_stage());  // dK
      send_square(q_block, 0);
      if constexpr (Traits::kDqSquaresOf1 == 2) {
        make_square(1);
        send_square(q_block, 1);
      }
      ++step_;
    } while ((flags & kStepLast) == 0);
    ptx::wgmma_fence_operand(state_.acc_dk);
  }

  TANDEM_DEVICE void make_square(int i) {
    ptx::wgmma_fence();
    issue_dq(state_, ds(), square(i));
    ptx::wgmma_wait<0>();
  }
  TANDEM_DEVICE void send_square(int q_block, int i) {
    stage_square(i);
    ptx::fence_proxy_async_shared();
    send_dq<Traits>(params_, q_block, square(i), w_);
  }

  TANDEM_DEVICE void begin_step() {
    wait_q();
    wait_do();
    prefetch_values(state_, values_address<Traits>(Traits::kDelta, do_stage(step_)));
    ptx::wgmma_fence();
    issue_dp(state_, do_stage(step_), 0);
  }

  // dP is done, and P is there: dS^T = P^T (dP^T - delta), as the A fragment of dK.
  TANDEM_DEVICE void make_ds() {
    ptx::wgmma_fence_operand(state_.acc_dp);
    TANDEM_UNROLL
    for (int group = 0; group < Base::kGroups; ++group) {
      const PFragment p = ptx::load_shared<PFragment>(p_address<Traits>(group));
      const RowValues delta = state_.values[group];
      TANDEM_UNROLL
      for (int r = 0; r < 4; ++r) {
        const int i = 8 * group + 2 * r;
        state_.frag_p[group][r] =
            pack2<Element>(low_half<Element>(p.word[r]) * (state_.acc_dp[i] - delta.value[value_index(i)]),
                           high_half<Element>(p.word[r]) * (state_.acc_dp[i + 1] - delta.value[value_index(i + 1)]));
      }
    }
    arrive(Traits::kPEmpty);
    release_do(step_);
  }

  // dS as (queries, keys), for dQ.
  TANDEM_DEVICE void write_ds() {
    ptx::mbarrier_wait(barrier_at(Traits::kDsEmpty, ds()), step_ / 2 % 2 ^ 1);
    const uint32_t address = ds_address<Traits>(ds(), 0);
    TANDEM_UNROLL
    for (int group = 0; group < Base::kGroups; ++group) {
      ptx::stmatrix_x4_transposed(address + group * 16 * Traits::DsTile::kPanelRowBytes, state_.frag_p[group]);
    }
    ptx::fence_proxy_async_shared();
    arrive(barrier_at(Traits::kDsFull, ds()));
  }

  // dK += dS^T Q, not scaled. (64, kBlockM) x (kBlockM, kHeadDim)
  TANDEM_DEVICE void issue_dk(bool accumulate) {
    using QTile = typename Traits::QTile;
    const uint32_t q_offset = static_cast<uint32_t>(q_stage()) * QTile::kBytes;
    TANDEM_UNROLL
    for (int step = 0; step < Traits::kBlockM / 16; ++step) {
      ptx::Wgmma<Element, Traits::kHeadDim>::template rs<ptx::Major::kMn>(
          state_.acc_dk, state_.frag_p[step], advance(QTile::mn_major(Traits::kSmemQ, step), q_offset),
          step > 0 || accumulate);
    }
    ptx::wgmma_commit();
  }
};

}  // namespace tandem::sm90
