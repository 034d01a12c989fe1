// What holds whatever is computed, and only a GPU can show: bits, streams, host threads, graphs, the checked mode.

#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "device_problem.h"
#include "fp8_scales.h"
#include "graph.h"
#include "masks.h"
#include "op_targets.h"

namespace tandem::gpu_test {
namespace {

using optest::dense_problem;
using optest::packed_problem;
using optest::Problem;
using optest::Target;

class Behaviour : public testing::TestWithParam<Target> {
 protected:
  Problem dense(int64_t batch, int64_t seqlen_q, int64_t seqlen_k, int64_t nheads_q, int64_t nheads_k) const {
    return fitted(dense_problem(batch, seqlen_q, seqlen_k, nheads_q, nheads_k, 1), GetParam());
  }
  Problem packed(const std::vector<int32_t>& lengths_q, const std::vector<int32_t>& lengths_k, int64_t nheads) const {
    return fitted(packed_problem(lengths_q, lengths_k, nheads, nheads, 1), GetParam());
  }
  // Dense and packed, causal and with intervals.
  std::vector<Problem> some_problems() const {
    std::vector<Problem> problems = {dense(2, 330, 900, 4, 2), packed({100, 1, 0, 257, 64}, {300, 5, 9, 700, 64}, 4)};
    for (size_t n = 0; n < 2; ++n) {
      problems.push_back(problems[n]);
      problems.back().causal = true;
      problems.push_back(problems[n]);
      add_intervals(problems.back(), true, true, 6);
    }
    for (size_t n = 0; n < problems.size(); ++n) vary_fp8(problems[n], n);
    return problems;
  }
};

void expect_ok(tandem_status status) {
  ASSERT_EQ(status, TANDEM_OK) << tandem_last_error();
}

TEST_P(Behaviour, Contract12_ARowsBitsDoNotDependOnOtherRows) {
  for (const Problem& problem : some_problems()) {
    for (Pattern pattern : kPatterns) {
      DeviceProblem calm(problem, {1, pattern});
      expect_ok(calm.run_alone());
      const Fill wild{1, pattern, false, Wild::kRows};
      DeviceProblem beside_wild_rows(problem, wild);
      expect_ok(beside_wild_rows.run_alone());
      EXPECT_TRUE(calm.same_bits(beside_wild_rows, wild)) << calm.text();
    }
  }
}

TEST_P(Behaviour, Contract12_ASequencesBitsDoNotDependOnOtherSequences) {
  std::vector<Problem> problems = some_problems();
  problems.push_back(dense(6, 200, 300, 2, 2));
  problems.back().seqused_q = {200, 7, 0, 100, 64, 129};
  problems.back().seqused_k = {299, 200, 5, 64, 128, 1};
  for (const Problem& problem : problems) {
    for (bool infinite : {false, true}) {
      DeviceProblem calm(problem, {2, Pattern::kNormal, infinite});
      expect_ok(calm.run_alone());
      const Fill wild{2, Pattern::kNormal, !infinite, Wild::kSequences};
      DeviceProblem beside_wild_sequences(problem, wild);
      expect_ok(beside_wild_sequences.run_alone());
      EXPECT_TRUE(calm.same_bits(beside_wild_sequences, wild)) << calm.text();
    }
  }
}

TEST_P(Behaviour, Contract12_AThousandRunsBesideAnotherStream) {
  Problem problem = dense(3, 400, 1000, 8, 4);
  problem.causal = true;
  DeviceProblem first(problem, {3, Pattern::kSpikes}), again(problem, {3, Pattern::kSpikes});
  DeviceProblem other(packed({700, 3, 200}, {900, 1000, 50}, 6), {4});
  expect_ok(first.run_alone());
  EXPECT_EQ(first.fault(), "");
  const Stream stream, racing;
  for (int repeat = 0; repeat < (is_quick() ? 100 : 1000); ++repeat) {
    if (repeat % 50 == 0) {
      wait_for(stream);
      again.poison_results();
    }
    for (int n = 0; n < repeat % 3; ++n) expect_ok(other.run(racing));
    expect_ok(again.run(stream));
    if (repeat % 50 != 0 && repeat % 7 != 0) continue;  // the runs between them overwrite equal results
    wait_for(stream);
    ASSERT_TRUE(first.same_bits(again)) << "repeat " << repeat;
  }
  wait_for(stream);
  wait_for(racing);
  EXPECT_TRUE(first.same_bits(again));
  EXPECT_EQ(other.fault(), "");
}

TEST_P(Behaviour, SmMarginChangesNoBit) {
  for (const Problem& problem : some_problems()) {
    DeviceProblem all(problem), some(problem);
    expect_ok(all.run_alone());
    for (int32_t margin : {1, 100, 131, 1000}) {
      const Stream stream;
      some.poison_results();
      expect_ok(some.run(stream, margin));
      wait_for(stream);
      EXPECT_TRUE(all.same_bits(some)) << margin;
      EXPECT_EQ(some.fault(), "");
    }
  }
}

TEST_P(Behaviour, Contract14_ConcurrentCallsOnManyStreams) {
  const std::vector<Problem> problems = some_problems();
  std::vector<std::unique_ptr<DeviceProblem>> data;
  std::vector<std::unique_ptr<Stream>> streams;
  for (const Problem& problem : problems) {
    data.push_back(std::make_unique<DeviceProblem>(problem, Fill{data.size() + 1}));
    streams.push_back(std::make_unique<Stream>());
  }
  for (int repeat = 0; repeat < 20; ++repeat) {
    for (size_t n = 0; n < data.size(); ++n) expect_ok(data[n]->run(*streams[n]));
  }
  for (const auto& stream : streams) wait_for(*stream);
  for (const auto& one : data) EXPECT_EQ(one->fault(), "");
}

TEST_P(Behaviour, Contract14_CallsFromTwoHostThreads) {
  const Problem problems[] = {dense(2, 500, 700, 4, 2), packed({300, 0, 77}, {300, 20, 500}, 4)};
  std::string faults[2];
  const auto work = [&](int n) {
    try {
      DeviceProblem data(problems[n], {static_cast<uint64_t>(n) + 9});
      const Stream stream;
      for (int repeat = 0; repeat < 30 && faults[n].empty(); ++repeat) {
        if (data.run(stream) != TANDEM_OK) faults[n] = tandem_last_error();
      }
      wait_for(stream);
      if (faults[n].empty()) faults[n] = data.fault();
    } catch (const std::exception& error) {
      faults[n] = error.what();
    }
  };
  std::thread first(work, 0), second(work, 1);
  first.join();
  second.join();
  EXPECT_EQ(faults[0], "");
  EXPECT_EQ(faults[1], "");
}

TEST_P(Behaviour, C98_GraphsReplayWithOtherContents) {
  expect_ok(tandem_prepare({TANDEM_CUDA, 0}));
  for (Problem problem : some_problems()) {
    DeviceProblem data(problem);
    const Stream stream;
    const Graph graph(stream, [&] { return data.run(stream); });
    expect_ok(graph.status());
    for (uint64_t seed = 11; seed < 14; ++seed) {
      data.change(problem, {seed, seed == 12 ? Pattern::kSpikes : Pattern::kNormal});
      graph.replay();
      EXPECT_EQ(data.fault(), "");
      graph.replay();  // scratch memory as the last replay left it
      EXPECT_EQ(data.fault(), "");
    }
  }
}

TEST_P(Behaviour, C98_GraphsReplayWithOtherLengths) {
  expect_ok(tandem_prepare({TANDEM_CUDA, 0}));
  Problem batch = dense(5, 300, 700, 4, 2);
  batch.causal = true;
  batch.seqused_q.assign(5, 300);
  batch.seqused_k.assign(5, 700);
  DeviceProblem dense_data(batch);
  Problem sequences = packed({100, 100, 100, 100, 100}, {200, 200, 200, 200, 200}, 4);
  sequences.seqused_k.assign(5, 200);
  DeviceProblem packed_data(sequences);
  const Stream stream;
  const Graph dense_graph(stream, [&] { return dense_data.run(stream); });
  const Graph packed_graph(stream, [&] { return packed_data.run(stream); });
  expect_ok(dense_graph.status());
  expect_ok(packed_graph.status());
  uint64_t seed = 20;
  for (const DenseLengths& lengths : kReplayedDense) {
    batch.seqused_q = lengths.q;
    batch.seqused_k = lengths.k;
    dense_data.change(batch, {++seed});
    dense_graph.replay();
    EXPECT_EQ(dense_data.fault(), "");
  }
  for (const PackedLengths& lengths : kReplayedPacked) {
    sequences.cu_seqlens_q = lengths.offsets_q;
    sequences.cu_seqlens_k = lengths.offsets_k;
    sequences.seqused_k = lengths.used_k;
    packed_data.change(sequences, {++seed});
    packed_graph.replay();
    EXPECT_EQ(packed_data.fault(), "");
  }
}

TEST_P(Behaviour, Contract13_CheckedModeChangesNoBit) {
  for (const Problem& problem : some_problems()) {
    DeviceProblem plain(problem), checked(problem);
    expect_ok(plain.run_alone());
    const Stream stream;
    expect_ok(checked.run(stream, 0, true));
    wait_for(stream);
    EXPECT_TRUE(plain.same_bits(checked));
  }
}

INSTANTIATE_TEST_SUITE_P(Each, Behaviour, testing::ValuesIn(instance_targets()), target_name);

}  // namespace
}  // namespace tandem::gpu_test
