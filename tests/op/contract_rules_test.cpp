// The contract, paragraphs 10 to 16: what holds whatever is computed.

#include <sys/mman.h>

#include <thread>

#include "backend_test.h"

namespace tandem::optest {
namespace {

class ContractRules : public BackendTest {};
class SparseMemory : public BackendTest {};

// A small valid problem as raw parameters, for tests that then break it.
struct RawForward {
  Problem problem;
  HostTensor q, k, v, out;
  CallMemory memory;
  tandem_forward_params params = {};

  explicit RawForward(const Target& target)
      : problem(fitted(dense_problem(1, 4, 6, 2, 1, 8), target)),
        q(problem.q_shape(), problem.dtype),
        k(problem.k_shape(), problem.dtype),
        v(problem.v_shape(), problem.dtype),
        out(problem.out_shape(), problem.out_dtype),
        memory(target.backend) {
    for (HostTensor* tensor : {&q, &k, &v}) {
      for (int64_t n = 0; n < tensor->count(); ++n) tensor->set(n, 0.25);
    }
    params.struct_size = sizeof params;
    params.exec.backend = target.backend;
    memory.set_place(params.exec);
    params.q = memory.view(q);
    params.k = memory.view(k);
    params.v = memory.view(v);
    params.out = memory.view(out);
  }

  tandem_status run() {
    uint64_t bytes = 0;
    uint64_t alignment = 1;
    const tandem_status status = tandem_forward_workspace(&params, &bytes, &alignment);
    if (status != TANDEM_OK) return status;
    workspace = GuardedBytes(bytes, alignment);
    params.exec.workspace = memory.address(workspace.storage()) + workspace.offset();
    params.exec.workspace_bytes = bytes;
    return tandem_forward(&params);
  }

  GuardedBytes workspace;
};

void expect_refused(const tandem_forward_params& params, tandem_status status, const char* word) {
  EXPECT_EQ(tandem_forward_check(&params), status) << tandem_last_error();
  EXPECT_EQ(tandem_forward(&params), status) << tandem_last_error();
  EXPECT_NE(std::string(tandem_last_error()).find(word), std::string::npos) << tandem_last_error();
}

TEST_P(ContractRules, Contract10_BroadcastInputs) {
  Problem problem = dense(3, 10, 12, 4, 2, 16);
  for (int axis : {0, 1, 2}) {
    problem.q_layout.broadcast = {axis};
    problem.k_layout.broadcast = {axis};
    if (!problem.v_transposed) problem.v_layout.broadcast = {axis};
    problem.dout_layout.broadcast = {axis};
    if (!target().broadcasts) {
      Runner runner(problem, random_inputs(problem, 20), backend());
      EXPECT_EQ(runner.forward(), TANDEM_UNSUPPORTED);
      EXPECT_NE(std::string(tandem_last_error()).find("stride"), std::string::npos) << tandem_last_error();
      continue;
    }
    expect_correct(problem, 20);
  }
  if (!gradients()) return;
  problem.q_layout = problem.k_layout = problem.v_layout = {};
  problem.dout_layout.broadcast = {0, 1, 2};  // the gradient of a sum is one expanded row
  const Inputs inputs = random_inputs(problem, 21);
  Runner runner(problem, inputs, backend());
  ASSERT_EQ(runner.forward(), TANDEM_OK) << tandem_last_error();
  if (!target().broadcasts && runner.backward() == TANDEM_UNSUPPORTED) {
    EXPECT_NE(std::string(tandem_last_error()).find("dout"), std::string::npos) << tandem_last_error();
    return;
  }
  EXPECT_EQ(fault(problem, inputs), "");
}

TEST_P(ContractRules, Contract10_NegativeStridesAndGapsInTheLastAxisAreRefused) {
  RawForward negative(target());
  negative.params.k.stride[1] = -8;
  expect_refused(negative.params, TANDEM_INVALID_ARGUMENT, "k.stride[1]");
  RawForward sparse(target());
  sparse.params.v.stride[3] = 2;
  expect_refused(sparse.params, TANDEM_INVALID_ARGUMENT, "v.stride[3]");
  RawForward overlapping(target());
  overlapping.params.out.stride[1] = 0;
  expect_refused(overlapping.params, TANDEM_INVALID_ARGUMENT, "out.stride[1]");
}

// Address space without memory behind it: pages come into being when touched, as zeros. (A GPU has none; tests/gpu uses
// its real memory.)
class SparseFloats {
 public:
  explicit SparseFloats(int64_t count)
      : bytes_(static_cast<size_t>(count) * sizeof(float)),
        data_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~SparseFloats() {
    if (data_ != MAP_FAILED) munmap(data_, bytes_);
  }
  SparseFloats(const SparseFloats&) = delete;
  bool mapped() const { return data_ != MAP_FAILED; }
  float* data() { return static_cast<float*>(data_); }

 private:
  size_t bytes_;
  void* data_;
};

TEST_P(SparseMemory, Contract10_OffsetsAre64Bit) {
  constexpr int64_t kStride = (int64_t{1} << 31) + 64;  // elements between two sequences
  Problem problem = dense(2, 4, 6, 2, 1, 8);
  const Inputs inputs = random_inputs(problem, 22);
  const Results expected = forward(problem, inputs);

  RawForward raw(target());
  SparseFloats q(kStride + 64), k(kStride + 48), v(kStride + 48), out(kStride + 64);
  if (!q.mapped() || !k.mapped() || !v.mapped() || !out.mapped()) GTEST_SKIP() << "no 34 GB of address space";
  const auto place = [&](tandem_tensor& tensor, SparseFloats& memory, const std::vector<double>& values) {
    tensor.data = memory.data();
    tensor.shape[0] = 2;
    tensor.stride[0] = kStride;
    for (size_t n = 0; n < values.size(); ++n) {
      const size_t half = values.size() / 2;
      memory.data()[(n / half) * static_cast<size_t>(kStride) + n % half] = static_cast<float>(values[n]);
    }
  };
  place(raw.params.q, q, inputs.q);
  place(raw.params.k, k, inputs.k);
  place(raw.params.v, v, inputs.v);
  place(raw.params.out, out, {});
  ASSERT_EQ(raw.run(), TANDEM_OK) << tandem_last_error();
  for (size_t n = 0; n < 64; ++n) {
    ASSERT_EQ(out.data()[n], static_cast<float>(expected.out[n]));
    ASSERT_EQ(out.data()[static_cast<size_t>(kStride) + n], static_cast<float>(expected.out[64 + n]));
  }
}

// More of each than a 16-bit grid axis holds. With a target's head dims it would take long to compute the right values:
// tests/gpu has such problems.
TEST_P(ContractRules, Contract11_NoAxisHasALimitOfItsOwn) {
  const int64_t many = target().fixed() ? 700 : 70000;
  expect_correct(dense(many, 1, 1, 1, 1, 1, TANDEM_BF16), 30);
  expect_correct(dense(1, 1, 1, many, many / 2, 1, TANDEM_BF16), 31);
  expect_correct(dense(1, many, 1, 1, 1, 1, TANDEM_BF16), 32);
  expect_correct(dense(1, 1, many, 1, 1, 1, TANDEM_BF16), 33);
}

Problem busy_problem(int32_t dtype) {
  Problem problem = packed_problem({70, 0, 33, 1, 129}, {90, 5, 33, 64, 100}, 4, 2, 40, dtype);
  problem.causal = true;
  problem.sink = {0, 1, -1, 2};
  problem.with_dlse = true;
  problem.deterministic = true;
  return problem;
}

TEST_P(ContractRules, Contract12_SameBitsWithAnyNumberOfThreadsAndOnEveryRun) {
  for (int32_t dtype : dtypes({TANDEM_FP32, TANDEM_BF16, TANDEM_FP16, TANDEM_FP64})) {
    Problem problem = fitted(busy_problem(dtype), target());
    const Inputs inputs = random_inputs(problem, 23);
    problem.num_threads = 1;
    const Results expected = repeatable(problem, inputs);
    for (int32_t threads : {1, 2, 3, 3, 0}) {
      problem.num_threads = threads;
      expect_same_bits(expected, repeatable(problem, inputs));
    }
  }
}

TEST_P(ContractRules, Contract12_SameBitsWhateverUnseenStorageHolds) {
  Problem problem = fitted(busy_problem(TANDEM_FP32), target());
  problem.seqused_k = {80, 5, 20, 64, 77};
  problem.seqused_q = {70, 0, 30, 1, 100};
  const Results expected = repeatable(problem, random_inputs(problem, 24, Poison::kNone));
  expect_same_bits(expected, repeatable(problem, random_inputs(problem, 24, Poison::kNan)));
  expect_same_bits(expected, repeatable(problem, random_inputs(problem, 24, Poison::kInfinity)));
}

// A sequence alone, and among neighbours of other lengths and in other places.
TEST_P(ContractRules, Contract12_ASequencesBitsDependOnThatSequenceAlone) {
  const Problem together = packed({70, 33, 129, 5}, {90, 64, 100, 7}, 4, 2, 40);
  const Inputs inputs = random_inputs(together, 25);
  const Results all = repeatable(together, inputs);
  for (int64_t b = 0; b < 4; ++b) {
    const Span span = together.span(b);
    const Problem alone = packed({static_cast<int32_t>(span.q_len)}, {static_cast<int32_t>(span.k_len)}, 4, 2, 40);
    const int64_t d = together.headdim, d_v = together.headdim_v;
    Inputs own;
    own.q = rows_of(inputs.q, span.q_begin, span.q_len, 4 * d);
    own.k = rows_of(inputs.k, span.k_begin, span.k_len, 2 * d);
    own.v = rows_of(inputs.v, span.k_begin, span.k_len, 2 * d_v);
    own.dout = rows_of(inputs.dout, span.q_begin, span.q_len, 4 * d_v);
    own.dlse.assign(static_cast<size_t>(span.q_len * 4), 0);
    const Results results = repeatable(alone, own);
    EXPECT_TRUE(same_bits(results.out, rows_of(all.out, span.q_begin, span.q_len, 4 * d_v))) << b;
    EXPECT_TRUE(same_bits(results.dq, rows_of(all.dq, span.q_begin, span.q_len, 4 * d))) << b;
    EXPECT_TRUE(same_bits(results.dk, rows_of(all.dk, span.k_begin, span.k_len, 2 * d))) << b;
    EXPECT_TRUE(same_bits(results.dv, rows_of(all.dv, span.k_begin, span.k_len, 2 * d_v))) << b;
  }
}

TEST_P(ContractRules, Contract13_ErrorsNameTheArgument) {
  RawForward heads(target());
  heads.params.q.shape[2] = 3;
  heads.params.k.shape[2] = heads.params.v.shape[2] = 2;
  expect_refused(heads.params, TANDEM_INVALID_ARGUMENT, "nheads");
  RawForward window(target());
  window.params.mask.has_window = 1;
  window.params.mask.window_left = -3;
  expect_refused(window.params, TANDEM_INVALID_ARGUMENT, "window_left");
  RawForward types(target());
  types.params.k.dtype = target().dtype == TANDEM_E4M3 ? TANDEM_BF16 : TANDEM_E4M3;
  expect_refused(types.params, TANDEM_INVALID_ARGUMENT, "k.dtype");
  RawForward cap(target());
  cap.params.softcap = -1;
  expect_refused(cap.params, TANDEM_INVALID_ARGUMENT, "softcap");
  RawForward unknown(target());
  unknown.params.mask.causal = 2;
  expect_refused(unknown.params, TANDEM_INVALID_ARGUMENT, "causal");
}

TEST_P(ContractRules, Contract13_AnErrorWritesNothing) {
  RawForward raw(target());
  raw.out.snapshot();
  raw.params.mask.attention_chunk = -1;
  EXPECT_EQ(tandem_forward(&raw.params), TANDEM_INVALID_ARGUMENT);
  raw.memory.bring_home();
  EXPECT_EQ(raw.out.changes_anywhere(), "");
}

TEST_P(ContractRules, Contract13_Fp8IsRefusedWhereGradientsAreWanted) {
  RawForward raw(target());
  for (tandem_tensor* tensor : {&raw.params.q, &raw.params.k, &raw.params.v}) tensor->dtype = TANDEM_E4M3;
  raw.params.exec.needs_grad = 1;
  expect_refused(raw.params, TANDEM_UNSUPPORTED, "grad");
}

// Offsets and lengths that lie: nothing outside the buffers is read or written, and the checked mode says what is
// wrong.
TEST_P(ContractRules, Contract13_WildOffsetsStayInsideTheBuffers) {
  const std::vector<std::vector<int32_t>> wild = {
      {0, 100, 5, 9}, {5, 9, 2, 9}, {-7, 3, 6, 9}, {0, INT32_MAX, INT32_MIN, 4}, {0, 768, 768, 768}, {9, 9, 9, 9}};
  for (const std::vector<int32_t>& offsets : wild) {
    for (const std::vector<int32_t>& used : {std::vector<int32_t>{}, std::vector<int32_t>{INT32_MAX, -5, 2}}) {
      Problem problem = packed({3, 3, 3}, {3, 3, 3}, 2, 1, 8);
      const Inputs inputs = random_inputs(problem, 26);
      problem.cu_seqlens_k = offsets;
      problem.seqused_k = used;
      Runner runner(problem, inputs, backend());
      EXPECT_EQ(runner.forward(), TANDEM_OK) << tandem_last_error();
      if (gradients()) {
        EXPECT_EQ(runner.backward(), TANDEM_OK) << tandem_last_error();
      }
      EXPECT_EQ(runner.damage(), "");
      problem.checked = true;
      Runner checked(problem, inputs, backend());
      EXPECT_EQ(checked.forward(), TANDEM_INVALID_ARGUMENT);
      EXPECT_NE(std::string(tandem_last_error()).find("cu_seqlens_k"), std::string::npos) << tandem_last_error();
    }
  }
}

TEST_P(ContractRules, Contract14_CallsFromSeveralThreadsAreSafe) {
  const Problem problem = fitted(busy_problem(TANDEM_FP32), target());
  const Inputs inputs = random_inputs(problem, 27);
  const Results expected = repeatable(problem, inputs);
  std::vector<Results> results(4);
  std::vector<std::thread> threads;
  for (Results& mine : results) threads.emplace_back([&] { mine = repeatable(problem, inputs); });
  for (std::thread& thread : threads) thread.join();
  for (const Results& mine : results) expect_same_bits(expected, mine);
}

TEST_P(ContractRules, Contract14_AWorkspaceThatIsTooSmallIsRefused) {
  RawForward raw(target());
  uint64_t bytes = 0;
  uint64_t alignment = 0;
  ASSERT_EQ(tandem_forward_workspace(&raw.params, &bytes, &alignment), TANDEM_OK);
  if (bytes == 0) return;
  EXPECT_EQ(tandem_forward(&raw.params), TANDEM_WORKSPACE_TOO_SMALL);
  ASSERT_EQ(raw.run(), TANDEM_OK) << tandem_last_error();
  raw.params.exec.workspace_bytes -= 1;
  EXPECT_EQ(tandem_forward(&raw.params), TANDEM_WORKSPACE_TOO_SMALL);
  EXPECT_NE(std::string(tandem_last_error()).find("workspace"), std::string::npos) << tandem_last_error();
}

TEST(ContractDevices, Contract15_ForcingABackendThatCannotServeIsAnError) {
  RawForward raw({"sm90", TANDEM_BACKEND_SM90});
  raw.params.exec.device = {TANDEM_CPU, 0};
  raw.params.exec.stream = nullptr;
  EXPECT_NE(tandem_forward_check(&raw.params), TANDEM_OK);
  EXPECT_NE(std::string(tandem_last_error()), "");
  int32_t backend = -1;
  EXPECT_EQ(tandem_backend_select(TANDEM_BACKEND_REFERENCE, {TANDEM_CPU, 0}, &backend), TANDEM_OK);
  EXPECT_EQ(backend, TANDEM_BACKEND_REFERENCE);
  EXPECT_NE(tandem_backend_available(TANDEM_BACKEND_SM90, {TANDEM_CPU, 0}), TANDEM_OK);
}

TEST_P(ContractRules, Contract16_Accuracy) {
  for (int32_t dtype : dtypes({TANDEM_FP32, TANDEM_BF16, TANDEM_FP16, TANDEM_FP64})) {
    for (int64_t headdim : headdims({32, 64, 128})) {
      Problem problem = dense(1, 100, 150, 2, 1, headdim, dtype);
      problem.causal = headdim != 64;
      expect_correct(problem, 28);
      if (dtype == TANDEM_BF16 || dtype == TANDEM_FP16) {
        problem.causal = !problem.causal;
        if (target().fp32_results) problem.out_dtype = TANDEM_FP32;
        expect_correct(problem, 29);
      }
    }
  }
}

TANDEM_ON_EACH_TARGET(ContractRules);
TANDEM_ON_TARGETS_WHERE(has_any_head_dims, SparseMemory);

}  // namespace
}  // namespace tandem::optest
