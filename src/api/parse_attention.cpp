#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>

#include "api/parse.h"
#include "api/tensor_rules.h"
#include "api/text.h"
#include "core/fp8.h"

namespace tandem {
namespace {

constexpr int64_t kMaxHeadDim = 256;

// A window or chunk this long covers every position that a row or key can have (they lie within +-2^32), so longer ones
// are cut to it, and sums with positions stay far from overflow.
constexpr int64_t kUnboundedLength = int64_t{1} << 33;

// Walks the tensors from q on; each one fixes the sizes that the later ones must agree with. On an error the problem is
// half filled and of no use.
class AttentionParser {
 public:
  AttentionParser(const AttentionArguments& arguments, AttentionProblem* problem) : args_(arguments), p_(*problem) {}

  Status parse() {
    p_.backward = args_.backward;
    p_.packed = args_.packed;
    TANDEM_RETURN_IF_ERROR(parse_execution(*args_.exec, &p_.exec));
    TANDEM_RETURN_IF_ERROR(parse_scalars());
    TANDEM_RETURN_IF_ERROR(parse_mask());
    TANDEM_RETURN_IF_ERROR(parse_offsets());
    TANDEM_RETURN_IF_ERROR(parse_q());
    TANDEM_RETURN_IF_ERROR(parse_k_and_v());
    TANDEM_RETURN_IF_ERROR(check_heads());
    TANDEM_RETURN_IF_ERROR(parse_results());
    TANDEM_RETURN_IF_ERROR(parse_lengths());
    TANDEM_RETURN_IF_ERROR(parse_intervals());
    if (args_.backward) return parse_gradients();
    return parse_scales();
  }

 private:
  Status parse_scalars() {
    TANDEM_RETURN_IF_ERROR(check_flag("has_softmax_scale", args_.has_softmax_scale));
    if (args_.reserved != 0) {
      return Status::invalid_argument(concat("reserved is ", args_.reserved, "; it must be 0"));
    }
    TANDEM_RETURN_IF_ERROR(check_flag("v_transposed", args_.v_transposed));
    if (args_.reserved_2 != 0) {
      return Status::invalid_argument(concat("reserved_2 is ", args_.reserved_2, "; it must be 0"));
    }
    if (args_.has_softmax_scale == 0 && args_.softmax_scale != 0) {
      return Status::invalid_argument(concat("softmax_scale is ", args_.softmax_scale,
                                             " but has_softmax_scale is 0; set has_softmax_scale to 1 to use it"));
    }
    if (!std::isfinite(args_.softmax_scale)) {
      return Status::invalid_argument(concat("softmax_scale is ", args_.softmax_scale, "; it must be finite"));
    }
    if (!std::isfinite(args_.softcap) || args_.softcap < 0) {
      return Status::invalid_argument(
          concat("softcap is ", args_.softcap, "; it must be 0 (none) or a finite positive number"));
    }
    TANDEM_RETURN_IF_ERROR(check_not_negative("max_seqlen_q", args_.max_seqlen_q));
    TANDEM_RETURN_IF_ERROR(check_not_negative("max_seqlen_k", args_.max_seqlen_k));
    p_.softcap = args_.softcap;
    return Status::ok();
  }

  Status parse_mask() {
    const tandem_mask& mask = *args_.mask;
    TANDEM_RETURN_IF_ERROR(check_flag("mask.causal", mask.causal));
    TANDEM_RETURN_IF_ERROR(check_flag("mask.top_left", mask.top_left));
    TANDEM_RETURN_IF_ERROR(check_flag("mask.has_window", mask.has_window));
    if (mask.reserved != 0) {
      return Status::invalid_argument(concat("mask.reserved is ", mask.reserved, "; it must be 0"));
    }
    const bool has_window = mask.has_window == 1;
    TANDEM_RETURN_IF_ERROR(check_window_side("mask.window_left", mask.window_left, has_window));
    TANDEM_RETURN_IF_ERROR(check_window_side("mask.window_right", mask.window_right, has_window));
    TANDEM_RETURN_IF_ERROR(check_not_negative("mask.attention_chunk", mask.attention_chunk));
    p_.mask.causal = mask.causal == 1;
    p_.mask.top_left = mask.top_left == 1;
    p_.mask.window_left = has_window ? std::min(mask.window_left, kUnboundedLength) : -1;
    p_.mask.window_right = has_window ? std::min(mask.window_right, kUnboundedLength) : -1;
    p_.mask.attention_chunk = std::min(mask.attention_chunk, kUnboundedLength);
    return Status::ok();
  }

  static Status check_window_side(const char* name, int64_t size, bool has_window) {
    if (size < -1) {
      return Status::invalid_argument(concat(name, " is ", size, "; allowed are 0 and more, and -1 for an open side"));
    }
    if (!has_window && size > 0) {
      return Status::invalid_argument(
          concat(name, " is ", size, " but mask.has_window is 0; set mask.has_window to 1 to use it"));
    }
    return Status::ok();
  }

  static Status check_not_negative(const char* name, int64_t value) {
    if (value >= 0) return Status::ok();
    return Status::invalid_argument(concat(name, " is ", value, "; allowed are 0 and more"));
  }

  // Packed: the number of sequences.
  Status parse_offsets() {
    if (!args_.packed) return Status::ok();
    TANDEM_RETURN_IF_ERROR(check_required(args_.cu_seqlens_q));
    TANDEM_RETURN_IF_ERROR(check_required(args_.cu_seqlens_k));
    Axis offsets{"batch + 1"};
    TANDEM_RETURN_IF_ERROR(check_vector(args_.cu_seqlens_q, offsets));
    offsets.size = args_.cu_seqlens_q.tensor->shape[0];
    offsets.source = "cu_seqlens_q.shape[0]";
    if (offsets.size < 1) {
      return Status::invalid_argument("cu_seqlens_q.shape[0] is 0; it must be batch + 1, which is at least 1");
    }
    TANDEM_RETURN_IF_ERROR(check_vector(args_.cu_seqlens_k, offsets));
    batch_ = {"batch", offsets.size - 1, "cu_seqlens_q (one less than its size)"};
    p_.batch = batch_.size;
    p_.cu_seqlens_q = make_vector(args_.cu_seqlens_q);
    p_.cu_seqlens_k = make_vector(args_.cu_seqlens_k);
    return Status::ok();
  }

  Status check_vector(const NamedTensor& named, const Axis& axis) {
    TANDEM_RETURN_IF_ERROR(check_dtype(named, {DType::kInt32}, named));
    return check_layout(named, {axis}, LastAxis::kAnyStride);
  }

  Status parse_q() {
    TANDEM_RETURN_IF_ERROR(check_required(args_.q));
    TANDEM_RETURN_IF_ERROR(check_dtype(
        args_.q, {DType::kFp64, DType::kFp32, DType::kFp16, DType::kBf16, DType::kE4m3, DType::kE5m2}, args_.q));
    p_.dtype = dtype_of(args_.q);
    if (is_fp8(p_.dtype) && (p_.backward || p_.exec.needs_grad)) {
      return Status::unsupported(concat("q.dtype is ", dtype_name(p_.dtype), " but ",
                                        p_.backward ? "this is the backward" : "exec.needs_grad is 1",
                                        "; gradients need fp16, bf16, fp32 or fp64"));
    }
    TANDEM_RETURN_IF_ERROR(check_rows(args_.q, rows_q_, nheads_q_, headdim_));
    const int64_t* shape = args_.q.tensor->shape;
    if (!args_.packed) {
      batch_ = {"batch", shape[0], "q.shape[0]"};
      p_.batch = shape[0];
    }
    const int row = row_axis();
    rows_q_ = {rows_q_.meaning, shape[row], args_.packed ? "q.shape[0]" : "q.shape[1]"};
    nheads_q_ = {"nheads_q", shape[row + 1], args_.packed ? "q.shape[1]" : "q.shape[2]"};
    headdim_ = {"headdim", shape[row + 2], args_.packed ? "q.shape[2]" : "q.shape[3]"};
    TANDEM_RETURN_IF_ERROR(check_headdim(args_.q, row + 2));
    p_.total_q = rows_q_.size;
    p_.seqlen_q = args_.packed ? 0 : rows_q_.size;
    p_.max_seqlen_q = std::min(args_.max_seqlen_q, p_.total_q);
    p_.nheads_q = nheads_q_.size;
    p_.headdim = headdim_.size;
    p_.softmax_scale =
        args_.has_softmax_scale == 1 ? args_.softmax_scale : 1 / std::sqrt(static_cast<double>(p_.headdim));
    p_.q = make_tensor(args_.q, args_.packed);
    return check_scale_range();
  }

  Status check_scale_range() const {
    constexpr double kMax = std::numeric_limits<float>::max();
    if (p_.dtype == DType::kFp64 || std::abs(p_.softmax_scale) <= kMax) return Status::ok();
    return Status::invalid_argument(concat("softmax_scale is ", p_.softmax_scale, " but q.dtype is ",
                                           dtype_name(p_.dtype), ", whose scores are computed in fp32; allowed are -",
                                           kMax, " to ", kMax));
  }

  Status parse_k_and_v() {
    TANDEM_RETURN_IF_ERROR(check_required(args_.k));
    TANDEM_RETURN_IF_ERROR(check_required(args_.v));
    TANDEM_RETURN_IF_ERROR(check_dtype(args_.k, {p_.dtype}, args_.q));
    TANDEM_RETURN_IF_ERROR(check_dtype(args_.v, {p_.dtype}, args_.q));
    TANDEM_RETURN_IF_ERROR(check_rows(args_.k, rows_k_, nheads_k_, headdim_));
    const int row = row_axis();
    const int64_t* shape = args_.k.tensor->shape;
    rows_k_ = {rows_k_.meaning, shape[row], args_.packed ? "k.shape[0]" : "k.shape[1]"};
    nheads_k_ = {"nheads_k", shape[row + 1], args_.packed ? "k.shape[1]" : "k.shape[2]"};
    p_.total_k = rows_k_.size;
    p_.seqlen_k = args_.packed ? 0 : rows_k_.size;
    p_.max_seqlen_k = std::min(args_.max_seqlen_k, p_.total_k);
    p_.nheads_k = nheads_k_.size;
    p_.k = make_tensor(args_.k, args_.packed);
    return args_.v_transposed == 1 ? parse_transposed_v() : parse_v();
  }

  Status parse_v() {
    TANDEM_RETURN_IF_ERROR(check_rows(args_.v, rows_k_, nheads_k_, headdim_v_));
    const int column = row_axis() + 2;
    TANDEM_RETURN_IF_ERROR(check_headdim(args_.v, column));
    p_.headdim_v = args_.v.tensor->shape[column];
    headdim_v_ = {"headdim_v", p_.headdim_v, args_.packed ? "v.shape[2]" : "v.shape[3]"};
    p_.v = make_tensor(args_.v, args_.packed);
    return Status::ok();
  }

  // (batch, nheads_k, headdim_v, slots), packed without the batch.
  Status parse_transposed_v() {
    if (p_.dtype != DType::kE4m3) {
      return Status::invalid_argument(
          concat("v_transposed is 1 but q.dtype is ", dtype_name(p_.dtype), "; only V in e4m3 may be transposed"));
    }
    const int64_t slots = args_.packed ? packed_slot_begin(rows_k_.size, batch_.size) : dense_slots(rows_k_.size);
    const Axis slot_axis{"number of slots", slots, rows_k_.source};
    if (args_.packed) {
      TANDEM_RETURN_IF_ERROR(check_layout(args_.v, {nheads_k_, headdim_v_, slot_axis}, LastAxis::kContiguous));
    } else {
      TANDEM_RETURN_IF_ERROR(check_layout(args_.v, {batch_, nheads_k_, headdim_v_, slot_axis}, LastAxis::kContiguous));
    }
    const int column = row_axis() + 1;
    TANDEM_RETURN_IF_ERROR(check_headdim(args_.v, column));
    p_.headdim_v = args_.v.tensor->shape[column];
    headdim_v_ = {"headdim_v", p_.headdim_v, args_.packed ? "v.shape[1]" : "v.shape[2]"};
    p_.v_transposed = true;
    p_.v = make_transposed(args_.v, args_.packed);
    return Status::ok();
  }

  int row_axis() const { return args_.packed ? 0 : 1; }

  // q, k, v, out and their gradients.
  Status check_rows(const NamedTensor& named, const Axis& rows, const Axis& heads, const Axis& columns) const {
    if (args_.packed) return check_layout(named, {rows, heads, columns}, LastAxis::kContiguous);
    return check_layout(named, {batch_, rows, heads, columns}, LastAxis::kContiguous);
  }

  // lse and dlse.
  Status check_row_values(const NamedTensor& named) const {
    if (args_.packed) return check_layout(named, {nheads_q_, rows_q_}, LastAxis::kAnyStride);
    return check_layout(named, {batch_, nheads_q_, rows_q_}, LastAxis::kAnyStride);
  }

  static Status check_headdim(const NamedTensor& named, int axis) {
    const int64_t headdim = named.tensor->shape[axis];
    if (headdim >= 1 && headdim <= kMaxHeadDim) return Status::ok();
    return Status::invalid_argument(concat(named.name, ".shape[", axis, "] is ", headdim, "; head dims may be 1 to ",
                                           kMaxHeadDim, ", larger heads must be split by the caller"));
  }

  Status check_heads() const {
    if (p_.nheads_q == 0 || (p_.nheads_k > 0 && p_.nheads_q % p_.nheads_k == 0)) return Status::ok();
    return Status::invalid_argument(concat(nheads_k_.source, " is ", p_.nheads_k, " (nheads_k) but ", nheads_q_.source,
                                           " is ", p_.nheads_q, "; nheads_q must be a multiple of nheads_k"));
  }

  // out, lse and sink, which are results in the forward and inputs in the backward.
  Status parse_results() {
    TANDEM_RETURN_IF_ERROR(check_required(args_.out));
    TANDEM_RETURN_IF_ERROR(check_out_dtype());
    TANDEM_RETURN_IF_ERROR(check_rows(args_.out, rows_q_, nheads_q_, headdim_v_));
    p_.out_dtype = dtype_of(args_.out);
    p_.out = make_tensor(args_.out, args_.packed);

    if (args_.backward) TANDEM_RETURN_IF_ERROR(check_required(args_.lse));
    TANDEM_RETURN_IF_ERROR(check_statistics_dtype(args_.lse));
    TANDEM_RETURN_IF_ERROR(check_row_values(args_.lse));
    p_.lse = make_row_tensor(args_.lse, args_.packed);

    TANDEM_RETURN_IF_ERROR(check_statistics_dtype(args_.sink));
    TANDEM_RETURN_IF_ERROR(check_layout(args_.sink, {nheads_q_}, LastAxis::kAnyStride));
    p_.sink = make_vector(args_.sink);
    return Status::ok();
  }

  Status check_out_dtype() const {
    if (is_fp8(p_.dtype)) {
      return check_dtype(args_.out, {DType::kFp16, DType::kBf16, DType::kFp32}, args_.q);
    }
    if (is_16bit(p_.dtype)) return check_dtype(args_.out, {p_.dtype, DType::kFp32}, args_.q);
    return check_dtype(args_.out, {p_.dtype}, args_.q);
  }

  Status check_statistics_dtype(const NamedTensor& named) const {
    if (p_.dtype == DType::kFp64) return check_dtype(named, {DType::kFp32, DType::kFp64}, args_.q);
    return check_dtype(named, {DType::kFp32}, named);
  }

  Status parse_lengths() {
    TANDEM_RETURN_IF_ERROR(check_vector(args_.seqused_q, batch_));
    TANDEM_RETURN_IF_ERROR(check_vector(args_.seqused_k, batch_));
    p_.seqused_q = make_vector(args_.seqused_q);
    p_.seqused_k = make_vector(args_.seqused_k);
    return Status::ok();
  }

  Status parse_intervals() {
    for (const NamedTensor& bound : {args_.lo, args_.hi}) {
      TANDEM_RETURN_IF_ERROR(check_dtype(bound, {DType::kInt32}, bound));
      TANDEM_RETURN_IF_ERROR(check_interval_layout(bound));
    }
    p_.lo = make_row_tensor(args_.lo, args_.packed);
    p_.hi = make_row_tensor(args_.hi, args_.packed);
    return Status::ok();
  }

  Status check_interval_layout(const NamedTensor& bound) const {
    Axis batch = batch_;
    Axis heads = nheads_q_;
    batch.broadcasts = true;
    heads.broadcasts = true;
    if (args_.packed) return check_layout(bound, {heads, rows_q_}, LastAxis::kAnyStride);
    return check_layout(bound, {batch, heads, rows_q_}, LastAxis::kAnyStride);
  }

  Status parse_scales() {
    TANDEM_RETURN_IF_ERROR(parse_scale(args_.q_scale, nheads_q_, rows_q_, &p_.q_scale));
    TANDEM_RETURN_IF_ERROR(parse_scale(args_.k_scale, nheads_k_, rows_k_, &p_.k_scale));
    return parse_scale(args_.v_scale, nheads_k_, rows_k_, &p_.v_scale);
  }

  Status parse_scale(const NamedTensor& named, Axis heads, const Axis& rows, Scales* scales) {
    if (named.present() && !is_fp8(p_.dtype)) {
      return Status::invalid_argument(concat(named.name, " is given but q.dtype is ", dtype_name(p_.dtype),
                                             "; scales belong to e4m3 and e5m2 only"));
    }
    TANDEM_RETURN_IF_ERROR(check_dtype(named, {DType::kFp32}, named));
    const tandem_tensor& tensor = *named.tensor;
    const bool per_key_head = tensor.ndim > 1 && tensor.shape[1] == nheads_k_.size && heads.size != nheads_k_.size;
    if (per_key_head) heads = nheads_k_;
    TANDEM_RETURN_IF_ERROR(check_scale_layout(named, batch_, heads, rows, args_.packed));
    if (!named.present()) return Status::ok();

    *scales = make_scales(named);
    scales->heads_per_scale = per_key_head ? p_.qheads_per_khead() : 1;
    return Status::ok();
  }

  Status parse_gradients() {
    for (const NamedTensor& required : {args_.dout, args_.dq, args_.dk, args_.dv}) {
      TANDEM_RETURN_IF_ERROR(check_required(required));
    }
    TANDEM_RETURN_IF_ERROR(check_dtype(args_.dout, {p_.out_dtype}, args_.out));
    TANDEM_RETURN_IF_ERROR(check_rows(args_.dout, rows_q_, nheads_q_, headdim_v_));
    TANDEM_RETURN_IF_ERROR(check_dtype(args_.dq, {p_.dtype}, args_.q));
    TANDEM_RETURN_IF_ERROR(check_rows(args_.dq, rows_q_, nheads_q_, headdim_));
    TANDEM_RETURN_IF_ERROR(check_dtype(args_.dk, {p_.dtype}, args_.k));
    TANDEM_RETURN_IF_ERROR(check_rows(args_.dk, rows_k_, nheads_k_, headdim_));
    TANDEM_RETURN_IF_ERROR(check_dtype(args_.dv, {p_.dtype}, args_.v));
    TANDEM_RETURN_IF_ERROR(check_rows(args_.dv, rows_k_, nheads_k_, headdim_v_));
    TANDEM_RETURN_IF_ERROR(check_dtype(args_.dlse, {p_.lse.dtype}, args_.lse));
    TANDEM_RETURN_IF_ERROR(check_row_values(args_.dlse));
    p_.dout = make_tensor(args_.dout, args_.packed);
    p_.dq = make_tensor(args_.dq, args_.packed);
    p_.dk = make_tensor(args_.dk, args_.packed);
    p_.dv = make_tensor(args_.dv, args_.packed);
    p_.dlse = make_row_tensor(args_.dlse, args_.packed);
    return parse_sink_gradient();
  }

  Status parse_sink_gradient() {
    if (args_.sink.present() != args_.dsink.present()) {
      return Status::invalid_argument(args_.sink.present()
                                          ? "dsink is absent but sink is given; dsink is required with it"
                                          : "dsink is given but sink is absent; there is no gradient");
    }
    TANDEM_RETURN_IF_ERROR(check_dtype(args_.dsink, {p_.sink.dtype}, args_.sink));
    TANDEM_RETURN_IF_ERROR(check_layout(args_.dsink, {nheads_q_}, LastAxis::kAnyStride));
    p_.dsink = make_vector(args_.dsink);
    return Status::ok();
  }

  const AttentionArguments& args_;
  AttentionProblem& p_;
  Axis batch_{"batch"};
  Axis rows_q_{args_.packed ? "total_q" : "seqlen_q"};
  Axis rows_k_{args_.packed ? "total_k" : "seqlen_k"};
  Axis nheads_q_{"nheads_q"};
  Axis nheads_k_{"nheads_k"};
  Axis headdim_{"headdim"};
  Axis headdim_v_{"headdim_v"};
};

}  // namespace

Status parse(const AttentionArguments& arguments, AttentionProblem* problem) {
  return AttentionParser(arguments, problem).parse();
}

}  // namespace tandem
