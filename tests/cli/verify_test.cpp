#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "verify_compare.h"

namespace tandem::cli {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Two keys, one query row: everything has a closed form.
VerifyCase two_keys() {
  VerifyCase c;
  c.dtype = c.out_dtype = TANDEM_FP64;
  c.headdim = c.headdim_v = 1;
  c.seqlens_q = {1};
  c.seqlens_k = {2};
  c.dense_seqlen_q = 1;
  c.dense_seqlen_k = 2;
  return c;
}

CaseInputs two_key_inputs(const VerifyCase& c) {
  CaseInputs inputs = make_inputs(c);
  inputs.q.set(0, 1);
  inputs.k.set(0, 0);
  inputs.k.set(1, std::log(3.0));  // P = 1/4, 3/4
  inputs.v.set(0, 4);
  inputs.v.set(1, 8);
  inputs.dout.set(0, 2);
  return inputs;
}

TEST(PlainAttention, ForwardAndBackwardOfTwoKeys) {
  const VerifyCase c = two_keys();
  const AttentionValues result = plain_attention(c, two_key_inputs(c)).result;
  EXPECT_NEAR(result.values[kResultOut][0], 7, 1e-14);
  EXPECT_NEAR(result.values[kResultLse][0], std::log(4.0), 1e-15);
  // dP = 8, 16; delta = 14; dS = -1.5, 1.5.
  EXPECT_NEAR(result.values[kResultDq][0], 1.5 * std::log(3.0), 1e-14);
  EXPECT_NEAR(result.values[kResultDk][0], -1.5, 1e-14);
  EXPECT_NEAR(result.values[kResultDk][1], 1.5, 1e-14);
  EXPECT_NEAR(result.values[kResultDv][0], 0.5, 1e-15);
  EXPECT_NEAR(result.values[kResultDv][1], 1.5, 1e-15);
}

TEST(PlainAttention, SinkTakesItsShare) {
  VerifyCase c = two_keys();
  c.sink = true;
  CaseInputs inputs = two_key_inputs(c);
  inputs.sink.set(0, std::log(4.0));  // P = 1/8, 3/8, sink 1/2; O = 3.5; delta = 7
  const AttentionValues result = plain_attention(c, inputs).result;
  EXPECT_NEAR(result.values[kResultOut][0], 3.5, 1e-14);
  EXPECT_NEAR(result.values[kResultLse][0], std::log(8.0), 1e-15);
  EXPECT_NEAR(result.values[kResultDsink][0], -3.5, 1e-14);
}

TEST(PlainAttention, RowWithoutKeysIsEmpty) {
  VerifyCase c = two_keys();
  c.has_window = true;
  c.top_left = true;
  c.window_left = 5;
  c.window_right = 0;
  c.hi = true;
  CaseInputs inputs = two_key_inputs(c);
  inputs.hi.set(0, 0);
  const AttentionValues result = plain_attention(c, inputs).result;
  EXPECT_EQ(result.values[kResultOut][0], 0);
  EXPECT_EQ(result.values[kResultLse][0], -kInfinity);
  EXPECT_EQ(result.values[kResultDq][0], 0);
}

TEST(PlainAttention, CausalIsBottomRightUnlessTopLeft) {
  VerifyCase c = two_keys();
  c.causal = true;
  EXPECT_NEAR(plain_attention(c, two_key_inputs(c)).result.values[kResultOut][0], 7, 1e-14);
  c.top_left = true;
  EXPECT_EQ(plain_attention(c, two_key_inputs(c)).result.values[kResultOut][0], 4);
}

TEST(VerifyCases, AreReproducibleAndCoverEveryFeature) {
  std::set<std::string> seen;
  for (int64_t index = 0; index < 300; ++index) {
    const VerifyCase c = draw_case(7, index);
    EXPECT_EQ(describe(c), describe(draw_case(7, index)));
    seen.insert(tandem_dtype_name(c.dtype));
    seen.insert(c.packed ? "packed" : "dense");
    if (c.batch() == 0) seen.insert("batch 0");
    if (c.rows_q() == 0) seen.insert("no rows");
    if (c.rows_k() == 0) seen.insert("no keys");
    if (!c.used_q.empty()) seen.insert("seqused_q");
    if (!c.used_k.empty()) seen.insert("seqused_k");
    if (c.headdim % 2 == 1) seen.insert("odd headdim");
    if (c.headdim != c.headdim_v) seen.insert("headdim_v");
    if (c.dlse && c.backward) seen.insert("dlse");
  }
  for (const char* feature : {"fp64", "fp32", "fp16", "bf16", "e4m3", "e5m2", "packed", "dense", "batch 0", "no rows",
                              "no keys", "seqused_q", "seqused_k", "odd headdim", "headdim_v", "dlse"}) {
    EXPECT_EQ(seen.count(feature), 1u) << feature;
  }
}

TEST(VerifyCases, AdaptToGpus) {
  std::set<std::string> types;
  for (int64_t index = 0; index < 300; ++index) {
    VerifyCase c = draw_case(7, index);
    adapt_to_gpu(c);
    EXPECT_FALSE(c.backward);
    EXPECT_EQ(c.headdim % 8, 0);
    EXPECT_EQ(c.headdim_v % 8, 0);
    types.insert(std::string(tandem_dtype_name(c.dtype)) + " to " + tandem_dtype_name(c.out_dtype));
  }
  for (const char* type : {"bf16 to bf16", "fp16 to fp16", "bf16 to fp32", "fp16 to fp32"}) {
    EXPECT_EQ(types.count(type), 1u) << type;
  }
  EXPECT_EQ(types.count("fp32 to fp32"), 0u);
}

TEST(VerifyCases, ReferencePassesItsOwnCases) {
  for (int64_t index = 0; index < verify_group_count(); ++index) {
    const VerifyCase c = draw_case(11, index);
    const CaseOutcome outcome = verify_case(c, TANDEM_BACKEND_REFERENCE);
    EXPECT_FALSE(outcome.failed) << describe(c) << ": " << outcome.detail
                                 << "\nreproduce: tandem verify --backend reference --seed 11 --case " << index;
    EXPECT_TRUE(c.fp8() || !outcome.refused) << outcome.detail;
  }
}

TEST(AllowedError, IsContract16) {
  EXPECT_EQ(allowed_error(0.5, TANDEM_BF16, 1.0, 0), 1 + std::ldexp(1.0, -6));
  EXPECT_EQ(allowed_error(0, TANDEM_FP32, 0.25, 0), std::ldexp(1.0, -24));
}

}  // namespace
}  // namespace tandem::cli
