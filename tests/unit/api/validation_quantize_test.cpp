// Rules of tandem_quantize_fp8.
#include <gtest/gtest.h>

#include "params.h"
#include "rules.h"

namespace tandem {
namespace {

using Quantize = QuantizeFp8Params;

constexpr auto kFp16 = ElementType::kFp16;
constexpr auto kE4m3 = ElementType::kE4m3;

// batch 2, seqlen 150, heads 3, headdim 64.
Quantize dense() {
  Quantize params;
  params.x = shaped(kBf16, {2, 150, 3, 64});
  params.out = shaped(kE4m3, {2, 150, 3, 64});
  params.scale = shaped(kFp32, {2, 3, 2});
  return params;
}

Quantize packed() {
  Quantize params;
  params.x = shaped(kBf16, {37, 3, 64});
  params.out = shaped(kE4m3, {37, 3, 64});
  params.scale = shaped(kFp32, {4, 3, 1});
  params.cu_seqlens = shaped(kInt32, {5});
  return params;
}

Quantize with_rotary(Quantize params) {
  params.rotary_cos = params.rotary_sin = shaped(kFp32, {200, 16});
  params.rotary_offset = shaped(kInt32, {2});
  return params;
}

void expect_all_refused(const Quantize& valid, const std::vector<Rule<Quantize>>& rules) {
  expect_accepted(valid);
  for (const Rule<Quantize>& rule : rules) expect_refused(valid, rule);
}

TEST(ValidationQuantize, Accepts) {
  for (Quantize params : {dense(), packed()}) {
    for (const ElementType type : {kBf16, kFp16, kFp32}) {
      params.x.dtype = static_cast<int32_t>(type);
      params.scale = shaped(kFp32, {1});
      expect_accepted(params);
    }
  }
  Quantize per_head = dense();
  per_head.scale = shaped(kFp32, {2, 3});
  expect_accepted(per_head);
  Quantize any_blocks = packed();
  any_blocks.scale = shaped(kFp32, {4, 3, 9});
  expect_accepted(any_blocks);
  Quantize transposed = dense();
  transposed.transposed = 1;
  transposed.out = shaped(kE4m3, {2, 3, 64, 160});
  expect_accepted(transposed);
  transposed = packed();
  transposed.transposed = 1;
  transposed.out = shaped(kE4m3, {3, 64, 96});  // 16 * (37 / 16 + 4)
  expect_accepted(transposed);
  Quantize empty = dense();
  empty.x = empty.out = shaped(kBf16, {2, 0, 3, 64});
  empty.out.dtype = TANDEM_E4M3;
  empty.scale = shaped(kFp32, {2, 3, 0});
  expect_accepted(empty);
  for (const int64_t headdim : {16, 32, 64, 96, 128, 192, 256}) {
    Quantize rotated = dense();
    rotated.x = shaped(kBf16, {2, 150, 3, headdim});
    rotated.out = shaped(kE4m3, {2, 150, 3, headdim});
    rotated.rotate = 1;
    rotated.seed = ~uint64_t{0};
    expect_accepted(rotated);
  }
}

TEST(ValidationQuantize, Tensors) {
  expect_all_refused(
      dense(),
      {
          {"x is absent", [](Quantize& p) { p.x = {}; }, {"required"}},
          {"out is absent", [](Quantize& p) { p.out = {}; }, {"required"}},
          {"scale is absent", [](Quantize& p) { p.scale = {}; }, {"required"}},
          {"x.ndim", [](Quantize& p) { p.x.ndim = 2; }, {"is 2", "(batch, seqlen, nheads, headdim)", "(total, nheads"}},
          {"x.dtype", [](Quantize& p) { p.x.dtype = TANDEM_FP64; }, {"is fp64", "fp32, fp16 and bf16"}},
          {"x.stride[3]", [](Quantize& p) { p.x.stride[3] = 2; }, {"contiguous"}},
          {"x.shape[3]", [](Quantize& p) { p.x.shape[3] = 257; }, {"is 257", "1 to 256"}},
          {"out.dtype", [](Quantize& p) { p.out.dtype = TANDEM_E5M2; }, {"is e5m2", "e4m3"}},
          {"out.shape[1]",
           [](Quantize& p) { p.out.shape[1] = 151; },
           {"is 151", "must be 150", "seqlen of x.shape[1]"}},
          {"out.stride[0]", [](Quantize& p) { p.out.stride[0] = 0; }, {"must not overlap"}},
          {"scale.dtype", [](Quantize& p) { p.scale.dtype = TANDEM_BF16; }, {"is bf16", "fp32"}},
          {"scale.shape[2]",
           [](Quantize& p) { p.scale = shaped(kFp32, {2, 3, 1}); },
           {"is 1", "must be 2", "128 rows"}},
          {"scale.shape[1]", [](Quantize& p) { p.scale = shaped(kFp32, {2, 2}); }, {"is 2", "must be 3", "nheads"}},
          {"scale.shape[0]", [](Quantize& p) { p.scale = shaped(kFp32, {3}); }, {"is 3", "must be 1"}},
          {"scale.stride[0]", [](Quantize& p) { p.scale.stride[0] = 0; }, {"must not overlap"}},
          {"cu_seqlens is given", [](Quantize& p) { p.cu_seqlens = shaped(kInt32, {3}); }, {"x.ndim is 4"}},
          {"seqused.shape[0]", [](Quantize& p) { p.seqused = shaped(kInt32, {3}); }, {"is 3", "must be 2"}},
          {"exec.needs_grad", [](Quantize& p) { p.exec.needs_grad = 1; }, {"no gradient"}, TANDEM_UNSUPPORTED},
          {"rotate", [](Quantize& p) { p.rotate = 2; }, {"is 2", "0 and 1"}},
          {"transposed", [](Quantize& p) { p.transposed = -1; }, {"is -1", "0 and 1"}},
          {"reserved", [](Quantize& p) { p.reserved = 1; }, {"must be 0"}},
          {"struct_size", [](Quantize& p) { p.struct_size = 8; }, {"is 8"}},
      });
  expect_all_refused(
      packed(), {
                    {"cu_seqlens is absent", [](Quantize& p) { p.cu_seqlens = {}; }, {"required", "x.ndim is 3"}},
                    {"cu_seqlens.dtype", [](Quantize& p) { p.cu_seqlens.dtype = TANDEM_FP32; }, {"is fp32", "int32"}},
                    {"cu_seqlens.shape[0]", [](Quantize& p) { p.cu_seqlens.shape[0] = 0; }, {"at least 1"}},
                    {"scale.shape[0]", [](Quantize& p) { p.scale.shape[0] = 5; }, {"is 5", "must be 4", "cu_seqlens"}},
                    {"scale.shape[2]", [](Quantize& p) { p.scale.shape[2] = 0; }, {"is 0", "x.shape[0] is 37"}},
                });
}

TEST(ValidationQuantize, Transposed) {
  Quantize valid = dense();
  valid.transposed = 1;
  valid.out = shaped(kE4m3, {2, 3, 64, 160});
  expect_all_refused(
      valid, {
                 {"out.shape[3]", [](Quantize& p) { p.out.shape[3] = 150; }, {"is 150", "must be 160", "slots"}},
                 {"out.stride[3]", [](Quantize& p) { p.out.stride[3] = 2; }, {"contiguous"}},
                 {"transposed is 1", [](Quantize& p) { p.rotate = 1; }, {"rotate is 1"}},
                 {"transposed is 1", [](Quantize& p) { p = with_rotary(p); }, {"rotary_cos is given"}},
             });
}

TEST(ValidationQuantize, RotationAndRotaryEmbedding) {
  Quantize rotated = dense();
  rotated.rotate = 1;
  expect_all_refused(rotated, {{"rotate is 1",
                                [](Quantize& p) {
                                  p.x = shaped(kBf16, {2, 150, 3, 80});
                                  p.out = shaped(kE4m3, {2, 150, 3, 80});
                                },
                                {"x.shape[3] is 80", "pad q and k with zeros"},
                                TANDEM_UNSUPPORTED}});
  expect_all_refused(
      with_rotary(dense()),
      {
          {"rotary_sin is absent", [](Quantize& p) { p.rotary_sin = {}; }, {"rotary_cos is given"}},
          {"rotary_cos is absent", [](Quantize& p) { p.rotary_cos = {}; }, {"rotary_sin is given"}},
          {"rotary_offset is given", [](Quantize& p) { p.rotary_sin = p.rotary_cos = {}; }, {"rotary_cos is absent"}},
          {"rotary_cos.dtype", [](Quantize& p) { p.rotary_cos.dtype = TANDEM_FP16; }, {"is fp16", "fp32 and bf16"}},
          {"rotary_sin.dtype", [](Quantize& p) { p.rotary_sin.dtype = TANDEM_BF16; }, {"rotary_cos.dtype is fp32"}},
          {"rotary_sin.shape[0]", [](Quantize& p) { p.rotary_sin.shape[0] = 9; }, {"is 9", "must be 200"}},
          {"rotary_cos.shape[1]",
           [](Quantize& p) { p.rotary_cos = p.rotary_sin = shaped(kFp32, {200, 33}); },
           {"is 33", "1 to 32"}},
          {"rotary_cos.shape[0]",
           [](Quantize& p) { p.rotary_cos = p.rotary_sin = shaped(kFp32, {0, 16}); },
           {"is 0", "x.shape[1] is 150"}},
          {"rotary_offset.shape[0]", [](Quantize& p) { p.rotary_offset = shaped(kInt32, {1}); }, {"must be 2"}},
          {"rotary_interleaved", [](Quantize& p) { p.rotary_interleaved = 3; }, {"is 3", "0 and 1"}},
      });
  Quantize interleaved = dense();
  interleaved.rotary_interleaved = 1;
  expect_refused<Quantize>(interleaved, {"rotary_interleaved is 1", [](Quantize&) {}, {"rotary_cos is absent"}});
}

TEST(ValidationQuantize, MemoryOfTheRun) {
  std::vector<float> x(2 * 64);
  std::vector<uint8_t> out(2 * 64);
  float scale = 0;
  Quantize params;
  params.x = view(x.data(), {1, 2, 1, 64});
  params.out = view(out.data(), kE4m3, {1, 2, 1, 64});
  params.scale = view(&scale, {1});
  HostWorkspace workspace;
  run(params, workspace);
  params.out = view(x.data(), kE4m3, {1, 2, 1, 64});
  EXPECT_THROW(run(params, workspace), Error);
  expect_sentence(tandem_last_error(), "out.data", {"equal to x.data", "memory of its own"});
  params.out = view(nullptr, kE4m3, {1, 2, 1, 64});
  EXPECT_THROW(run(params, workspace), Error);
  expect_sentence(tandem_last_error(), "out.data", {"NULL"});
}

}  // namespace
}  // namespace tandem
