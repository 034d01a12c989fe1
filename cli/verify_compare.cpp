#include "verify_compare.h"

#include <cmath>
#include <cstdio>
#include <limits>

#include "exit_codes.h"
#include "float_formats.h"

namespace tandem::cli {
namespace {

constexpr double kLseTolerance = 1e-5;  // contract 16

struct CaseBuffers {
  TensorBuffer results[kResultCount];

  // Results start as NaN: one that a backend forgets to write cannot pass.
  void add(Result result, int32_t dtype, const std::vector<int64_t>& shape) {
    results[result] = TensorBuffer(dtype, shape);
    results[result].fill(std::numeric_limits<double>::quiet_NaN());
  }
};

CaseBuffers make_buffers(const VerifyCase& c, const CaseInputs& inputs) {
  CaseBuffers buffers;
  buffers.add(kResultOut, c.out_dtype, out_shape(inputs.q.shape(), inputs.v.shape()));
  buffers.add(kResultLse, c.dtype == TANDEM_FP64 ? TANDEM_FP64 : TANDEM_FP32, lse_shape(inputs.q.shape()));
  if (!c.backward) return buffers;
  buffers.add(kResultDq, c.dtype, inputs.q.shape());
  buffers.add(kResultDk, c.dtype, inputs.k.shape());
  buffers.add(kResultDv, c.dtype, inputs.v.shape());
  if (c.sink) buffers.add(kResultDsink, inputs.sink.dtype(), inputs.sink.shape());
  return buffers;
}

tandem_mask make_mask(const VerifyCase& c, const CaseInputs& inputs) {
  tandem_mask mask = {};
  mask.causal = c.causal;
  mask.top_left = c.top_left;
  mask.has_window = c.has_window;
  mask.window_left = c.window_left;
  mask.window_right = c.window_right;
  mask.attention_chunk = c.chunk;
  mask.lo = inputs.lo.view();
  mask.hi = inputs.hi.view();
  return mask;
}

AttentionCall make_call(const VerifyCase& c, const CaseInputs& inputs, const CaseBuffers& buffers, int32_t backend,
                        tandem_device device) {
  AttentionCall call;
  call.exec.device = device;
  call.exec.backend = backend;
  call.exec.num_threads = c.threads;
  call.exec.needs_grad = c.backward;
  call.q = inputs.q.view();
  call.k = inputs.k.view();
  call.v = inputs.v.view();
  call.sink = inputs.sink.view();
  call.q_scale = inputs.q_scale.view();
  call.k_scale = inputs.k_scale.view();
  call.v_scale = inputs.v_scale.view();
  call.cu_seqlens_q = inputs.cu_seqlens_q.view();
  call.cu_seqlens_k = inputs.cu_seqlens_k.view();
  call.seqused_q = inputs.seqused_q.view();
  call.seqused_k = inputs.seqused_k.view();
  call.dout = inputs.dout.view();
  call.dlse = inputs.dlse.view();
  call.out = buffers.results[kResultOut].view();
  call.lse = buffers.results[kResultLse].view();
  call.dq = buffers.results[kResultDq].view();
  call.dk = buffers.results[kResultDk].view();
  call.dv = buffers.results[kResultDv].view();
  call.dsink = buffers.results[kResultDsink].view();
  call.mask = make_mask(c, inputs);
  call.has_softmax_scale = c.has_scale;
  call.softmax_scale = c.scale;
  call.softcap = c.softcap;
  return call;
}

AttentionValues run_case(const VerifyCase& c, const AttentionCall& call, const CaseBuffers& buffers) {
  run_once(call, Direction::kForward);
  if (c.backward) run_once(call, Direction::kBackward);
  AttentionValues values;
  for (int result = 0; result < kResultCount; ++result) values.values[result] = buffers.results[result].to_doubles();
  return values;
}

TensorBuffer in_fp64(const TensorBuffer& tensor, const TensorBuffer& factor) {
  TensorBuffer result = tensor.converted(TANDEM_FP64);
  if (!factor.present()) return result;
  for (int64_t i = 0; i < result.size(); ++i) result.set(i, result.at(i) * factor.at(0));
  return result;
}

// The same numbers in fp64: nothing of the reference's result is lost to rounding.
AttentionValues run_reference(VerifyCase c, const CaseInputs& inputs) {
  CaseInputs wide;
  wide.q = in_fp64(inputs.q, inputs.q_scale);
  wide.k = in_fp64(inputs.k, inputs.k_scale);
  wide.v = in_fp64(inputs.v, inputs.v_scale);
  wide.dout = inputs.dout.converted(TANDEM_FP64);
  wide.dlse = inputs.dlse.converted(TANDEM_FP64);
  wide.sink = inputs.sink.converted(TANDEM_FP64);
  wide.lo = inputs.lo.converted(TANDEM_INT32);
  wide.hi = inputs.hi.converted(TANDEM_INT32);
  wide.cu_seqlens_q = inputs.cu_seqlens_q.converted(TANDEM_INT32);
  wide.cu_seqlens_k = inputs.cu_seqlens_k.converted(TANDEM_INT32);
  wide.seqused_q = inputs.seqused_q.converted(TANDEM_INT32);
  wide.seqused_k = inputs.seqused_k.converted(TANDEM_INT32);
  c.dtype = c.out_dtype = TANDEM_FP64;
  const CaseBuffers buffers = make_buffers(c, wide);
  return run_case(c, make_call(c, wide, buffers, TANDEM_BACKEND_REFERENCE, {TANDEM_CPU, 0}), buffers);
}

double largest_error(const Values& values, const Values& expected) {
  double largest = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double error = std::fabs(values[i] - expected[i]);
    if (!(error <= largest)) largest = std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
  }
  return largest;
}

double largest_magnitude(const Values& values) {
  double largest = 0;
  for (const double value : values) largest = std::fmax(largest, std::fabs(value));
  return largest;
}

// Errors in units of what is allowed; rows without keys are -inf exactly.
double lse_ratio(const Values& values, const Values& expected, double rounding) {
  double worst = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] == expected[i]) continue;
    const double allowed = kLseTolerance * std::fmax(1, std::fabs(expected[i])) + rounding;
    const double ratio = std::fabs(values[i] - expected[i]) / allowed;
    worst = std::isfinite(ratio) ? std::fmax(worst, ratio) : std::numeric_limits<double>::infinity();
  }
  return worst;
}

std::string error_text(Result result, double error, double allowed) {
  char text[128];
  std::snprintf(text, sizeof(text), "%s is off by %.3g where %.3g is allowed", kResultNames[result], error, allowed);
  return text;
}

void compare_result(Result result, const Values& tested, const Values& expected, const PlainAttention& plain,
                    int32_t stored_dtype, CaseOutcome& outcome) {
  if (tested.empty()) return;
  double error;
  double allowed;
  if (result == kResultLse) {
    allowed = kLseTolerance + plain.rounding[result];
    error = lse_ratio(tested, expected, plain.rounding[result]) * allowed;
  } else {
    error = largest_error(tested, expected);
    allowed = allowed_error(largest_error(plain.result.values[result], expected), stored_dtype,
                            largest_magnitude(expected), plain.rounding[result]);
  }
  outcome.worst = std::fmax(outcome.worst, error / allowed);
  if (error <= allowed) return;
  outcome.failed = true;
  outcome.detail += (outcome.detail.empty() ? "" : "; ") + error_text(result, error, allowed);
}

}  // namespace

double allowed_error(double plain_error, int32_t stored_dtype, double largest, double rounding) {
  return 2 * plain_error + 2 * unit_in_last_place(stored_dtype, largest) + 2 * rounding;
}

CaseOutcome verify_case(const VerifyCase& c, int32_t backend, tandem_device device) {
  const CaseInputs inputs = make_inputs(c);
  const CaseBuffers buffers = make_buffers(c, inputs);
  const AttentionCall call = make_call(c, inputs, buffers, backend, device);
  CaseOutcome outcome;
  tandem_status status = check(call, Direction::kForward);
  if (status == TANDEM_OK && c.backward) status = check(call, Direction::kBackward);
  if (status == TANDEM_UNSUPPORTED) {
    outcome.refused = true;
    outcome.detail = tandem_last_error();
    return outcome;
  }
  require_ok(status);

  const AttentionValues tested = run_case(c, call, buffers);
  const AttentionValues expected = run_reference(c, inputs);
  const PlainAttention plain = plain_attention(c, inputs);
  for (int i = 0; i < kResultCount; ++i) {
    compare_result(static_cast<Result>(i), tested.values[i], expected.values[i], plain, buffers.results[i].dtype(),
                   outcome);
  }
  return outcome;
}

}  // namespace tandem::cli
