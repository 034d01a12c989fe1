// The problem that backends see, for arguments that are valid.
#include "api/parse.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "params.h"

namespace tandem {
namespace {

template <class Params>
AttentionProblem parsed(const Params& params) {
  AttentionProblem problem;
  const Status status = parse(gather(static_cast<const typename Params::Base&>(params)), &problem);
  EXPECT_TRUE(status.is_ok()) << status.message();
  return problem;
}

MergeProblem parsed(const MergeParams& params) {
  MergeProblem problem;
  const Status status = parse(gather(static_cast<const tandem_merge_params&>(params)), &problem);
  EXPECT_TRUE(status.is_ok()) << status.message();
  return problem;
}

// A parameter struct to which a later version has added a field.
struct Grown {
  uint64_t struct_size;
  int64_t old_option;
  int64_t new_option;
};

}  // namespace

template <>
inline constexpr uint64_t kFirstBytes<Grown> = 16;

namespace {

TEST(ReadStruct, CallersWithTheFirstSizeAskForZeroInWhatCameLater) {
  const Grown asked{16, 5, 7};  // to this caller the last bytes are something else
  Grown copy;
  ASSERT_TRUE(read_struct(&asked, &copy).is_ok());
  EXPECT_EQ(copy.old_option, 5);
  EXPECT_EQ(copy.new_option, 0);
  const Grown now{sizeof(Grown), 5, 7};
  ASSERT_TRUE(read_struct(&now, &copy).is_ok());
  EXPECT_EQ(copy.new_option, 7);
  const Grown truncated{15, 5, 7};
  EXPECT_FALSE(read_struct(&truncated, &copy).is_ok());
}

template <class Params>
void expect_first_size_works(uint64_t first_bytes) {
  Params params = valid_attention<Params>();
  params.struct_size = first_bytes;
  EXPECT_EQ(detail::calls_of(params).check(&params), TANDEM_OK) << tandem_last_error();
}

// The sizes that version 0.1.0 published.
TEST(ReadStruct, TheFirstSizesOfTheAbiWork) {
  expect_first_size_works<ForwardParams>(1584);
  expect_first_size_works<VarlenForwardParams>(1824);
  expect_first_size_works<BackwardParams>(1920);
  expect_first_size_works<VarlenBackwardParams>(2160);
  MergeParams merge = valid_merge();
  merge.struct_size = 624;
  EXPECT_EQ(detail::calls_of(merge).check(&merge), TANDEM_OK) << tandem_last_error();
}

TEST(Parse, DenseSizesAndStrides) {
  ForwardParams params = valid_attention<ForwardParams>();
  params.lse = view(nullptr, kFp32, {2, 4, 5}, {100, 1, 4});
  params.mask.lo = shaped(kInt32, {1, 4, 5});
  const AttentionProblem problem = parsed(params);
  EXPECT_FALSE(problem.packed);
  EXPECT_FALSE(problem.backward);
  EXPECT_EQ(problem.batch, 2);
  EXPECT_EQ(problem.seqlen_q, 5);
  EXPECT_EQ(problem.total_q, 5);
  EXPECT_EQ(problem.seqlen_k, 7);
  EXPECT_EQ(problem.nheads_q, 4);
  EXPECT_EQ(problem.nheads_k, 2);
  EXPECT_EQ(problem.headdim, 64);
  EXPECT_EQ(problem.headdim_v, 32);
  EXPECT_EQ(problem.qheads_per_khead(), 2);
  EXPECT_EQ(problem.dtype, DType::kBf16);
  EXPECT_EQ(problem.softmax_scale, 0.125);
  EXPECT_EQ(problem.q.batch_stride, 5 * 4 * 64);
  EXPECT_EQ(problem.q.row_stride, 4 * 64);
  EXPECT_EQ(problem.q.head_stride, 64);
  EXPECT_EQ(problem.lse.batch_stride, 100);
  EXPECT_EQ(problem.lse.head_stride, 1);
  EXPECT_EQ(problem.lse.row_stride, 4);
  EXPECT_EQ(problem.lo.batch_stride, 0) << "the axis of size 1 is broadcast";
  EXPECT_EQ(problem.lo.head_stride, 5);
  EXPECT_FALSE(problem.hi.present());
  EXPECT_FALSE(problem.sink.present());
}

TEST(Parse, PackedSizesAndStrides) {
  VarlenBackwardParams params = valid_attention<VarlenBackwardParams>();
  params.max_seqlen_q = 1000;
  params.max_seqlen_k = 3;
  const AttentionProblem problem = parsed(params);
  EXPECT_TRUE(problem.packed);
  EXPECT_TRUE(problem.backward);
  EXPECT_EQ(problem.batch, 2);
  EXPECT_EQ(problem.total_q, 9);
  EXPECT_EQ(problem.total_k, 11);
  EXPECT_EQ(problem.seqlen_q, 0);
  EXPECT_EQ(problem.max_seqlen_q, 9) << "no sequence is longer than the buffer";
  EXPECT_EQ(problem.max_seqlen_k, 3);
  EXPECT_EQ(problem.dq.batch_stride, 0);
  EXPECT_EQ(problem.dq.row_stride, 4 * 64);
  EXPECT_EQ(problem.dv.head_stride, 32);
  EXPECT_EQ(problem.lse.head_stride, 9);
  EXPECT_EQ(problem.lse.row_stride, 1);
  EXPECT_EQ(problem.cu_seqlens_q.stride, 1);
}

TEST(Parse, StridesThatNobodyMayUseAreZero) {  // C49
  ForwardParams params = valid_attention<ForwardParams>();
  params.k = params.v = view(nullptr, kBf16, {2, 7, 1, 64}, {448, 64, -5, 1});
  params.out = shaped(kBf16, {2, 5, 4, 64});
  EXPECT_EQ(parsed(params).k.head_stride, 0);

  params.k = params.v = view(nullptr, kBf16, {2, 0, 2, 64}, {int64_t{1} << 62, int64_t{1} << 62, int64_t{1} << 62, 9});
  const AttentionProblem empty = parsed(params);
  EXPECT_EQ(empty.k.batch_stride, 0) << "a tensor without elements";
  EXPECT_EQ(empty.k.head_stride, 0);
}

TEST(Parse, ScaleAndMask) {
  ForwardParams params = valid_attention<ForwardParams>();
  params.has_softmax_scale = 1;
  params.softmax_scale = 0;
  params.softcap = 30;
  params.mask.causal = 1;
  params.mask.window_left = -1;
  AttentionProblem problem = parsed(params);
  EXPECT_EQ(problem.softmax_scale, 0);
  EXPECT_EQ(problem.softcap, 30);
  EXPECT_TRUE(problem.mask.causal);
  EXPECT_EQ(problem.mask.window_left, -1);
  EXPECT_EQ(problem.mask.window_right, -1) << "no window";

  params.mask.has_window = 1;
  params.mask.window_left = std::numeric_limits<int64_t>::max();
  params.mask.attention_chunk = std::numeric_limits<int64_t>::max();
  problem = parsed(params);
  EXPECT_GE(problem.mask.window_left, int64_t{1} << 32);
  EXPECT_LE(problem.mask.window_left, int64_t{1} << 40) << "so that sums with positions cannot overflow";
  EXPECT_EQ(problem.mask.window_right, 0);
  EXPECT_LE(problem.mask.attention_chunk, int64_t{1} << 40);
}

TEST(Parse, DefaultScaleIsOfTheCallersHeadDim) {  // C83
  ForwardParams params = valid_attention<ForwardParams>();
  params.q = shaped(kBf16, {2, 5, 4, 59});
  params.k = shaped(kBf16, {2, 7, 2, 59});
  EXPECT_EQ(parsed(params).softmax_scale, 1 / std::sqrt(59.0));
}

TEST(Parse, Scales) {
  ForwardParams params = valid_attention<ForwardParams>();
  params.q.dtype = params.k.dtype = params.v.dtype = TANDEM_E4M3;
  params.q_scale = shaped(kFp32, {2, 2});     // per key head
  params.k_scale = shaped(kFp32, {2, 2, 1});  // per block
  params.v_scale = shaped(kFp32, {1});
  const AttentionProblem problem = parsed(params);
  EXPECT_EQ(problem.q_scale.heads_per_scale, 2);
  EXPECT_EQ(problem.q_scale.batch_stride, 2);
  EXPECT_EQ(problem.q_scale.head_stride, 1);
  EXPECT_EQ(problem.k_scale.heads_per_scale, 1);
  EXPECT_EQ(problem.k_scale.blocks, 1);
  EXPECT_EQ(problem.v_scale.batch_stride, 0);
  EXPECT_TRUE(problem.v_scale.present());
}

TEST(Parse, Merge) {
  const MergeProblem dense = parsed(valid_merge());
  EXPECT_EQ(dense.parts, 3);
  EXPECT_EQ(dense.batch, 2);
  EXPECT_EQ(dense.rows, 5);
  EXPECT_EQ(dense.nheads, 4);
  EXPECT_EQ(dense.headdim_v, 32);
  EXPECT_EQ(dense.out_part_stride, 2 * 5 * 4 * 32);
  EXPECT_EQ(dense.out_partial.batch_stride, 5 * 4 * 32);
  EXPECT_EQ(dense.lse_part_stride, 2 * 4 * 5);
  EXPECT_EQ(dense.lse_partial.head_stride, 5);
  EXPECT_EQ(dense.lse.batch_stride, 20);

  const MergeProblem packed = parsed(valid_packed_merge());
  EXPECT_EQ(packed.batch, 1);
  EXPECT_EQ(packed.rows, 9);
  EXPECT_EQ(packed.out_part_stride, 9 * 4 * 32);
  EXPECT_EQ(packed.out_partial.batch_stride, 0);
  EXPECT_EQ(packed.out_partial.row_stride, 4 * 32);
  EXPECT_EQ(packed.lse_partial.head_stride, 9);
}

}  // namespace
}  // namespace tandem
