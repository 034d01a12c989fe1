// Rules that the four attention structs share, run on each of them.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "api/arguments.h"
#include "gpu_build.h"
#include "params.h"
#include "rules.h"

namespace tandem {
namespace {

template <class Params>
class EveryAttention : public testing::Test {
 protected:
  static constexpr bool kPacked =
      std::is_same_v<Params, VarlenForwardParams> || std::is_same_v<Params, VarlenBackwardParams>;
  static constexpr int kRow = kPacked ? 0 : 1;  // axis of the rows; heads and columns follow

  static std::string axis(const std::string& tensor, int offset, const char* field = "shape") {
    return tensor + "." + field + "[" + std::to_string(kRow + offset) + "]";
  }

  static void expect_all_refused(const std::vector<Rule<Params>>& rules) {
    for (const Rule<Params>& rule : rules) expect_refused(valid_attention<Params>(), rule);
  }
};

using Kinds = testing::Types<ForwardParams, VarlenForwardParams, BackwardParams, VarlenBackwardParams>;
TYPED_TEST_SUITE(EveryAttention, Kinds);

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

TYPED_TEST(EveryAttention, AcceptsAValidProblem) {
  expect_accepted(valid_attention<TypeParam>());
}

TYPED_TEST(EveryAttention, Execution) {
  using P = TypeParam;
  int stream = 0;
  this->expect_all_refused({
      {"exec.device.type", [](P& p) { p.exec.device.type = 7; }, {"is 7", "TANDEM_CPU", "TANDEM_CUDA"}},
      {"exec.device.ordinal", [](P& p) { p.exec.device.ordinal = 1; }, {"is 1", "0 on the CPU"}},
      {"exec.device.ordinal", [](P& p) { p.exec.device = {TANDEM_CUDA, -1}; }, {"is -1", "0 or more"}},
      {"exec.stream", [&](P& p) { p.exec.stream = &stream; }, {"must be NULL"}},
      {"exec.backend", [](P& p) { p.exec.backend = 4; }, {"is 4", "3 (sm90)"}},
      {"exec.backend", [](P& p) { p.exec.backend = -1; }, {"is -1", "0 (auto)"}},
      {"exec.num_threads", [](P& p) { p.exec.num_threads = -2; }, {"is -2"}},
      {"exec.sm_margin", [](P& p) { p.exec.sm_margin = -1; }, {"is -1"}},
      {"exec.sm_margin", [](P& p) { p.exec.sm_margin = 8; }, {"is 8", "0 on the CPU"}},
      {"exec.needs_grad", [](P& p) { p.exec.needs_grad = 2; }, {"is 2", "0 and 1"}},
      {"exec.deterministic", [](P& p) { p.exec.deterministic = -1; }, {"is -1", "0 and 1"}},
      {"exec.checked", [](P& p) { p.exec.checked = 3; }, {"is 3", "0 and 1"}},
      {"backend sm90",
       [](P& p) { p.exec.backend = TANDEM_BACKEND_SM90; },
       {has_sm90() ? "runs on TANDEM_CUDA but device.type is TANDEM_CPU" : "not part"},
       TANDEM_UNSUPPORTED},
  });
}

// Ordinal 1000: no machine has it, so that the GPU cannot run the problem, whatever was built.
TYPED_TEST(EveryAttention, AGpuThatIsNotThere) {
  using P = TypeParam;
  const auto change = [](P& p) { p.exec.device = {TANDEM_CUDA, 1000}; };
  if (has_sm90()) {
    this->expect_all_refused({{"CUDA device 1000", change, {}, TANDEM_NO_DEVICE}});
  } else {
    this->expect_all_refused({{"device.type", change, {"without a backend"}, TANDEM_NO_DEVICE}});
  }
}

TYPED_TEST(EveryAttention, ScaleAndSoftcap) {
  using P = TypeParam;
  this->expect_all_refused({
      {"has_softmax_scale", [](P& p) { p.has_softmax_scale = 2; }, {"is 2", "0 and 1"}},
      {"softmax_scale", [](P& p) { p.softmax_scale = 0.5; }, {"is 0.5", "has_softmax_scale is 0"}},
      {"softmax_scale", [](P& p) { p.has_softmax_scale = 1, p.softmax_scale = kInf; }, {"is inf", "finite"}},
      {"softmax_scale", [](P& p) { p.has_softmax_scale = 1, p.softmax_scale = kNan; }, {"is nan", "finite"}},
      {"softcap", [](P& p) { p.softcap = -1; }, {"is -1", "positive"}},
      {"softcap", [](P& p) { p.softcap = kNan; }, {"is nan"}},
      {"softcap", [](P& p) { p.softcap = kInf; }, {"is inf"}},
      {"reserved", [](P& p) { p.reserved = 1; }, {"is 1", "must be 0"}},
  });
  for (double scale : {0.0, -2.5, 1e-300}) {
    P params = valid_attention<P>();
    params.has_softmax_scale = 1;
    params.softmax_scale = scale;
    expect_accepted(params);
  }
}

TYPED_TEST(EveryAttention, Mask) {  // C56 among others
  using P = TypeParam;
  const auto window = [](int64_t left, int64_t right) {
    return [=](P& p) { p.mask.has_window = 1, p.mask.window_left = left, p.mask.window_right = right; };
  };
  this->expect_all_refused({
      {"mask.causal", [](P& p) { p.mask.causal = 2; }, {"is 2", "0 and 1"}},
      {"mask.top_left", [](P& p) { p.mask.top_left = -1; }, {"is -1"}},
      {"mask.has_window", [](P& p) { p.mask.has_window = 5; }, {"is 5"}},
      {"mask.reserved", [](P& p) { p.mask.reserved = 1; }, {"must be 0"}},
      {"mask.window_right", window(-1, -3), {"is -3", "-1 for an open side"}},
      {"mask.window_left", window(-5, 2), {"is -5", "-1 for an open side"}},
      {"mask.window_left", [](P& p) { p.mask.window_left = 4; }, {"is 4", "mask.has_window is 0"}},
      {"mask.window_right", [](P& p) { p.mask.window_right = 1; }, {"is 1", "mask.has_window is 0"}},
      {"mask.attention_chunk", [](P& p) { p.mask.attention_chunk = -4; }, {"is -4", "0 and more"}},
  });
  for (auto change : {window(-1, 0), window(0, 0), window(1000000, 0), window(kHuge, kHuge)}) {
    P params = valid_attention<P>();
    change(params);
    params.mask.causal = params.mask.top_left = 1;
    params.mask.attention_chunk = kHuge;
    expect_accepted(params);
  }
  P params = valid_attention<P>();
  params.mask.window_left = params.mask.window_right = -1;
  expect_accepted(params);
}

TYPED_TEST(EveryAttention, DtypesOfInputs) {  // C80, C92
  using P = TypeParam;
  this->expect_all_refused({
      {"q.dtype", [](P& p) { p.q.dtype = 0; }, {"is none", "fp64, fp32, fp16, bf16, e4m3 and e5m2"}},
      {"q.dtype", [](P& p) { p.q.dtype = 99; }, {"is unknown (99)"}},
      {"q.dtype", [](P& p) { p.q.dtype = TANDEM_INT32; }, {"is int32"}},
      {"k.dtype", [](P& p) { p.k.dtype = TANDEM_FP16; }, {"is fp16", "q.dtype is bf16", "allowed is bf16"}},
      {"k.dtype", [](P& p) { p.k.dtype = TANDEM_E4M3; }, {"is e4m3", "q.dtype is bf16"}},
      {"v.dtype", [](P& p) { p.v.dtype = TANDEM_FP32; }, {"is fp32", "q.dtype is bf16"}},
      {"out.dtype", [](P& p) { p.out.dtype = TANDEM_FP16; }, {"is fp16", "bf16 and fp32"}},
      {"lse.dtype", [](P& p) { p.lse.dtype = TANDEM_FP64; }, {"is fp64", "allowed is fp32"}},
      {"sink.dtype", [](P& p) { p.sink = shaped(kBf16, {4}); }, {"is bf16", "allowed is fp32"}},
      {"seqused_q.dtype", [](P& p) { p.seqused_q = shaped(kFp32, {2}); }, {"is fp32", "int32"}},
      {"seqused_k.dtype", [](P& p) { p.seqused_k = shaped(kFp32, {2}); }, {"is fp32", "int32"}},
      {"mask.lo.dtype", [](P& p) { p.mask.lo = shaped(kFp32, {4, 9}); }, {"is fp32", "int32"}},
      {"mask.hi.dtype", [](P& p) { p.mask.hi = shaped(kFp32, {4, 9}); }, {"is fp32", "int32"}},
  });
}

TYPED_TEST(EveryAttention, MissingAndHalfAbsentTensors) {
  using P = TypeParam;
  this->expect_all_refused({
      {"q is absent", [](P& p) { p.q = {}; }, {"required"}},
      {"k is absent", [](P& p) { p.k = {}; }, {"required"}},
      {"v is absent", [](P& p) { p.v = {}; }, {"required"}},
      {"out is absent", [](P& p) { p.out = {}; }, {"required"}},
      {"sink.ndim", [](P& p) { p.sink.data = &p; }, {"is 0", "sink.data is not NULL"}},
      {"seqused_k.ndim", [](P& p) { p.seqused_k.data = &p; }, {"is 0", "not NULL"}},
      {"mask.lo.ndim", [](P& p) { p.mask.lo.dtype = TANDEM_INT32; }, {"is 0", "dtype is set"}},
  });
}

TYPED_TEST(EveryAttention, RanksAndSizes) {
  using P = TypeParam;
  constexpr int kRow = TestFixture::kRow;
  const auto axis = [](const char* tensor, int offset) { return TestFixture::axis(tensor, offset); };
  this->expect_all_refused({
      {"q.ndim", [](P& p) { p.q.ndim = 2; }, {"is 2", "nheads_q, headdim)"}},
      {"k.ndim", [](P& p) { p.k.ndim = 1000000; }, {"is 1000000"}},
      {"v.ndim", [](P& p) { p.v.ndim = -1; }, {"is -1"}},
      {axis("q", 1), [](P& p) { p.q.shape[kRow + 1] = -4; }, {"nheads_q", "is -4"}},
      {axis("k", 0), [](P& p) { p.k.shape[kRow] = int64_t{1} << 31; }, {"is 2147483648", "2147483647"}},
      {axis("k", 2), [](P& p) { p.k.shape[kRow + 2] = 63; }, {"is 63", "must be 64", "headdim", axis("q", 2)}},
      {axis("v", 0), [](P& p) { p.v.shape[kRow] = 6; }, {"is 6", axis("k", 0)}},
      {axis("v", 1), [](P& p) { p.v.shape[kRow + 1] = 1; }, {"is 1", "must be 2", "nheads_k", axis("k", 1)}},
      {axis("out", 0), [](P& p) { p.out.shape[kRow] = 4; }, {"is 4", axis("q", 0)}},
      {axis("out", 1), [](P& p) { p.out.shape[kRow + 1] = 2; }, {"is 2", "must be 4", axis("q", 1)}},
      {axis("out", 2), [](P& p) { p.out.shape[kRow + 2] = 64; }, {"is 64", "must be 32", axis("v", 2)}},
      {"sink.shape[0]", [](P& p) { p.sink = shaped(kFp32, {2}); }, {"is 2", "must be 4", axis("q", 1)}},
      {"sink.ndim", [](P& p) { p.sink = shaped(kFp32, {1, 4}); }, {"is 2", "must be 1"}},
      {"seqused_q.shape[0]", [](P& p) { p.seqused_q = shaped(kInt32, {3}); }, {"is 3", "must be 2", "batch"}},
      {"seqused_k.shape[0]", [](P& p) { p.seqused_k = shaped(kInt32, {1}); }, {"is 1", "must be 2", "batch"}},
      {"lse.ndim", [](P& p) { p.lse.ndim = 1; }, {"is 1", "nheads_q"}},
  });
}

TYPED_TEST(EveryAttention, HeadDimsAndGroups) {  // C85, C87
  using P = TypeParam;
  constexpr int kRow = TestFixture::kRow;
  const auto axis = [](const char* tensor, int offset) { return TestFixture::axis(tensor, offset); };
  const auto heads = [](int64_t q, int64_t k) {
    return [=](P& p) { p.q.shape[kRow + 1] = q, p.k.shape[kRow + 1] = p.v.shape[kRow + 1] = k; };
  };
  this->expect_all_refused({
      {axis("q", 2), [](P& p) { p.q.shape[kRow + 2] = 512; }, {"is 512", "1 to 256", "split"}},
      {axis("q", 2), [](P& p) { p.q.shape[kRow + 2] = 0; }, {"is 0", "1 to 256"}},
      {axis("v", 2), [](P& p) { p.v.shape[kRow + 2] = 257; }, {"is 257", "1 to 256"}},
      {axis("k", 1), heads(3, 2), {"is 2", axis("q", 1), "is 3", "multiple"}},
      {axis("k", 1), heads(4, 0), {"is 0", "multiple"}},
  });
}

TYPED_TEST(EveryAttention, Strides) {  // C53
  using P = TypeParam;
  constexpr int kRow = TestFixture::kRow;
  const auto stride = [](const char* tensor, int offset) { return TestFixture::axis(tensor, offset, "stride"); };
  this->expect_all_refused({
      {stride("q", 0), [](P& p) { p.q.stride[kRow] = -256; }, {"is -256", "never negative"}},
      {stride("q", 2), [](P& p) { p.q.stride[kRow + 2] = 2; }, {"is 2", "contiguous"}},
      {stride("k", 2), [](P& p) { p.k.stride[kRow + 2] = 0; }, {"is 0", "contiguous"}},
      {stride("out", 2), [](P& p) { p.out.stride[kRow + 2] = 4; }, {"is 4", "contiguous"}},
      {"q.shape and q.stride", [](P& p) { p.q.stride[kRow] = kHuge; }, {"2^63"}},
      {"k.shape and k.stride", [](P& p) { p.k.stride[kRow] = kHuge / 12; }, {"2^63"}},
  });
}

TYPED_TEST(EveryAttention, InputsMayBroadcast) {
  TypeParam params = valid_attention<TypeParam>();
  for (int i = 0; i < TestFixture::kRow + 2; ++i) params.k.stride[i] = params.v.stride[i] = 0;
  params.sink = shaped(kFp32, {4});
  params.sink.stride[0] = 0;
  if constexpr (std::is_same_v<TypeParam, BackwardParams> || std::is_same_v<TypeParam, VarlenBackwardParams>) {
    params.dsink = shaped(kFp32, {4});
    for (int i = 0; i < TestFixture::kRow + 2; ++i) params.dout.stride[i] = 0;
  }
  expect_accepted(params);
}

TYPED_TEST(EveryAttention, StructSize) {
  using P = TypeParam;
  constexpr uint64_t kFirst = kFirstBytes<typename P::Base>;
  this->expect_all_refused({
      {"struct_size", [](P& p) { p.struct_size = 0; }, {"is 0", std::to_string(sizeof(P))}},
      {"struct_size", [](P& p) { p.struct_size = kFirst - 8; }, {std::to_string(kFirst - 8)}},
      {"struct_size", [](P& p) { p.struct_size = ~uint64_t{0}; }, {std::to_string(~uint64_t{0})}},
  });
  struct Newer {
    P known = valid_attention<P>();
    uint64_t unknown = 0;
  } newer;
  newer.known.struct_size = sizeof(Newer);
  EXPECT_EQ(detail::calls_of(newer.known).check(&newer.known), TANDEM_OK) << tandem_last_error();
  newer.unknown = 1;
  EXPECT_EQ(detail::calls_of(newer.known).check(&newer.known), TANDEM_UNSUPPORTED);
  expect_sentence(tandem_last_error(), "struct_size", {std::to_string(sizeof(Newer)), std::to_string(sizeof(P))});
  EXPECT_EQ(detail::calls_of(newer.known).check(nullptr), TANDEM_INVALID_ARGUMENT);
  expect_sentence(tandem_last_error(), "params is NULL", {});
}

}  // namespace
}  // namespace tandem
