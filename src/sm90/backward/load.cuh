#pragma once

#include <cstdint>

#include "sm90/backward/params.h"
#include "sm90/backward/traits.h"
#include "sm90/backward/work.cuh"
#include "sm90/ptx/device.cuh"
#include "sm90/ptx/fence.cuh"
#include "sm90/ptx/global.cuh"
#include "sm90/ptx/grid_dependency.cuh"
#include "sm90/ptx/mbarrier.cuh"
#include "sm90/ptx/tma.cuh"
#include "sm90/tile/load_tile.cuh"
#include "sm90/tile/pipeline.cuh"

// The load thread: draws work tiles, tells everybody, and loads their K, V, and the Q, LSE, dO and delta of each step.
namespace tandem::sm90 {

template <typename Traits>
TANDEM_DEVICE bool has_bounds(const BackwardParams& params) {
  return Traits::kGeneral && params.bounds != nullptr;
}

// Does this m_block hold rows that see no key, or are none, and do not come as zeros? The clean-up warp asks the same.
template <typename Traits>
TANDEM_DEVICE bool needs_cleaning(const BackwardParams& params, const TileMask& mask, int m_block, int q_block) {
  if (TANDEM_UNLIKELY(has_bounds<Traits>(params))) {
    if (ptx::load_global(&params.bounds[q_block]).max_lo == INT32_MAX) return true;
  }
  return m_block * Traits::kBlockM < mask.seen_begin || (m_block + 1) * Traits::kBlockM > mask.seen_end;
}

// Does some row of this m_block not see some key of the tile?
template <typename Traits>
TANDEM_DEVICE bool is_masked(const BackwardParams& params, BackwardSlot<Traits> slot, int m_block, int q_block) {
  if (TANDEM_UNLIKELY(has_bounds<Traits>(params))) {
    const MBlockBounds bounds = ptx::load_global(&params.bounds[q_block]);
    const int first_key = slot.keys().first_key;
    return bounds.max_lo > first_key || bounds.min_hi < first_key + Traits::kBlockN;
  }
  const TileMask mask = slot.mask();
  return m_block < mask.full_begin || m_block >= mask.full_end;
}

template <typename Traits>
TANDEM_DEVICE int q_block_of(const BackwardParams& params, BackwardSlot<Traits> slot, int m_block, int head) {
  return static_cast<int>(q_block_index(slot.sequence().m_block_begin + m_block, head, params.nheads_q));
}

// One thread.
template <typename Traits>
class BackwardLoader {
 public:
  TANDEM_DEVICE explicit BackwardLoader(const BackwardParams& params) : params_(params) {}

  TANDEM_DEVICE void run() {
    ptx::wait_for_previous_grid();
    ptx::fence_proxy_async();  // what the kernels before have written with ordinary stores, this one reads by TMA
    int index = is_deterministic(params_) ? draw() : ptx::block_index();
    while (index < count_tiles()) {
      announce(index);
      load();
      ++tile_;
      index = draw();
    }
    acquire_slot();
    slot().set(TileHead{});
    ptx::mbarrier_arrive(tile_full());
  }

 private:
  // HAZARD: a tile waits for those before it. Deterministic, each is drawn, so that a tile that others wait for has a
  // running block: of two grids that run side by side each might have blocks that wait for the other's to end.
  TANDEM_DEVICE int draw() const {
    const auto drawn = static_cast<int>(ptx::atomic_add(&params_.workspace->next_tile, 1));
    return is_deterministic(params_) ? drawn : drawn + ptx::grid_size();
  }

  TANDEM_DEVICE int tile_index() const { return static_cast<int>(tile_ % 2); }
  TANDEM_DEVICE BackwardSlot<Traits> slot() const { return BackwardSlot<Traits>(tile_index()); }
  TANDEM_DEVICE uint32_t tile_full() const { return barrier_at(Traits::kTileFull, tile_index()); }
  TANDEM_DEVICE void acquire_slot() const {
    ptx::mbarrier_wait(barrier_at(Traits::kTileEmpty, tile_index()), tile_ / 2 % 2 ^ 1);
  }

  TANDEM_DEVICE int count_tiles() const {
    if (params_.sequences == nullptr) return params_.dense_work.tiles;
    return ptx::load_global(&params_.workspace->n_blocks) * params_.nheads_k;
  }

  // The record of the tile's n_block, by the copy engine, and its head.
  TANDEM_DEVICE void announce(int index) const {
    int record;
    int head;
    if (params_.sequences == nullptr) {
      const BasicWorkTile<int> work = params_.dense_work.tile(index);
      record = work.batch * params_.dense_work.m_blocks + work.m_block;
      head = work.head;
    } else {
      record = static_cast<int>(params_.nheads_k_divisor.quotient(static_cast<uint32_t>(index)));
      head = index - record * params_.nheads_k;
    }
    acquire_slot();
    const uint32_t full = tile_full();
    slot().set(TileHead{1, head, {0, 0}});
    ptx::mbarrier_arrive_expect_tx(full, sizeof(KeyBlockRecord));
    if (Traits::kGeneral && params_.record_heads > 1) record = record * params_.record_heads + head;
    ptx::bulk_load(slot().address, params_.records + record, sizeof(KeyBlockRecord), full);
    ptx::mbarrier_wait(full, tile_ / 2 % 2);
  }

  // The first step's Q and dO need not wait for the place of K and V, which dK and dV of the tile before leave through.
  // PERF: what a slot holds is read again and again, for want of registers.
  TANDEM_DEVICE void load() {
    if (slot().rows().m_begin >= slot().rows().m_end) pass_keys();
    TANDEM_NO_UNROLL
    for (int h = 0; h < params_.qheads_per_khead; ++h) {
      TANDEM_NO_UNROLL
      for (int m_block = slot().rows().m_begin; m_block < slot().rows().m_end; ++m_block) {
        load_step(m_block, h);
        if (is_first(m_block, h)) load_keys();
      }
    }
  }

  TANDEM_DEVICE bool is_first(int m_block, int h) const { return h == 0 && m_block == slot().rows().m_begin; }
  TANDEM_DEVICE bool is_last(int m_block, int h) const {
    return h + 1 == params_.qheads_per_khead && m_block + 1 == slot().rows().m_end;
  }

  TANDEM_DEVICE void load_step(int m_block, int h) {
    const int head = slot().head().key_head * params_.qheads_per_khead + h;
    const int q_block = q_block_of(params_, slot(), m_block, head);
    int flags = is_masked(params_, slot(), m_block, q_block) ? kStepMasked : 0;
    if (is_first(m_block, h)) flags |= kStepFirst;
    if (is_last(m_block, h)) flags |= kStepLast;
    const bool clean_up = needs_cleaning<Traits>(params_, slot().mask(), m_block, q_block);
    const int first_row = m_block * Traits::kBlockM;

    acquire(Traits::kQEmpty, q_pipe_);
    ptx::store_shared(step_address<Traits>(q_pipe_.index), BackwardStep{q_block, flags, first_row, head});
    load_rows<typename Traits::QTile>(&params_.q, params_.lse_log2, Traits::kSmemQ, Traits::kLse, q_pipe_.index,
                                      clean_up ? Traits::kQLanded : Traits::kQFull, first_row, head, q_block);
    q_pipe_.advance();
    acquire(Traits::kDoEmpty, do_pipe_);
    load_rows<typename Traits::DoTile>(&params_.dout, params_.delta, Traits::kSmemDo, Traits::kDelta, do_pipe_.index,
                                       clean_up ? Traits::kDoLanded : Traits::kDoFull, first_row, head, q_block);
    do_pipe_.advance();
  }

  // A step's Q and LSE, or dO and delta, to a stage.
  template <typename Tile>
  TANDEM_DEVICE void load_rows(const ptx::TensorMap* map, const float* values, uint32_t tiles, uint32_t value_places,
                               int stage, uint32_t barriers, int first_row, int head, int q_block) const {
    const uint32_t full = barrier_at(barriers, stage);
    ptx::mbarrier_arrive_expect_tx(full, Tile::kBytes + Traits::kRowValueBytes);
    load_panels<Tile>(tiles + static_cast<uint32_t>(stage) * Tile::kBytes, map, full, slot().rows().q_begin + first_row,
                      head, slot().sequence().batch);
    ptx::bulk_load(value_places + static_cast<uint32_t>(stage) * Traits::kRowValueBytes,
                   values + int64_t{q_block} * Traits::kBlockM, Traits::kRowValueBytes, full);
  }

  TANDEM_DEVICE void load_keys() {
    const TileKeyRange keys = slot().keys();
    const bool clean_up = !all_seen(slot().seen());
    const int key = keys.k_begin + keys.first_key;
    const int head = slot().head().key_head;
    const int batch = slot().sequence().batch;
    acquire_key_place();
    load_tile<typename Traits::KTile>(Traits::kSmemK, &params_.k, clean_up ? Traits::kKLanded : Traits::kKFull, key,
                                      head, batch);
    load_tile<typename Traits::VTile>(Traits::kSmemV, &params_.v, clean_up ? Traits::kVLanded : Traits::kVFull, key,
                                      head, batch);
  }

  // Until dK and dV of the tile before have left it.
  TANDEM_DEVICE void acquire_key_place() const { ptx::mbarrier_wait(Traits::kKvEmpty, tile_ % 2 ^ 1); }

  // A tile that no row sees: the consumers need the place only, for gradients of 0.
  TANDEM_DEVICE void pass_keys() {
    acquire_key_place();
    ptx::mbarrier_arrive(Traits::kKFull);
    ptx::mbarrier_arrive(Traits::kVFull);
  }

  const BackwardParams& params_;
  static_assert(Traits::kTileStages == 2);
  uint32_t tile_ = 0;  // PERF: as in BackwardReader
  PipelineState<Traits::kQStages> q_pipe_;
  PipelineState<Traits::kDoStages> do_pipe_;
};

}  // namespace tandem::sm90
