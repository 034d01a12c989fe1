#include "core/sequence.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace tandem {
namespace {

Vector vector_of(std::vector<int32_t>& values) {
  return {values.data(), DType::kInt32, 1};
}

std::vector<SequenceSpan> spans_of(const AttentionProblem& problem) {
  std::vector<SequenceSpan> spans(static_cast<size_t>(problem.batch));
  read_sequence_spans(problem, spans.data());
  return spans;
}

void expect_span(const SequenceSpan& span, int64_t q_begin, int64_t q_len, int64_t k_begin, int64_t k_len) {
  EXPECT_EQ(span.q_begin, q_begin);
  EXPECT_EQ(span.q_len, q_len);
  EXPECT_EQ(span.k_begin, k_begin);
  EXPECT_EQ(span.k_len, k_len);
}

AttentionProblem packed_problem(std::vector<int32_t>& offsets_q, std::vector<int32_t>& offsets_k, int64_t total_q,
                                int64_t total_k) {
  AttentionProblem problem;
  problem.packed = true;
  problem.batch = static_cast<int64_t>(offsets_q.size()) - 1;
  problem.total_q = total_q;
  problem.total_k = total_k;
  problem.cu_seqlens_q = vector_of(offsets_q);
  problem.cu_seqlens_k = vector_of(offsets_k);
  return problem;
}

TEST(SequenceSpans, DenseIsWholeUnlessUsedLengthsSayLess) {
  AttentionProblem problem;
  problem.batch = 4;
  problem.seqlen_q = 5;
  problem.seqlen_k = 9;
  expect_span(spans_of(problem)[3], 0, 5, 0, 9);

  std::vector<int32_t> used = {0, 9, -3, 100};
  problem.seqused_k = vector_of(used);
  const auto spans = spans_of(problem);
  expect_span(spans[0], 0, 5, 0, 0);
  expect_span(spans[1], 0, 5, 0, 9);
  expect_span(spans[2], 0, 5, 0, 0);
  expect_span(spans[3], 0, 5, 0, 9);
}

TEST(SequenceSpans, PackedWithGapsAndUsedLengths) {  // C20
  std::vector<int32_t> offsets = {0, 3, 7, 9};
  std::vector<int32_t> used = {2, 3, 1};
  AttentionProblem problem = packed_problem(offsets, offsets, 12, 12);
  problem.seqused_q = problem.seqused_k = vector_of(used);
  const auto spans = spans_of(problem);
  expect_span(spans[0], 0, 2, 0, 2);
  expect_span(spans[1], 3, 3, 3, 3);
  expect_span(spans[2], 7, 1, 7, 1);
}

TEST(SequenceSpans, StridedOffsetsAndNoSequences) {
  std::vector<int32_t> offsets = {0, -1, 4, -1, 6};
  AttentionProblem problem = packed_problem(offsets, offsets, 6, 6);
  problem.batch = 2;
  problem.cu_seqlens_q.stride = problem.cu_seqlens_k.stride = 2;
  const auto spans = spans_of(problem);
  expect_span(spans[0], 0, 4, 0, 4);
  expect_span(spans[1], 4, 2, 4, 2);
  problem.batch = 0;
  EXPECT_TRUE(spans_of(problem).empty());
}

TEST(SequenceSpans, HostileOffsetsAreClamped) {  // C90: starts at 5, decreases, ends past the total, negative
  std::vector<int32_t> offsets_q = {5, 3, -8, 768, 4};
  std::vector<int32_t> offsets_k = {-5, 2, 1, 6, std::numeric_limits<int32_t>::max()};
  const auto spans = spans_of(packed_problem(offsets_q, offsets_k, 256, 10));
  expect_span(spans[0], 5, 0, 0, 2);
  expect_span(spans[1], 5, 0, 2, 0);
  expect_span(spans[2], 5, 251, 2, 4);
  expect_span(spans[3], 256, 0, 6, 4);
}

TEST(SequenceSpans, NoSpanLeavesTheBufferOrMeetsAnother) {
  std::mt19937 random(20240501);
  std::uniform_int_distribution<int32_t> near(-3, 12);
  std::uniform_int_distribution<int32_t> any(std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max());
  for (int round = 0; round < 2000; ++round) {
    std::vector<int32_t> offsets(6);
    std::vector<int32_t> used(5);
    for (int32_t& value : offsets) value = round % 2 ? near(random) : any(random);
    for (int32_t& value : used) value = round % 3 ? near(random) : any(random);
    AttentionProblem problem = packed_problem(offsets, offsets, 9, 9);
    problem.seqused_q = vector_of(used);
    int64_t end = 0;
    for (const SequenceSpan& span : spans_of(problem)) {
      ASSERT_GE(span.q_begin, end) << "round " << round;
      ASSERT_GE(span.q_len, 0) << "round " << round;
      end = span.q_begin + span.q_len;
      ASSERT_LE(end, 9) << "round " << round;
    }
  }
}

}  // namespace
}  // namespace tandem
