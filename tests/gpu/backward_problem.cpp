#include "backward_problem.h"

#include <stdexcept>

#include "backward_fill.h"

namespace tandem::gpu_test {
namespace {

optest::Problem with_lse(optest::Problem problem) {
  problem.with_lse = true;
  return problem;
}

// P is recomputed from an LSE in fp32. Scores of tens of thousands leave that few digits, and the cancelling sums that
// they are have fp32's rounding, which the oracle's plain attention does not have. GradientRange and C72 of tests/op
// have such scores.
Fill without_huge_scores(Fill fill) {
  if (fill.pattern == Pattern::kHuge) fill.pattern = Pattern::kPeaked;
  return fill;
}

PoolBuffer like(const Placement& place) {
  return PoolBuffer(static_cast<size_t>(place.elements) * sizeof(uint16_t));
}

}  // namespace

BackwardProblem::BackwardProblem(const optest::Problem& problem, const Fill& fill, bool head_major)
    : forward_(with_lse(problem), fill, head_major), seed_(fill.seed) {
  const DeviceView& view = forward_.view();
  dout_ = like(view.out_at);
  dq_ = like(view.q_at);
  dk_ = like(view.k_at);
  dv_ = like(view.v_at);
  if (problem.with_dlse) dlse_ = GuardedBuffer(static_cast<size_t>(view.rows_q() * view.nheads_q) * sizeof(float));
  if (view.sink != nullptr) dsink_ = GuardedBuffer(static_cast<size_t>(view.nheads_q) * sizeof(float));
  dlse_.fill(0xff);
  set_view();
  fill_gradient_inputs(view_, fill);
  try {
    workspace_ = problem.packed
                     ? make_workspace(params<tandem_varlen_backward_params>(nullptr), tandem_varlen_backward_workspace)
                     : make_workspace(params<tandem_backward_params>(nullptr), tandem_backward_workspace);
  } catch (const std::exception& error) {
    throw std::runtime_error(std::string(error.what()) + "; " + text());
  }
  run_forward();
  poison_results();
}

void BackwardProblem::set_view() {
  view_ = forward_.view();
  view_.dout = dout_.as<uint16_t>();
  view_.dlse = dlse_.as<float>();
  view_.dq = dq_.as<uint16_t>();
  view_.dk = dk_.as<uint16_t>();
  view_.dv = dv_.as<uint16_t>();
  view_.dsink = dsink_.as<float>();
}

void BackwardProblem::run_forward() {
  if (forward_.run_alone(true) != TANDEM_OK) {
    throw std::runtime_error(std::string("forward: ") + tandem_last_error() + "; " + text());
  }
  poison_outside_results(view_);
}

void BackwardProblem::change(const optest::Problem& problem, const Fill& fill) {
  seed_ = fill.seed;
  forward_.change(with_lse(problem), fill);
  set_view();
  fill_gradient_inputs(view_, fill);
  run_forward();
  poison_results();
}

void BackwardProblem::poison_results() const {
  for (const PoolBuffer* buffer : {&dq_, &dk_, &dv_}) buffer->fill(0xff);
  dsink_.fill(0xff);
  workspace_.fill(0xff);
  TANDEM_CHECK_CUDA(cudaDeviceSynchronize());
}

template <typename Params>
Params BackwardProblem::params(cudaStream_t stream) const {
  Params params = {};
  forward_.fill_params(params, stream);
  const int32_t dtype = forward_.problem().dtype;
  params.dout = forward_.tensor(view_.dout, view_.out_at, dtype);
  params.dlse = forward_.lse_tensor(view_.dlse);
  params.dq = forward_.tensor(view_.dq, view_.q_at, dtype);
  params.dk = forward_.tensor(view_.dk, view_.k_at, dtype);
  params.dv = forward_.tensor(view_.dv, view_.v_at, dtype);
  params.dsink = forward_.sink_tensor(view_.dsink);
  params.exec.workspace = workspace_.as<void>();
  params.exec.workspace_bytes = workspace_.bytes();
  return params;
}

template <typename Change>
tandem_status BackwardProblem::run_with(cudaStream_t stream, Change change) const {
  const auto run = [&](auto params, auto call) {
    change(params.exec);
    return call(&params);
  };
  return forward_.problem().packed ? run(params<tandem_varlen_backward_params>(stream), tandem_varlen_backward)
                                   : run(params<tandem_backward_params>(stream), tandem_backward);
}

tandem_status BackwardProblem::run(cudaStream_t stream, int32_t sm_margin, bool checked) const {
  return run_with(stream, [&](tandem_execution& exec) {
    exec.sm_margin = sm_margin;
    exec.checked = checked;
  });
}

tandem_status BackwardProblem::run_with_less_workspace() const {
  const Stream stream;
  return run_with(stream, [](tandem_execution& exec) { exec.workspace_bytes -= 1; });
}

tandem_status BackwardProblem::run_alone() const {
  const Stream stream;
  poison_results();
  const tandem_status status = run(stream);
  wait_for(stream);
  return status;
}

std::string BackwardProblem::fault(double most_products, GradientErrors* errors) const {
  std::string found = compare_gradients(view_, most_products, seed_, errors);
  const auto check_guard = [&](const char* name, const Placement& place, const void* data) {
    if (found.empty() && count_changed_guards(place, data, 2) > 0) found = std::string("the guard of ") + name;
  };
  check_guard("dQ", view_.q_at, view_.dq);
  check_guard("dK", view_.k_at, view_.dk);
  check_guard("dV", view_.v_at, view_.dv);
  if (found.empty() && !dsink_.guards_intact()) found = "the guard of dsink";
  if (found.empty() && !workspace_.guards_intact()) found = "the guard of the workspace";
  if (found.rfind("the guard", 0) == 0) found += " was written";
  return found.empty() ? "" : found + "; " + text();
}

bool BackwardProblem::same_bits(const BackwardProblem& other, const Fill& fill) const {
  return count_different_gradients(view_, other.view_, fill) == 0;
}

std::string check_backward(const optest::Problem& problem, const Fill& fill, bool head_major, double most_products) {
  try {
    const BackwardProblem data(problem, without_huge_scores(fill), head_major);
    if (data.run_alone() != TANDEM_OK) return std::string(tandem_last_error()) + "; " + data.text();
    return data.fault(most_products);
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace tandem::gpu_test
