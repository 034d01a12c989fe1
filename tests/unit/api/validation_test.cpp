// Rules of single structs: offsets, intervals, scales, gradients, output layouts, parts of a merge.
#include <gtest/gtest.h>

#include "params.h"
#include "rules.h"

namespace tandem {
namespace {

using Forward = ForwardParams;
using Varlen = VarlenForwardParams;
using Backward = BackwardParams;
using VarlenBackward = VarlenBackwardParams;
using Merge = MergeParams;

constexpr auto kFp64 = ElementType::kFp64;
constexpr auto kFp16 = ElementType::kFp16;
constexpr auto kE4m3 = ElementType::kE4m3;
constexpr auto kE5m2 = ElementType::kE5m2;

template <class Params>
void expect_all_refused(const Params& valid, const std::vector<Rule<Params>>& rules) {
  for (const Rule<Params>& rule : rules) expect_refused(valid, rule);
}

template <class Params>
Params changed(const std::function<void(Params&)>& change) {
  Params params = valid_attention<Params>();
  change(params);
  return params;
}

TEST(Validation, DenseShapes) {
  expect_all_refused<Forward>(
      valid_attention<Forward>(),
      {
          {"k.shape[0]", [](Forward& p) { p.k.shape[0] = 3; }, {"is 3", "must be 2", "batch of q.shape[0]"}},
          {"v.shape[0]", [](Forward& p) { p.v.shape[0] = 1; }, {"is 1", "q.shape[0]"}},
          {"lse.shape[1]", [](Forward& p) { p.lse = shaped(kFp32, {2, 5, 4}); }, {"is 5", "must be 4", "nheads_q"}},
          {"lse.shape[2]", [](Forward& p) { p.lse = shaped(kFp32, {2, 4, 6}); }, {"is 6", "seqlen_q of q.shape[1]"}},
          {"q.shape and q.stride",
           [](Forward& p) { p.q = view(nullptr, kBf16, {1 << 30, 1 << 30, 4, 64}, {0, 0, 0, 1}); },
           {"2^63"}},
      });
}

TEST(Validation, EmptyProblems) {  // C07, C09, C10
  expect_accepted(changed<Forward>([](Forward& p) {
    p.q = p.out = shaped(kBf16, {0, 3952, 10, 64});
    p.k = p.v = shaped(kBf16, {0, 16, 10, 64});
    p.lse = shaped(kFp32, {0, 10, 3952});
  }));
  expect_accepted(changed<Forward>([](Forward& p) {
    p.k = shaped(kBf16, {2, 0, 2, 64});
    p.v = shaped(kBf16, {2, 0, 2, 32});
  }));
  expect_accepted(changed<Forward>([](Forward& p) {  // no heads at all
    p.q = shaped(kBf16, {2, 5, 0, 64});
    p.k = shaped(kBf16, {2, 7, 0, 64});
    p.v = shaped(kBf16, {2, 7, 0, 32});
    p.out = shaped(kBf16, {2, 5, 0, 32});
    p.lse = shaped(kFp32, {2, 0, 5});
  }));
  expect_accepted(changed<Varlen>([](Varlen& p) {
    p.q = shaped(kBf16, {0, 4, 64});
    p.out = shaped(kBf16, {0, 4, 32});
    p.lse = shaped(kFp32, {4, 0});
    p.cu_seqlens_q = p.cu_seqlens_k = shaped(kInt32, {1});
  }));
}

TEST(Validation, ViewsThatMustPass) {
  expect_accepted(changed<Forward>([](Forward& p) {  // C48: slices of (2, 5, 3, 4, 64)
    p.q = p.k = p.v = p.out = view(nullptr, kBf16, {2, 5, 4, 64}, {5 * 3 * 4 * 64, 3 * 4 * 64, 64, 1});
  }));
  expect_accepted(changed<Forward>([](Forward& p) {  // C51: (2, 4, 5, 64) transposed
    p.q = p.k = p.v = p.out = view(nullptr, kBf16, {2, 5, 4, 64}, {4 * 5 * 64, 64, 5 * 64, 1});
    p.lse = view(nullptr, kFp32, {2, 4, 5}, {20, 1, 4});
  }));
  expect_accepted(changed<Forward>([](Forward& p) {  // C49: axes of size 1 with strides from nowhere
    p.q = p.out = view(nullptr, kBf16, {1, 5, 4, 1}, {-7, 4, 1, 12345});
    p.k = p.v = view(nullptr, kBf16, {1, 7, 1, 1}, {int64_t{1} << 62, 1, -9, 0});
    p.lse = view(nullptr, kFp32, {1, 4, 5}, {0, 5, 1});
  }));
  expect_accepted(changed<Forward>([](Forward& p) {  // C50: rows inside a wider buffer
    p.q = view(nullptr, kBf16, {2, 5, 4, 64}, {5 * 4 * 65, 4 * 65, 65, 1});
  }));
  expect_accepted(changed<Backward>([](Backward& p) {  // C46: a transposed gradient
    p.dout = view(nullptr, kBf16, {2, 5, 4, 32}, {4 * 5 * 32, 32, 5 * 32, 1});
  }));
}

TEST(Validation, OutputsMustNotOverlapThemselves) {
  const auto out = [](std::initializer_list<int64_t> strides) {
    return [tensor = view(nullptr, kBf16, {2, 5, 4, 32}, strides)](Forward& p) { p.out = tensor; };
  };
  expect_all_refused<Forward>(
      valid_attention<Forward>(),
      {
          {"out.stride[0]", out({0, 128, 32, 1}), {"is 0", "must not overlap"}},
          {"out.stride[2]", out({640, 128, 31, 1}), {"is 31", "at least 32"}},
          {"out.stride[1]", out({640, 127, 32, 1}), {"is 127", "at least 128"}},
          {"out.stride[1]", out({128, 128 * 2 - 1, 32, 1}), {"is 255", "at least 256"}},
          {"lse.stride[0]", [](Forward& p) { p.lse.stride[0] = 0; }, {"is 0", "must not overlap"}},
      });
  expect_all_refused<Backward>(valid_attention<Backward>(),
                               {
                                   {"dk.stride[0]", [](Backward& p) { p.dk.stride[0] = 0; }, {"must not overlap"}},
                                   {"dv.stride[2]", [](Backward& p) { p.dv.stride[2] = 0; }, {"must not overlap"}},
                                   {"dq.stride[1]", [](Backward& p) { p.dq.stride[1] = 10; }, {"is 10"}},
                                   {"dsink.stride[0]",
                                    [](Backward& p) {
                                      p.sink = p.dsink = shaped(kFp32, {4});
                                      p.dsink.stride[0] = 0;
                                    },
                                    {"is 0", "at least 1"}},
                               });
}

// Beyond the range of fp32 a scale would be infinite in the type that scores are computed in, and 0 * scale NaN.
TEST(Validation, ScaleInTheRangeOfTheScores) {
  const auto scaled = [](double scale, ElementType type) {
    Backward params = valid_attention<Backward>();
    params.has_softmax_scale = 1;
    params.softmax_scale = scale;
    for (tandem_tensor* tensor :
         {&params.q, &params.k, &params.v, &params.out, &params.dout, &params.dq, &params.dk, &params.dv}) {
      tensor->dtype = static_cast<int32_t>(type);
    }
    return params;
  };
  for (ElementType type : {kFp32, kFp16, kBf16}) {
    expect_accepted(scaled(-3.4e38, type));
    for (double scale : {3.41e38, -1e300}) {
      expect_refused<Backward>(scaled(scale, type), {"softmax_scale", [](Backward&) {}, {"fp32", "3.40282e+38"}});
    }
  }
  expect_accepted(scaled(-1e300, kFp64));
  expect_refused<Forward>(valid_attention<Forward>(),
                          {"softmax_scale",
                           [](Forward& p) { p.has_softmax_scale = 1, p.softmax_scale = 1e39; },
                           {"is 1e+39", "bf16", "3.40282e+38"}});
}

TEST(Validation, OutputTypes) {
  const auto types = [](ElementType in, ElementType out) {
    Forward params = valid_attention<Forward>();
    params.q.dtype = params.k.dtype = params.v.dtype = static_cast<int32_t>(in);
    params.out.dtype = static_cast<int32_t>(out);
    return params;
  };
  for (ElementType type : {kFp64, kFp32, kFp16, kBf16}) expect_accepted(types(type, type));
  expect_accepted(types(kFp16, kFp32));
  expect_accepted(types(kBf16, kFp32));
  for (ElementType out : {kFp16, kBf16, kFp32}) {
    expect_accepted(types(kE4m3, out));
    expect_refused<Forward>(types(kE5m2, out), {"q.dtype", [](Forward&) {}, {"e5m2", "e4m3"}, TANDEM_UNSUPPORTED});
  }

  const Rule<Forward> rule{"out.dtype", [](Forward&) {}, {"q.dtype is", "allowed"}};
  expect_refused(types(kFp32, kBf16), rule);
  expect_refused(types(kFp32, kFp64), rule);
  expect_refused(types(kFp64, kFp32), rule);
  expect_refused(types(kFp16, kBf16), rule);
  expect_refused(types(kE4m3, kFp64), rule);
  expect_refused(types(kE4m3, kE4m3), rule);
  expect_refused(types(kE5m2, kE4m3), rule);

  Forward fp64 = types(kFp64, kFp64);
  fp64.lse.dtype = TANDEM_FP64;
  fp64.sink = shaped(kFp64, {4});
  expect_accepted(fp64);
}

TEST(Validation, PackedOffsets) {  // C90
  expect_all_refused<Varlen>(
      valid_attention<Varlen>(),
      {
          {"cu_seqlens_q is absent", [](Varlen& p) { p.cu_seqlens_q = {}; }, {"required"}},
          {"cu_seqlens_k is absent", [](Varlen& p) { p.cu_seqlens_k = {}; }, {"required"}},
          {"cu_seqlens_q.dtype", [](Varlen& p) { p.cu_seqlens_q.dtype = 8; }, {"unknown (8)", "int32"}},
          {"cu_seqlens_k.dtype", [](Varlen& p) { p.cu_seqlens_k.dtype = TANDEM_FP32; }, {"is fp32", "int32"}},
          {"cu_seqlens_q.ndim", [](Varlen& p) { p.cu_seqlens_q.ndim = 2; }, {"is 2", "(batch + 1)"}},
          {"cu_seqlens_q.shape[0]", [](Varlen& p) { p.cu_seqlens_q.shape[0] = 0; }, {"is 0", "at least 1"}},
          {"cu_seqlens_k.shape[0]", [](Varlen& p) { p.cu_seqlens_k.shape[0] = 2; }, {"is 2", "must be 3"}},
          {"cu_seqlens_q.stride[0]", [](Varlen& p) { p.cu_seqlens_q.stride[0] = -1; }, {"is -1", "negative"}},
          {"max_seqlen_q", [](Varlen& p) { p.max_seqlen_q = -1; }, {"is -1"}},
          {"max_seqlen_k", [](Varlen& p) { p.max_seqlen_k = -1; }, {"is -1"}},
          {"lse.shape[0]", [](Varlen& p) { p.lse = shaped(kFp32, {9, 4}); }, {"is 9", "must be 4", "nheads_q"}},
          {"lse.shape[1]", [](Varlen& p) { p.lse = shaped(kFp32, {4, 10}); }, {"total_q of q.shape[0]"}},
      });
  expect_accepted(changed<Varlen>([](Varlen& p) { p.max_seqlen_q = p.max_seqlen_k = int64_t{1} << 60; }));
}

TEST(Validation, Intervals) {
  for (int64_t batch : {1, 2}) {
    for (int64_t heads : {1, 4}) {
      expect_accepted(changed<Forward>([&](Forward& p) { p.mask.lo = shaped(kInt32, {batch, heads, 5}); }));
      expect_accepted(changed<Varlen>([&](Varlen& p) { p.mask.hi = shaped(kInt32, {heads, 9}); }));
    }
  }
  const auto hi = [](std::initializer_list<int64_t> shape) {
    return [tensor = shaped(kInt32, shape)](auto& p) { p.mask.hi = tensor; };
  };
  expect_all_refused<Forward>(valid_attention<Forward>(),
                              {
                                  {"mask.hi.ndim", hi({4, 5}), {"is 2", "(batch or 1, nheads_q or 1, seqlen_q)"}},
                                  {"mask.hi.shape[0]", hi({3, 4, 5}), {"is 3", "2 or 1", "batch"}},
                                  {"mask.hi.shape[1]", hi({2, 2, 5}), {"is 2", "4 or 1", "nheads_q"}},
                                  {"mask.hi.shape[2]", hi({2, 4, 1}), {"is 1", "must be 5", "seqlen_q"}},
                              });
  expect_all_refused<Varlen>(valid_attention<Varlen>(),
                             {
                                 {"mask.hi.ndim", hi({1, 4, 9}), {"is 3", "(nheads_q or 1, total_q)"}},
                                 {"mask.hi.shape[1]", hi({4, 8}), {"is 8", "must be 9", "total_q"}},
                             });
}

Forward fp8_forward() {
  Forward params = valid_attention<Forward>();
  params.q.dtype = params.k.dtype = params.v.dtype = TANDEM_E4M3;
  return params;
}

TEST(Validation, Fp8Scales) {  // C79, C80
  const auto q_scale = [](std::initializer_list<int64_t> shape) {
    return [tensor = shaped(kFp32, shape)](Forward& p) { p.q_scale = tensor; };
  };
  for (const auto& change : {q_scale({1}), q_scale({2, 4}), q_scale({2, 2}), q_scale({2, 4, 1}), q_scale({2, 2, 1})}) {
    Forward params = fp8_forward();
    change(params);
    params.k_scale = shaped(kFp32, {2, 2});
    params.v_scale = view(nullptr, kFp32, {2, 2}, {0, 0});
    expect_accepted(params);
  }
  expect_all_refused<Forward>(
      fp8_forward(),
      {
          {"q_scale.shape[0]", q_scale({2}), {"is 2", "must be 1"}},
          {"q_scale.shape[1]", q_scale({2, 3}), {"is 3", "must be 4", "nheads_q"}},
          {"q_scale.shape[0]", q_scale({1, 4}), {"is 1", "must be 2", "batch"}},
          {"q_scale.shape[2]", q_scale({2, 4, 2}), {"is 2", "must be 1", "blocks of 128 rows"}},
          {"q_scale.ndim", q_scale({2, 4, 1, 1}), {"is 4", "(batch, nheads_q, number of blocks of 128 rows)"}},
          {"k_scale.shape[1]",
           [](Forward& p) { p.k_scale = shaped(kFp32, {2, 4}); },
           {"is 4", "must be 2", "nheads_k"}},
          {"v_scale.dtype", [](Forward& p) { p.v_scale = shaped(kFp16, {1}); }, {"is fp16", "fp32"}},
          {"k.dtype", [](Forward& p) { p.k.dtype = TANDEM_E5M2; }, {"is e5m2", "q.dtype is e4m3"}},
          {"q.dtype", [](Forward& p) { p.exec.needs_grad = 1; }, {"e4m3", "needs_grad"}, TANDEM_UNSUPPORTED},  // C81
      });
  expect_all_refused<Forward>(
      valid_attention<Forward>(),
      {
          {"q_scale", [](Forward& p) { p.q_scale = shaped(kFp32, {1}); }, {"given", "q.dtype is bf16"}},
          {"k_scale", [](Forward& p) { p.k_scale = shaped(kFp32, {1}); }, {"given", "q.dtype is bf16"}},
          {"v_scale", [](Forward& p) { p.v_scale = shaped(kFp32, {1}); }, {"given", "q.dtype is bf16"}},
      });
  Varlen packed = valid_attention<Varlen>();
  packed.q.dtype = packed.k.dtype = packed.v.dtype = TANDEM_E4M3;
  packed.k_scale = shaped(kFp32, {2, 2, 5});
  expect_accepted(packed);
  packed.k_scale = shaped(kFp32, {2, 2, 0});
  expect_refused<Varlen>(packed, {"k_scale.shape[2]", [](Varlen&) {}, {"is 0", "k.shape[0] is 11"}});
}

TEST(Validation, TransposedV) {
  Forward dense = fp8_forward();  // 7 keys
  dense.v_transposed = 1;
  dense.v = shaped(kE4m3, {2, 2, 32, 16});
  expect_accepted(dense);
  expect_all_refused<Forward>(
      dense, {
                 {"v.shape[3]", [](Forward& p) { p.v.shape[3] = 7; }, {"is 7", "must be 16", "slots of k.shape[1]"}},
                 {"v.shape[1]", [](Forward& p) { p.v.shape[1] = 4; }, {"is 4", "must be 2", "nheads_k"}},
                 {"v.shape[2]", [](Forward& p) { p.v.shape[2] = 257; }, {"is 257", "1 to 256"}},
                 {"v.stride[3]", [](Forward& p) { p.v.stride[3] = 2; }, {"contiguous"}},
                 {"out.shape[3]", [](Forward& p) { p.out.shape[3] = 16; }, {"is 16", "headdim_v of v.shape[2]"}},
                 {"v_transposed", [](Forward& p) { p.v_transposed = 2; }, {"is 2", "0 and 1"}},
                 {"reserved_2", [](Forward& p) { p.reserved_2 = 1; }, {"must be 0"}},
             });
  expect_refused<Forward>(valid_attention<Forward>(),
                          {"v_transposed is 1", [](Forward& p) { p.v_transposed = 1; }, {"q.dtype is bf16", "e4m3"}});
  Varlen packed = valid_attention<Varlen>();  // 11 keys, 2 sequences
  packed.q.dtype = packed.k.dtype = packed.v.dtype = TANDEM_E4M3;
  packed.v_transposed = 1;
  packed.v = shaped(kE4m3, {2, 32, 32});
  expect_accepted(packed);
  expect_refused<Varlen>(packed, {"v.shape[2]", [](Varlen& p) { p.v.shape[2] = 16; }, {"is 16", "must be 32"}});
}

TEST(Validation, Gradients) {
  expect_all_refused<Backward>(
      valid_attention<Backward>(),
      {
          {"lse is absent", [](Backward& p) { p.lse = {}; }, {"required"}},
          {"dout is absent", [](Backward& p) { p.dout = {}; }, {"required"}},
          {"dq is absent", [](Backward& p) { p.dq = {}; }, {"required"}},
          {"dk is absent", [](Backward& p) { p.dk = {}; }, {"required"}},
          {"dv is absent", [](Backward& p) { p.dv = {}; }, {"required"}},
          {"dout.dtype", [](Backward& p) { p.dout.dtype = TANDEM_FP32; }, {"is fp32", "out.dtype is bf16"}},
          {"dq.dtype", [](Backward& p) { p.dq.dtype = TANDEM_FP32; }, {"is fp32", "q.dtype is bf16"}},
          {"dk.dtype", [](Backward& p) { p.dk.dtype = TANDEM_FP16; }, {"is fp16", "k.dtype is bf16"}},
          {"dv.dtype", [](Backward& p) { p.dv.dtype = TANDEM_FP16; }, {"is fp16", "v.dtype is bf16"}},
          {"dout.shape[3]", [](Backward& p) { p.dout = shaped(kBf16, {2, 5, 4, 64}); }, {"is 64", "must be 32"}},
          {"dq.shape[1]", [](Backward& p) { p.dq = shaped(kBf16, {2, 7, 4, 64}); }, {"is 7", "must be 5"}},
          {"dk.shape[2]", [](Backward& p) { p.dk = shaped(kBf16, {2, 7, 4, 64}); }, {"is 4", "must be 2"}},
          {"dv.shape[3]", [](Backward& p) { p.dv = shaped(kBf16, {2, 7, 2, 64}); }, {"is 64", "must be 32"}},
          {"dlse.dtype", [](Backward& p) { p.dlse = shaped(kBf16, {2, 4, 5}); }, {"is bf16", "lse.dtype is fp32"}},
          {"dlse.shape[2]", [](Backward& p) { p.dlse = shaped(kFp32, {2, 4, 4}); }, {"is 4", "must be 5"}},
          {"dsink is absent", [](Backward& p) { p.sink = shaped(kFp32, {4}); }, {"sink is given"}},
          {"dsink is given", [](Backward& p) { p.dsink = shaped(kFp32, {4}); }, {"sink is absent"}},
          {"dsink.dtype",
           [](Backward& p) { p.sink = shaped(kFp32, {4}), p.dsink = shaped(kBf16, {4}); },
           {"is bf16", "sink.dtype is fp32"}},
          {"dsink.shape[0]",
           [](Backward& p) { p.sink = shaped(kFp32, {4}), p.dsink = shaped(kFp32, {1}); },
           {"is 1", "must be 4"}},
          {"q.dtype",
           [](Backward& p) { p.q.dtype = TANDEM_E5M2; },
           {"e5m2", "this is the backward"},
           TANDEM_UNSUPPORTED},
      });
  expect_all_refused<VarlenBackward>(
      valid_attention<VarlenBackward>(),
      {
          {"dq.ndim", [](VarlenBackward& p) { p.dq = shaped(kBf16, {1, 9, 4, 64}); }, {"is 4", "(total_q, nheads_q"}},
          {"dk.shape[0]", [](VarlenBackward& p) { p.dk = shaped(kBf16, {9, 2, 64}); }, {"is 9", "must be 11"}},
          {"dlse.shape[1]", [](VarlenBackward& p) { p.dlse = shaped(kFp32, {4, 11}); }, {"is 11", "must be 9"}},
      });
}

TEST(Validation, Merge) {
  expect_accepted(valid_merge());
  expect_accepted(valid_packed_merge());
  expect_all_refused<Merge>(
      valid_merge(),
      {
          {"out_partial is absent", [](Merge& p) { p.out_partial = {}; }, {"required"}},
          {"lse_partial is absent", [](Merge& p) { p.lse_partial = {}; }, {"required"}},
          {"out is absent", [](Merge& p) { p.out = {}; }, {"required"}},
          {"out_partial.ndim", [](Merge& p) { p.out_partial.ndim = 3; }, {"is 3", "must be 5", "or 4"}},
          {"out_partial.dtype", [](Merge& p) { p.out_partial.dtype = TANDEM_E4M3; }, {"is e4m3"}},
          {"out.dtype", [](Merge& p) { p.out.dtype = TANDEM_E4M3; }, {"is e4m3", "out_partial.dtype is fp32"}},
          {"out.dtype", [](Merge& p) { p.out.dtype = TANDEM_FP64; }, {"is fp64", "out_partial.dtype is fp32"}},
          {"lse_partial.dtype", [](Merge& p) { p.lse_partial.dtype = TANDEM_BF16; }, {"is bf16", "fp32"}},
          {"lse_partial.ndim", [](Merge& p) { p.lse_partial.ndim = 3; }, {"(n, batch, nheads_q, seqlen_q)"}},
          {"lse_partial.shape[0]", [](Merge& p) { p.lse_partial.shape[0] = 2; }, {"is 2", "must be 3"}},
          {"lse_partial.shape[2]", [](Merge& p) { p.lse_partial.shape[2] = 5; }, {"is 5", "must be 4"}},
          {"out.shape[1]", [](Merge& p) { p.out.shape[1] = 6; }, {"is 6", "out_partial.shape[2]"}},
          {"out.shape[3]", [](Merge& p) { p.out.shape[3] = 16; }, {"is 16", "must be 32"}},
          {"out.stride[0]", [](Merge& p) { p.out.stride[0] = 0; }, {"must not overlap"}},
          {"out_partial.stride[4]", [](Merge& p) { p.out_partial.stride[4] = 2; }, {"contiguous"}},
          {"out_partial.shape[4]", [](Merge& p) { p.out_partial.shape[4] = p.out.shape[3] = 0; }, {"1 to 256"}},
          {"lse.shape[2]", [](Merge& p) { p.lse.shape[2] = 4; }, {"is 4", "must be 5"}},
          {"sink.shape[0]", [](Merge& p) { p.sink = shaped(kFp32, {1}); }, {"is 1", "must be 4"}},
          {"exec.stream", [](Merge& p) { p.exec.stream = &p; }, {"NULL"}},
          {"struct_size", [](Merge& p) { p.struct_size = 8; }, {"is 8"}},
      });
  expect_all_refused<Merge>(valid_packed_merge(),
                            {
                                {"out.ndim", [](Merge& p) { p.out.ndim = 4; }, {"(total_q, nheads_q, headdim_v)"}},
                                {"lse.shape[0]", [](Merge& p) { p.lse.shape[0] = 9; }, {"is 9", "must be 4"}},
                                {"lse_partial.shape[1]", [](Merge& p) { p.lse_partial.shape[1] = 9; }, {"must be 4"}},
                            });
  Merge none = valid_merge();  // no parts: all rows are empty
  none.out_partial.shape[0] = none.lse_partial.shape[0] = 0;
  expect_accepted(none);
}

}  // namespace
}  // namespace tandem
