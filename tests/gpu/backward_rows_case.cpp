#include "backward_rows_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "core/dtype.h"
#include "tandem/tandem.h"

namespace tandem::gpu_test {
namespace {

constexpr double kLog2E = 1.4426950408889634;
constexpr int kSortedRun = 512;  // sequences are in the order of work within runs of so many

template <typename T>
T read(const std::vector<uint8_t>& bytes, uint64_t offset, int64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + offset + static_cast<uint64_t>(index) * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void write(std::vector<uint8_t>& bytes, uint64_t offset, int64_t index, T value) {
  std::memcpy(bytes.data() + offset + static_cast<uint64_t>(index) * sizeof(T), &value, sizeof(T));
}

std::string different(const char* what, double got, double want) {
  return std::string(what) + " is " + std::to_string(got) + ", not " + std::to_string(want);
}

// A number of [-1, 1) that depends on all of these.
double noise(uint64_t seed, int64_t a, int64_t b, int64_t c) {
  uint64_t state = seed * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(a);
  for (const int64_t next : {b, c, int64_t{7}}) {
    state = (state ^ state >> 30) * 0xbf58476d1ce4e5b9u + static_cast<uint64_t>(next);
    state = (state ^ state >> 27) * 0x94d049bb133111ebu;
  }
  return static_cast<double>(state >> 11) * 0x1p-52 - 1;
}

int clamped(int value, int64_t largest) {
  return static_cast<int>(std::clamp<int64_t>(value, 0, largest));
}

// Where the packed sequences begin, and one more: no offset before its predecessors, none outside the buffer.
std::vector<int> clamped_offsets(const std::vector<int>& offsets, int64_t total) {
  std::vector<int> result;
  int last = 0;
  for (const int offset : offsets) {
    last = std::max(last, clamped(offset, total));
    result.push_back(last);
  }
  return result;
}

}  // namespace

int RowsCase::tiles_row() const {
  return sm90::find_backward_tiles(static_cast<int>(headdim), static_cast<int>(headdim_v), lo || hi);
}

RowsData::RowsData(const RowsCase& test) : test_(test) {
  if (!test.packed()) {
    test_.total_q = test.seqlen_q;
    test_.total_k = test.seqlen_k;
  }
  tiles_ = sm90::kBackwardTiles[tiles_row()];
  layout_ = sm90::backward_layout(problem({}), tiles_);
  const auto value_count = static_cast<size_t>(entries() * test_.nheads_q * (rows_of_buffer() + test_.padding));
  out_.assign(static_cast<size_t>(elements_of(test_.headdim_v)) * 2, 0xff);
  dout_ = out_;
  lse_.assign(value_count, NAN);
  dlse_.assign(value_count, NAN);
  for (int64_t h = 0; h < test_.nheads_q; ++h) sink_.push_back(static_cast<float>(2 * noise(test_.seed, 1, h, 0)));
  lo_.assign(value_count, INT32_MIN);
  hi_.assign(value_count, INT32_MAX);
  for (size_t i = 0; i < value_count; ++i) {
    const auto at = static_cast<int64_t>(i);
    lo_[i] = static_cast<int>(40 * noise(test_.seed, 2, at, 0));
    hi_[i] = lo_[i] + static_cast<int>(60 * (0.9 + noise(test_.seed, 3, at, 0)));
  }
  const Tensor layout = tensor(nullptr, test_.headdim_v);
  for (const Sequence& sequence : expected_sequences()) {
    for (int row = 0; row < sequence.q.len; ++row) {
      for (int64_t h = 0; h < test_.nheads_q; ++h) {
        const Row at = {sequence.batch, h, sequence.q.begin + row};
        const bool seeing = sees(sequence, row, h);
        const bool blind = !seeing || noise(test_.seed, 4, at.row, h) > 0.8;  // every score is -inf
        if (blind && !test_.sink) {
          lse_[row_value(at)] = -INFINITY;
          continue;  // O, dO and dLSE stay NaN
        }
        lse_[row_value(at)] =
            seeing ? static_cast<float>(20 * noise(test_.seed, 5, at.row, h)) : sink_[static_cast<size_t>(h)];
        dlse_[row_value(at)] = static_cast<float>(noise(test_.seed, 6, at.row, h));
        if (test_.infinite_lse && noise(test_.seed, 7, at.row, h) > 0.5) {
          lse_[row_value(at)] = INFINITY;
          dlse_[row_value(at)] = NAN;  // does not count
        }
        for (int64_t c = 0; c < test_.headdim_v; ++c) {
          const int64_t element =
              at.batch * layout.batch_stride + at.row * layout.row_stride + h * layout.head_stride + c;
          const int64_t key = at.batch * 1000003 + at.row;
          store_element(out_.data(), test_.dtype, element, seeing ? noise(test_.seed, 8 + h, key, c) : 0);
          store_element(dout_.data(), test_.dtype, element, noise(test_.seed, 800 + h, key, c));
        }
      }
    }
  }
}

int64_t RowsData::elements_of(int64_t headdim) const {
  return entries() * rows_of_buffer() * test_.nheads_q * (headdim + test_.padding);
}

Tensor RowsData::tensor(void* data, int64_t headdim) const {
  const int64_t row = headdim + test_.padding;
  const int64_t batch_stride = test_.packed() ? 0 : rows_of_buffer() * test_.nheads_q * row;
  if (test_.head_major) return {data, test_.dtype, batch_stride, row, rows_of_buffer() * row};
  return {data, test_.dtype, batch_stride, test_.nheads_q * row, row};
}

RowTensor RowsData::row_tensor(void* data, DType dtype) const {
  const int64_t rows = rows_of_buffer() + test_.padding;
  return {data, dtype, test_.packed() ? 0 : test_.nheads_q * rows, rows, 1};
}

size_t RowsData::row_value(const Row& at) const {
  const RowTensor layout = row_tensor(nullptr, DType::kFp32);
  return static_cast<size_t>(at.batch * layout.batch_stride + at.head * layout.head_stride + at.row);
}

RowsPointers RowsData::upload(const Upload& upload) const {
  const auto of = [&upload](const char* name, const auto& values) {
    return values.empty() ? nullptr : upload(name, values.data(), values.size() * sizeof(values[0]));
  };
  RowsPointers at{};
  at.out = of("out", out_);
  at.dout = of("dout", dout_);
  at.lse = of("lse", lse_);
  if (test_.dlse) at.dlse = of("dlse", dlse_);
  if (test_.sink) at.sink = of("sink", sink_);
  if (test_.lo) at.lo = of("lo", lo_);
  if (test_.hi) at.hi = of("hi", hi_);
  at.cu_seqlens_q = of("cu_seqlens_q", test_.cu_seqlens_q);
  at.cu_seqlens_k = of("cu_seqlens_k", test_.cu_seqlens_k);
  at.seqused_q = of("seqused_q", test_.seqused_q);
  at.seqused_k = of("seqused_k", test_.seqused_k);
  return at;
}

AttentionProblem RowsData::problem(const RowsPointers& at) const {
  AttentionProblem p;
  p.backward = true;
  p.packed = test_.packed();
  p.batch = p.packed ? static_cast<int64_t>(test_.cu_seqlens_q.size()) - 1 : test_.batch;
  p.nheads_q = p.nheads_k = test_.nheads_q;
  p.headdim = test_.headdim;
  p.headdim_v = test_.headdim_v;
  p.seqlen_q = p.packed ? 0 : test_.seqlen_q;
  p.seqlen_k = p.packed ? 0 : test_.seqlen_k;
  p.total_q = test_.total_q;
  p.total_k = test_.total_k;
  p.dtype = p.out_dtype = test_.dtype;
  p.softmax_scale = 0.1;
  p.mask = test_.mask;
  p.out = tensor(at.out, test_.headdim_v);
  p.dout = tensor(at.dout, test_.headdim_v);
  p.dq = tensor(at.dq, test_.headdim);
  p.lse = row_tensor(at.lse, DType::kFp32);
  if (test_.dlse) p.dlse = row_tensor(at.dlse, DType::kFp32);
  if (test_.lo) p.lo = row_tensor(at.lo, DType::kInt32);
  if (test_.hi) p.hi = row_tensor(at.hi, DType::kInt32);
  if (test_.sink) {
    p.sink = {at.sink, DType::kFp32, 1};
    p.dsink = {at.dsink, DType::kFp32, 1};
  }
  if (p.packed) {
    p.cu_seqlens_q = {at.cu_seqlens_q, DType::kInt32, 1};
    p.cu_seqlens_k = {at.cu_seqlens_k, DType::kInt32, 1};
  }
  if (!test_.seqused_q.empty()) p.seqused_q = {at.seqused_q, DType::kInt32, 1};
  if (!test_.seqused_k.empty()) p.seqused_k = {at.seqused_k, DType::kInt32, 1};
  p.exec.device_type = TANDEM_CUDA;
  p.exec.workspace = at.workspace;
  return p;
}

// By the contract. Packed: with what lies before the first offset and behind the last.
std::vector<RowsData::Sequence> RowsData::expected_sequences() const {
  std::vector<Sequence> result;
  const auto used = [](const std::vector<int>& seqused, size_t i, int rows) {
    return seqused.empty() ? rows : clamped(seqused[i], rows);
  };
  if (!test_.packed()) {
    for (size_t b = 0; b < static_cast<size_t>(test_.batch); ++b) {
      const int q = static_cast<int>(test_.seqlen_q);
      const int k = static_cast<int>(test_.seqlen_k);
      result.push_back(
          {{0, q, used(test_.seqused_q, b, q)}, {0, k, used(test_.seqused_k, b, k)}, static_cast<int>(b), 0});
    }
    return result;
  }
  const std::vector<int> q = clamped_offsets(test_.cu_seqlens_q, test_.total_q);
  const std::vector<int> k = clamped_offsets(test_.cu_seqlens_k, test_.total_k);
  result.push_back({{0, q.front(), 0}, {0, k.front(), 0}});
  for (size_t i = 0; i + 1 < q.size(); ++i) {
    const int q_rows = q[i + 1] - q[i];
    const int k_rows = k[i + 1] - k[i];
    result.push_back(
        {{q[i], q_rows, used(test_.seqused_q, i, q_rows)}, {k[i], k_rows, used(test_.seqused_k, i, k_rows)}});
  }
  result.push_back({{q.back(), static_cast<int>(test_.total_q) - q.back(), 0},
                    {k.back(), static_cast<int>(test_.total_k) - k.back(), 0}});
  return result;
}

// In the order in which m_blocks are numbered.
std::vector<RowsData::Sequence> RowsData::sequences(const std::vector<uint8_t>& workspace) const {
  if (!test_.packed()) {
    std::vector<Sequence> result = expected_sequences();
    const int m_blocks = (static_cast<int>(test_.seqlen_q) + tiles_.block_m - 1) / tiles_.block_m;
    for (Sequence& sequence : result) sequence.m_block_begin = sequence.batch * m_blocks;
    return result;
  }
  std::vector<Sequence> result;
  for (size_t i = 0; i <= test_.cu_seqlens_q.size(); ++i) {
    const auto found = read<sm90::BackwardSequence>(workspace, layout_.sequences, static_cast<int64_t>(i));
    result.push_back({{found.q_begin, found.q_rows, found.q_len},
                      {found.k_begin, found.k_rows, found.k_len},
                      0,
                      found.m_block_begin});
  }
  return result;
}

// Each sequence is there once, the blocks are counted in their order, and the work of a run does not grow.
std::string RowsData::fault_of_sequences(const std::vector<uint8_t>& workspace) const {
  const auto head = read<sm90::BackwardWorkspace>(workspace, 0, 0);
  if (head.next_tile != 0) return "next_tile is not 0";
  if (!test_.packed()) return "";
  const std::vector<Sequence> got = sequences(workspace);
  const std::vector<Sequence> want = expected_sequences();
  std::vector<bool> taken(want.size());
  int m_blocks = 0;
  int n_blocks = 0;
  int last_work = INT32_MAX;
  for (size_t i = 0; i < got.size(); ++i) {
    size_t match = 0;
    while (match < want.size() && (taken[match] || !(want[match].q == got[i].q && want[match].k == got[i].k))) ++match;
    if (match == want.size()) return "sequence " + std::to_string(i) + " is none of the problem's";
    taken[match] = true;
    const auto raw = read<sm90::BackwardSequence>(workspace, layout_.sequences, static_cast<int64_t>(i));
    if (raw.m_block_begin != m_blocks) return different("m_block_begin", raw.m_block_begin, m_blocks);
    if (raw.n_block_begin != n_blocks) return different("n_block_begin", raw.n_block_begin, n_blocks);
    m_blocks += (raw.q_rows + tiles_.block_m - 1) / tiles_.block_m;
    n_blocks += (raw.k_rows + tiles_.block_n - 1) / tiles_.block_n;
    const int work = raw.k_len > 0 ? raw.q_len : 0;
    if (i % kSortedRun != 0 && work > last_work) return "sequence " + std::to_string(i) + " comes too late";
    last_work = work;
  }
  if (head.m_blocks != m_blocks) return different("m_blocks", head.m_blocks, m_blocks);
  if (head.n_blocks != n_blocks) return different("n_blocks", head.n_blocks, n_blocks);
  return "";
}

// By trying every key.
RowsData::Keys RowsData::keys_of_row(const Sequence& sequence, int row, int64_t head) const {
  if (row >= sequence.q.len) return {0, 0};
  const int64_t diagonal = test_.mask.top_left ? 0 : sequence.k.len - sequence.q.len;
  const int64_t position = row + diagonal;
  const int64_t chunk = test_.mask.attention_chunk;
  const size_t value = row_value({sequence.batch, head, sequence.q.begin + row});
  Keys keys = {0, 0};
  for (int j = 0; j < sequence.k.len; ++j) {
    if (test_.mask.causal && j > position) continue;
    if (test_.mask.window_left >= 0 && j < position - test_.mask.window_left) continue;
    if (test_.mask.window_right >= 0 && j > position + test_.mask.window_right) continue;
    if (chunk > 0 && (position < 0 || j / chunk != position / chunk)) continue;
    if (test_.lo && j < lo_[value]) continue;
    if (test_.hi && j >= hi_[value]) continue;
    if (keys.hi == 0) keys.lo = j;
    keys.hi = j + 1;
  }
  return keys;
}

bool RowsData::sees(const Sequence& sequence, int row, int64_t head) const {
  return keys_of_row(sequence, row, head).hi > 0;
}

// Does it have a dQ? Scores may be such that it has none though it sees keys.
bool RowsData::has_gradient(const Sequence& sequence, int row, int64_t head) const {
  return sees(sequence, row, head) && std::isfinite(lse_[row_value({sequence.batch, head, sequence.q.begin + row})]);
}

double RowsData::delta(const Row& at, double& magnitude) const {
  const Tensor layout = tensor(nullptr, test_.headdim_v);
  const int64_t first = at.batch * layout.batch_stride + at.row * layout.row_stride + at.head * layout.head_stride;
  double sum = 0;
  magnitude = 0;
  for (int64_t c = 0; c < test_.headdim_v; ++c) {
    const double product =
        load_element(out_.data(), test_.dtype, first + c) * load_element(dout_.data(), test_.dtype, first + c);
    sum += product;
    magnitude += std::abs(product);
  }
  if (test_.dlse && std::isfinite(lse_[row_value(at)])) {
    sum -= static_cast<double>(dlse_[row_value(at)]);
    magnitude += std::abs(static_cast<double>(dlse_[row_value(at)]));
  }
  return sum;
}

int64_t RowsData::q_block(const Place& at) const {
  return sm90::q_block_index(at.sequence->m_block_begin + at.m_block, at.head, test_.nheads_q);
}

std::string RowsData::first_fault(const std::vector<uint8_t>& workspace,
                                  const std::function<std::string(const Place&)>& check, int step) const {
  for (const Sequence& sequence : sequences(workspace)) {
    for (int m_block = 0; m_block * tiles_.block_m < sequence.q.rows; ++m_block) {
      for (int64_t h = 0; h < test_.nheads_q; ++h) {
        for (int m = 0; m < tiles_.block_m; m += step) {
          const std::string fault = check({&sequence, m_block, m, h});
          if (fault.empty()) continue;
          return fault + " in the sequence of row " + std::to_string(sequence.q.begin) + ", batch entry " +
                 std::to_string(sequence.batch) + ", m_block " + std::to_string(m_block) + ", head " +
                 std::to_string(h) + ", row " + std::to_string(m);
        }
      }
    }
  }
  return "";
}

// LSE, delta and dQ of one row.
std::string RowsData::fault_of_row(const std::vector<uint8_t>& workspace, const Place& at) const {
  const int row = at.row(tiles_.block_m);
  const int64_t value = q_block(at) * tiles_.block_m + sm90::row_value_place(at.m);
  const auto lse_log2 = read<float>(workspace, layout_.lse_log2, value);
  const auto delta_got = read<float>(workspace, layout_.delta, value);
  const Row place = {at.sequence->batch, at.head, at.sequence->q.begin + row};
  const bool used = row < at.sequence->q.len;
  const float lse = used ? lse_[row_value(place)] : -INFINITY;
  if (lse == -INFINITY || !sees(*at.sequence, row, at.head)) {
    if (lse_log2 != INFINITY) return different("lse_log2", lse_log2, INFINITY);
    if (delta_got != 0) return different("delta", delta_got, 0);
  } else {
    const double want = lse * kLog2E;
    if (lse_log2 != want && !(std::abs(lse_log2 - want) <= std::abs(want) * 0x1p-23))
      return different("lse_log2", lse_log2, want);
    double magnitude = 0;
    const double delta_want = delta(place, magnitude);
    // At most 16 roundings lie between a product and the sum.
    if (!(std::abs(delta_got - delta_want) <= magnitude * 0x1p-20)) return different("delta", delta_got, delta_want);
  }
  for (int c = 0; c < tiles_.headdim; ++c) {
    const int64_t element = q_block(at) * tiles_.block_m * tiles_.headdim + sm90::dq_place(at.m, c, tiles_.headdim);
    if (read<uint32_t>(workspace, layout_.dq, element) != 0) return "dq is not 0";
  }
  return "";
}

// Of the rows of an m_block, whose first is given.
std::string RowsData::fault_of_bounds(const std::vector<uint8_t>& workspace, const Place& first) const {
  sm90::MBlockBounds want = {INT32_MAX, 0, INT32_MAX, 0};
  for (int m = 0; m < tiles_.block_m; ++m) {
    const Keys keys = keys_of_row(*first.sequence, first.row(tiles_.block_m) + m, first.head);
    if (keys.hi == 0) {
      want.max_lo = INT32_MAX;
      continue;
    }
    want = {std::min(want.min_lo, keys.lo), std::max(want.max_lo, keys.lo), std::min(want.min_hi, keys.hi),
            std::max(want.max_hi, keys.hi)};
  }
  const auto got = read<sm90::MBlockBounds>(workspace, layout_.bounds, q_block(first));
  if (std::memcmp(&got, &want, sizeof(got)) == 0) return "";
  const auto text = [](const sm90::MBlockBounds& bounds) {
    return std::to_string(bounds.min_lo) + " " + std::to_string(bounds.max_lo) + " " + std::to_string(bounds.min_hi) +
           " " + std::to_string(bounds.max_hi);
  };
  return "bounds are " + text(got) + ", not " + text(want);
}

std::string RowsData::fault_of_workspace(const std::vector<uint8_t>& workspace) const {
  std::string fault = fault_of_sequences(workspace);
  if (!fault.empty()) return fault;
  fault = first_fault(workspace, [&](const Place& at) { return fault_of_row(workspace, at); }, 1);
  if (!fault.empty() || !(test_.lo || test_.hi)) return fault;
  return first_fault(workspace, [&](const Place& at) { return fault_of_bounds(workspace, at); }, tiles_.block_m);
}

// Of dS K, not scaled.
float RowsData::sum(const Row& at, int64_t column) const {
  return static_cast<float>(30 * noise(test_.seed, 9 + at.head, at.batch * 1000003 + at.row, column));
}

void RowsData::set_sums(std::vector<uint8_t>& workspace) const {
  first_fault(
      workspace,
      [&](const Place& at) {
        const int row = at.row(tiles_.block_m);
        const Row place = {at.sequence->batch, at.head, at.sequence->q.begin + row};
        const bool has_one = has_gradient(*at.sequence, row, at.head);
        for (int c = 0; c < tiles_.headdim; ++c) {
          const int64_t element =
              q_block(at) * tiles_.block_m * tiles_.headdim + sm90::dq_place(at.m, c, tiles_.headdim);
          write<float>(workspace, layout_.dq, element, has_one ? sum(place, c) : NAN);
        }
        return std::string();
      },
      1);
}

// Exact: one multiplication and one rounding. Takes the row's elements from `dq`.
std::string RowsData::fault_of_dq(const std::vector<uint8_t>& dq, const Place& at) const {
  const int row = at.row(tiles_.block_m);
  if (row >= at.sequence->q.rows) return "";
  const Row place = {at.sequence->batch, at.head, at.sequence->q.begin + row};
  const bool has_one = has_gradient(*at.sequence, row, at.head);
  const Tensor layout = tensor(nullptr, test_.headdim);
  const auto scale = static_cast<float>(problem({}).softmax_scale);
  const int64_t first =
      place.batch * layout.batch_stride + place.row * layout.row_stride + at.head * layout.head_stride;
  for (int64_t c = 0; c < test_.headdim; ++c) {
    const float product = has_one ? sum(place, c) * scale : 0;
    const uint16_t want = test_.dtype == DType::kBf16 ? to_bf16(product).bits : to_fp16(product).bits;
    if (read<uint16_t>(dq, 0, first + c) == want) continue;
    return different("dq", load_element(dq.data(), test_.dtype, first + c), product) + ", column " + std::to_string(c);
  }
  for (int64_t c = test_.headdim; c < test_.headdim + test_.padding; ++c) {
    if (read<uint16_t>(dq, 0, first + c) != 0xffff) return "written behind a row of dq";
  }
  return "";
}

std::string RowsData::fault_of_dsink(const std::vector<float>& dsink) const {
  for (int64_t h = 0; h < test_.nheads_q; ++h) {
    double want = 0;
    double allowed = 0;
    for (const Sequence& sequence : expected_sequences()) {
      for (int row = 0; row < sequence.q.len; ++row) {
        const Row place = {sequence.batch, h, sequence.q.begin + row};
        const double lse = lse_[row_value(place)];
        if (std::isinf(lse)) continue;
        double magnitude = 0;
        const double weight = std::exp(static_cast<double>(sink_[static_cast<size_t>(h)]) - lse);
        want -= weight * delta(place, magnitude);
        // The exponent is rounded twice; a sum of fp32 besides.
        allowed += weight * magnitude * (0x1p-20 + (std::abs(lse) + 2) * 0x1p-22);
      }
    }
    const auto got = static_cast<double>(dsink[static_cast<size_t>(h)]);
    if (!(std::abs(got - want) <= allowed)) return different("dsink", got, want) + " of head " + std::to_string(h);
  }
  return "";
}

std::string RowsData::fault_of_results(const std::vector<uint8_t>& workspace, const std::vector<uint8_t>& dq,
                                       const std::vector<float>& dsink) const {
  const std::string fault = first_fault(workspace, [&](const Place& at) { return fault_of_dq(dq, at); }, 1);
  return fault.empty() && test_.sink ? fault_of_dsink(dsink) : fault;
}

}  // namespace tandem::gpu_test
