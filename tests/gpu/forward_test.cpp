// The forward kernel on the GPU, against double attention from the definition (oracle.cu).

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <random>
#include <vector>

#include "core/dtype.h"
#include "cuda_check.h"
#include "forward_case.h"
#include "sm90/forward/launch.h"
#include "sm90/forward/plan.h"

namespace tandem::gpu_test {
namespace {

ForwardData::Outputs run(const ForwardData& data) {
  data.poison_outputs();
  const Status status = sm90::launch_forward(data.problem());
  EXPECT_TRUE(status.is_ok()) << status.message();
  TANDEM_CHECK_CUDA(cudaDeviceSynchronize());
  return data.read();
}

void expect_right(const ForwardCase& test) {
  const ForwardData data(test);
  const Status status = sm90::forward_supports(data.problem());
  ASSERT_TRUE(status.is_ok()) << status.message() << "; " << test.text();
  EXPECT_EQ(data.fault(run(data)), "") << test.text();
}

MaskSpec causal() {
  MaskSpec mask;
  mask.causal = true;
  return mask;
}
MaskSpec window(int64_t left, int64_t right) {
  MaskSpec mask;
  mask.window_left = left;
  mask.window_right = right;
  return mask;
}
MaskSpec chunks(int64_t length, bool is_causal) {
  MaskSpec mask;
  mask.attention_chunk = length;
  mask.causal = is_causal;
  return mask;
}

// Tile edges in both axes, with and without the diagonal; more rows than keys gives rows that see nothing.
TEST(Forward, TileEdges) {
  TANDEM_NEEDS_GPU();
  uint64_t seed = 1;
  for (const int64_t seqlen_q : {1, 63, 64, 65, 127, 128, 129, 257}) {
    for (const int64_t seqlen_k : {1, 64, 127, 128, 129, 255, 256, 257, 640}) {
      for (const bool is_causal : {false, true}) {
        ForwardCase test;
        test.seqlen_q = seqlen_q;
        test.seqlen_k = seqlen_k;
        test.mask.causal = is_causal;
        test.seed = ++seed;
        expect_right(test);
      }
    }
  }
}

TEST(Forward, MasksOfEveryKind) {
  TANDEM_NEEDS_GPU();
  MaskSpec top_left = causal();
  top_left.top_left = true;
  for (const MaskSpec& mask : {causal(), top_left, window(100, 0), window(0, 0), window(-1, 37), window(300, 200),
                               chunks(96, false), chunks(200, true), window(1000, 5)}) {
    for (const auto& [seqlen_q, seqlen_k] : {std::pair<int, int>{600, 600}, {300, 777}, {777, 300}}) {
      expect_right({1, 2, 1, seqlen_q, seqlen_k, mask, 7});
    }
  }
}

TEST(Forward, NoKeysAtAll) {
  TANDEM_NEEDS_GPU();
  expect_right({2, 3, 1, 200, 0, {}, 3});
}

TEST(Forward, NothingToDo) {
  TANDEM_NEEDS_GPU();
  expect_right({2, 3, 1, 0, 100, {}, 3});
  expect_right({0, 3, 1, 100, 100, {}, 3});
}

TEST(Forward, GroupedHeadsAndBatches) {
  TANDEM_NEEDS_GPU();
  for (const bool is_causal : {false, true}) {
    expect_right({3, 8, 2, 333, 333, is_causal ? causal() : MaskSpec{}, 11});
    expect_right({2, 6, 1, 130, 513, is_causal ? causal() : MaskSpec{}, 12});
  }
}

TEST(Forward, SlicesOfOneBuffer) {
  TANDEM_NEEDS_GPU();
  expect_right({2, 4, 4, 300, 300, causal(), 5, 1, true});
}

// More than two work tiles for each of 132 SMs, more key blocks than twice the stages.
TEST(Forward, ManyTiles) {
  TANDEM_NEEDS_GPU();
  expect_right({4, 40, 8, 384, 384, causal(), 21});
  expect_right({4, 40, 8, 384, 384, {}, 22});
  expect_right({1, 2, 1, 2048, 2048, causal(), 23});
  expect_right({1, 1, 1, 1024, 4096, {}, 24});
}

TEST(Forward, PeakedRows) {
  TANDEM_NEEDS_GPU();
  for (const float q_scale : {8.0f, 40.0f}) {
    expect_right({1, 2, 2, 512, 512, causal(), 31, q_scale});
    expect_right({1, 2, 2, 512, 1024, {}, 32, q_scale});
  }
}

// Seeded configurations; TANDEM_TEST_SEED and TANDEM_TEST_COUNT change which and how many.
TEST(Forward, RandomProblems) {
  TANDEM_NEEDS_GPU();
  const char* seed_text = std::getenv("TANDEM_TEST_SEED");
  const char* count_text = std::getenv("TANDEM_TEST_COUNT");
  const uint64_t first_seed = seed_text != nullptr ? std::strtoull(seed_text, nullptr, 10) : 1000;
  const uint64_t count = count_text != nullptr ? std::strtoull(count_text, nullptr, 10) : 200;
  for (uint64_t seed = first_seed; seed < first_seed + count; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](int64_t bound) { return static_cast<int64_t>(random() % static_cast<uint64_t>(bound)); };
    ForwardCase test;
    test.seed = seed;
    test.batch = 1 + below(3);
    test.nheads_k = 1 + below(3);
    test.nheads_q = test.nheads_k * (1 + below(3));
    test.seqlen_q = 1 + below(below(2) == 0 ? 700 : 140);
    test.seqlen_k = 1 + below(below(2) == 0 ? 900 : 260);
    test.mask.causal = below(2) == 0;
    test.mask.top_left = below(4) == 0;
    if (below(3) == 0) test.mask.window_left = below(400);
    if (below(3) == 0) test.mask.window_right = below(400);
    if (below(4) == 0) test.mask.attention_chunk = 1 + below(500);
    test.q_scale = below(3) == 0 ? 6.0f : 1.0f;
    expect_right(test);
    if (testing::Test::HasFailure()) {
      FAIL() << "again: TANDEM_TEST_SEED=" << seed << " TANDEM_TEST_COUNT=1 gpu_forward_test "
             << "--gtest_filter=Forward.RandomProblems";
    }
  }
}

TEST(Forward, SameBitsEveryTime) {
  TANDEM_NEEDS_GPU();
  const ForwardData data({2, 16, 4, 1000, 1000, causal(), 41});
  const ForwardData::Outputs first = run(data);
  for (int repeat = 0; repeat < 200; ++repeat) {
    ASSERT_TRUE(run(data) == first) << "repeat " << repeat;
  }
}

// On a stream of its own, and again from a graph.
TEST(Forward, StreamsAndGraphs) {
  TANDEM_NEEDS_GPU();
  const ForwardData data({2, 4, 4, 500, 500, causal(), 51});
  const ForwardData::Outputs want = run(data);
  cudaStream_t stream;
  TANDEM_CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  AttentionProblem problem = data.problem();
  problem.exec.stream = stream;
  data.poison_outputs();
  ASSERT_TRUE(sm90::launch_forward(problem).is_ok());
  TANDEM_CHECK_CUDA(cudaStreamSynchronize(stream));
  EXPECT_TRUE(data.read() == want);

  cudaGraph_t graph;
  cudaGraphExec_t executable;
  TANDEM_CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  ASSERT_TRUE(sm90::launch_forward(problem).is_ok());
  TANDEM_CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
  TANDEM_CHECK_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  for (int replay = 0; replay < 3; ++replay) {
    data.poison_outputs();
    TANDEM_CHECK_CUDA(cudaGraphLaunch(executable, stream));
    TANDEM_CHECK_CUDA(cudaStreamSynchronize(stream));
    EXPECT_TRUE(data.read() == want);
  }
  TANDEM_CHECK_CUDA(cudaGraphExecDestroy(executable));
  TANDEM_CHECK_CUDA(cudaGraphDestroy(graph));
  TANDEM_CHECK_CUDA(cudaStreamDestroy(stream));
}

// NaN in a key that only later rows see reaches those rows only; in a value it may reach its tile [7].
TEST(Forward, NanInAKeyReachesOnlyRowsThatSeeIt) {
  TANDEM_NEEDS_GPU();
  const ForwardData data({1, 1, 1, 256, 256, causal(), 61});
  const ForwardData::Outputs before = run(data);
  constexpr int64_t kKey = 100;
  const AttentionProblem& p = data.problem();
  const uint16_t nan_bits = 0x7fff;
  TANDEM_CHECK_CUDA(
      cudaMemcpy(static_cast<uint16_t*>(p.k.data) + kKey * p.k.row_stride, &nan_bits, 2, cudaMemcpyHostToDevice));
  const ForwardData::Outputs after = run(data);
  for (int64_t row = 0; row < 256; ++row) {
    const float lse = after.lse[static_cast<size_t>(row)];
    if (row < kKey) {
      EXPECT_EQ(lse, before.lse[static_cast<size_t>(row)]) << row;
    } else {
      EXPECT_TRUE(std::isnan(lse)) << row;
    }
  }
}

// 40 rows too many: the first 40 see no key, the next ones of the same tile, and even of the same warp, do [5].
TEST(Forward, NanInValuesLeavesEmptyRowsZero) {
  TANDEM_NEEDS_GPU();
  constexpr int64_t kEmptyRows = 40;
  const ForwardData data({1, 1, 1, 128 + kEmptyRows, 128, causal(), 62});
  const AttentionProblem& p = data.problem();
  const std::vector<uint16_t> nans(static_cast<size_t>(p.seqlen_k * p.v.row_stride), 0x7fff);
  TANDEM_CHECK_CUDA(cudaMemcpy(p.v.data, nans.data(), nans.size() * 2, cudaMemcpyHostToDevice));
  const ForwardData::Outputs outputs = run(data);
  const int64_t first = static_cast<const uint16_t*>(p.out.data) - data.out_begin();
  for (int64_t row = 0; row < p.seqlen_q; ++row) {
    for (int64_t column = 0; column < p.headdim_v; ++column) {
      const uint16_t bits = outputs.out[static_cast<size_t>(first + row * p.out.row_stride + column)];
      if (row < kEmptyRows) {
        ASSERT_EQ(bits, 0) << "row " << row << ", column " << column;
      } else {
        ASSERT_TRUE(std::isnan(to_float(Bf16{bits}))) << "row " << row << ", column " << column;
      }
    }
    EXPECT_EQ(std::isinf(outputs.lse[static_cast<size_t>(row)]), row < kEmptyRows) << row;
  }
}

}  // namespace
}  // namespace tandem::gpu_test
