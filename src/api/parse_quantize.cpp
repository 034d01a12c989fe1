#include "api/parse.h"
#include "api/tensor_rules.h"
#include "api/text.h"
#include "core/fp8.h"

namespace tandem {
namespace {

constexpr int64_t kMaxHeadDim = 256;

class QuantizeParser {
 public:
  QuantizeParser(const QuantizeArguments& arguments, QuantizeProblem* problem)
      : args_(arguments), params_(*arguments.params), p_(*problem) {}

  Status parse() {
    TANDEM_RETURN_IF_ERROR(parse_execution(params_.exec, &p_.exec));
    TANDEM_RETURN_IF_ERROR(parse_options());
    for (const NamedTensor& required : {args_.x, args_.out, args_.scale}) {
      TANDEM_RETURN_IF_ERROR(check_required(required));
    }
    TANDEM_RETURN_IF_ERROR(check_rank());
    TANDEM_RETURN_IF_ERROR(parse_x());
    TANDEM_RETURN_IF_ERROR(p_.transposed ? parse_transposed_out() : parse_out());
    TANDEM_RETURN_IF_ERROR(parse_scale());
    TANDEM_RETURN_IF_ERROR(parse_lengths());
    TANDEM_RETURN_IF_ERROR(parse_rotary());
    return check_rotation();
  }

 private:
  Status parse_options() {
    TANDEM_RETURN_IF_ERROR(check_flag("rotate", params_.rotate));
    TANDEM_RETURN_IF_ERROR(check_flag("rotary_interleaved", params_.rotary_interleaved));
    TANDEM_RETURN_IF_ERROR(check_flag("transposed", params_.transposed));
    if (params_.reserved != 0) {
      return Status::invalid_argument(concat("reserved is ", params_.reserved, "; it must be 0"));
    }
    if (p_.exec.needs_grad) {
      return Status::unsupported(
          "exec.needs_grad is 1 but rounding to fp8 has no gradient; quantise outside of what is differentiated");
    }
    p_.rotate = params_.rotate == 1;
    p_.seed = params_.seed;
    p_.rotary_interleaved = params_.rotary_interleaved == 1;
    p_.transposed = params_.transposed == 1;
    return Status::ok();
  }

  Status check_rank() {
    const int ndim = args_.x.tensor->ndim;
    if (ndim != 3 && ndim != 4) {
      return Status::invalid_argument(concat("x.ndim is ", ndim,
                                             "; it must be 4, (batch, seqlen, nheads, headdim), or 3, "
                                             "(total, nheads, headdim)"));
    }
    p_.packed = ndim == 3;
    if (p_.packed == args_.cu_seqlens.present()) return Status::ok();
    return Status::invalid_argument(p_.packed
                                        ? "cu_seqlens is absent (its ndim is 0); it is required, since x.ndim is 3"
                                        : "cu_seqlens is given but x.ndim is 4; it belongs to packed rows");
  }

  Status parse_x() {
    TANDEM_RETURN_IF_ERROR(check_dtype(args_.x, {DType::kFp32, DType::kFp16, DType::kBf16}, args_.x));
    TANDEM_RETURN_IF_ERROR(check_rows(args_.x));
    const int64_t* shape = args_.x.tensor->shape;
    const int row = p_.packed ? 0 : 1;
    rows_ = {rows_.meaning, shape[row], p_.packed ? "x.shape[0]" : "x.shape[1]"};
    nheads_ = {"nheads", shape[row + 1], p_.packed ? "x.shape[1]" : "x.shape[2]"};
    headdim_ = {"headdim", shape[row + 2], p_.packed ? "x.shape[2]" : "x.shape[3]"};
    if (headdim_.size < 1 || headdim_.size > kMaxHeadDim) {
      return Status::invalid_argument(
          concat(headdim_.source, " is ", headdim_.size, "; head dims may be 1 to ", kMaxHeadDim));
    }
    if (p_.packed) {
      TANDEM_RETURN_IF_ERROR(parse_offsets());
    } else {
      batch_ = {"batch", shape[0], "x.shape[0]"};
    }
    p_.batch = batch_.size;
    p_.total = rows_.size;
    p_.seqlen = p_.packed ? 0 : rows_.size;
    p_.nheads = nheads_.size;
    p_.headdim = headdim_.size;
    p_.x = make_tensor(args_.x, p_.packed);
    return Status::ok();
  }

  Status parse_offsets() {
    TANDEM_RETURN_IF_ERROR(check_vector(args_.cu_seqlens, {"batch + 1"}));
    const int64_t count = args_.cu_seqlens.tensor->shape[0];
    if (count < 1) {
      return Status::invalid_argument("cu_seqlens.shape[0] is 0; it must be batch + 1, which is at least 1");
    }
    batch_ = {"batch", count - 1, "cu_seqlens (one less than its size)"};
    p_.cu_seqlens = make_vector(args_.cu_seqlens);
    return Status::ok();
  }

  Status check_vector(const NamedTensor& named, const Axis& axis) {
    TANDEM_RETURN_IF_ERROR(check_dtype(named, {DType::kInt32}, named));
    return check_layout(named, {axis}, LastAxis::kAnyStride);
  }

  Status check_rows(const NamedTensor& named) {
    if (p_.packed) return check_layout(named, {rows_, nheads_, headdim_}, LastAxis::kContiguous);
    return check_layout(named, {batch_, rows_, nheads_, headdim_}, LastAxis::kContiguous);
  }

  Status parse_out() {
    TANDEM_RETURN_IF_ERROR(check_dtype(args_.out, {DType::kE4m3}, args_.out));
    TANDEM_RETURN_IF_ERROR(check_rows(args_.out));
    p_.out = make_tensor(args_.out, p_.packed);
    return Status::ok();
  }

  Status parse_transposed_out() {
    TANDEM_RETURN_IF_ERROR(check_dtype(args_.out, {DType::kE4m3}, args_.out));
    const int64_t count = p_.packed ? packed_slot_begin(rows_.size, batch_.size) : dense_slots(rows_.size);
    const Axis slots{"number of slots", count, rows_.source};
    if (p_.packed) {
      TANDEM_RETURN_IF_ERROR(check_layout(args_.out, {nheads_, headdim_, slots}, LastAxis::kContiguous));
    } else {
      TANDEM_RETURN_IF_ERROR(check_layout(args_.out, {batch_, nheads_, headdim_, slots}, LastAxis::kContiguous));
    }
    p_.out = make_transposed(args_.out, p_.packed);
    return Status::ok();
  }

  Status parse_scale() {
    TANDEM_RETURN_IF_ERROR(check_dtype(args_.scale, {DType::kFp32}, args_.scale));
    TANDEM_RETURN_IF_ERROR(check_scale_layout(args_.scale, batch_, nheads_, rows_, p_.packed));
    p_.scale = make_scales(args_.scale);
    p_.scale_per_head = args_.scale.tensor->ndim > 1;
    p_.scale_per_block = args_.scale.tensor->ndim > 2;
    return Status::ok();
  }

  Status parse_lengths() {
    TANDEM_RETURN_IF_ERROR(check_vector(args_.seqused, batch_));
    p_.seqused = make_vector(args_.seqused);
    return Status::ok();
  }

  Status parse_rotary() {
    if (args_.rotary_cos.present() != args_.rotary_sin.present()) {
      const bool has_cos = args_.rotary_cos.present();
      return Status::invalid_argument(concat(has_cos ? "rotary_sin" : "rotary_cos", " is absent but ",
                                             has_cos ? "rotary_cos" : "rotary_sin", " is given; both are needed"));
    }
    if (!args_.rotary_cos.present()) return check_no_rotary();
    const DType dtype = dtype_of(args_.x);
    TANDEM_RETURN_IF_ERROR(check_dtype(args_.rotary_cos, {DType::kFp32, dtype}, args_.x));
    TANDEM_RETURN_IF_ERROR(check_dtype(args_.rotary_sin, {dtype_of(args_.rotary_cos)}, args_.rotary_cos));
    Axis positions{"number of positions"};
    Axis pairs{"rotary_dim / 2"};
    TANDEM_RETURN_IF_ERROR(check_layout(args_.rotary_cos, {positions, pairs}, LastAxis::kContiguous));
    const int64_t* shape = args_.rotary_cos.tensor->shape;
    positions = {positions.meaning, shape[0], "rotary_cos.shape[0]"};
    pairs = {pairs.meaning, shape[1], "rotary_cos.shape[1]"};
    TANDEM_RETURN_IF_ERROR(check_layout(args_.rotary_sin, {positions, pairs}, LastAxis::kContiguous));
    TANDEM_RETURN_IF_ERROR(check_table_sizes(positions.size, pairs.size));
    TANDEM_RETURN_IF_ERROR(check_vector(args_.rotary_offset, batch_));
    p_.rotary_cos = make_table(args_.rotary_cos);
    p_.rotary_sin = make_table(args_.rotary_sin);
    p_.rotary_positions = positions.size;
    p_.rotary_pairs = pairs.size;
    p_.rotary_offset = make_vector(args_.rotary_offset);
    return Status::ok();
  }

  Status check_no_rotary() {
    TANDEM_RETURN_IF_ERROR(check_layout(args_.rotary_cos, {}, LastAxis::kAnyStride));
    TANDEM_RETURN_IF_ERROR(check_layout(args_.rotary_sin, {}, LastAxis::kAnyStride));
    TANDEM_RETURN_IF_ERROR(check_vector(args_.rotary_offset, batch_));
    if (!args_.rotary_offset.present() && !p_.rotary_interleaved) return Status::ok();
    return Status::invalid_argument(concat(p_.rotary_interleaved ? "rotary_interleaved is 1" : "rotary_offset is given",
                                           " but rotary_cos is absent"));
  }

  Status check_table_sizes(int64_t positions, int64_t pairs) {
    if (pairs < 1 || 2 * pairs > headdim_.size) {
      return Status::invalid_argument(concat("rotary_cos.shape[1] is ", pairs, "; allowed are 1 to ", headdim_.size / 2,
                                             ", half of the headdim of ", headdim_.source));
    }
    if (positions > 0 || rows_.size == 0) return Status::ok();
    return Status::invalid_argument(
        concat("rotary_cos.shape[0] is 0 but ", rows_.source, " is ", rows_.size, "; each row needs a position"));
  }

  static RotaryTable make_table(const NamedTensor& named) {
    return {named.tensor->data, dtype_of(named), axis_stride(*named.tensor, 0)};
  }

  Status check_rotation() {
    if (p_.transposed && (p_.rotate || p_.rotary_pairs > 0)) {
      return Status::invalid_argument(concat("transposed is 1 but ", p_.rotate ? "rotate is 1" : "rotary_cos is given",
                                             "; V is transposed, and only Q and K are rotated"));
    }
    if (!p_.rotate || has_hadamard(p_.headdim)) return Status::ok();
    return Status::unsupported(concat("rotate is 1 but ", headdim_.source, " is ", p_.headdim,
                                      "; head dims with a Hadamard matrix here are powers of two and 12 times a power "
                                      "of two: pad q and k with zeros (softmax_scale stays that of the headdim)"));
  }

  const QuantizeArguments& args_;
  const tandem_quantize_fp8_params& params_;
  QuantizeProblem& p_;
  Axis batch_{"batch"};
  Axis rows_{args_.x.tensor->ndim == 3 ? "total" : "seqlen"};
  Axis nheads_{"nheads"};
  Axis headdim_{"headdim"};
};

}  // namespace

Status parse(const QuantizeArguments& arguments, QuantizeProblem* problem) {
  return QuantizeParser(arguments, problem).parse();
}

}  // namespace tandem
