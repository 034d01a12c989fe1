// What holds of gradients whatever is computed, and only a GPU can show: bits, streams, host threads, graphs, the
// checked mode.

#include <memory>
#include <thread>

#include "backward_test.h"
#include "graph.h"
#include "masks.h"

namespace tandem::gpu_test {
namespace {

using optest::Problem;

void expect_ok(tandem_status status) {
  ASSERT_EQ(status, TANDEM_OK) << tandem_last_error();
}

class BackwardBehaviour : public BackwardTest {
 protected:
  // Dense and packed, causal and with intervals.
  std::vector<Problem> some_problems(bool deterministic = false) const {
    std::vector<Problem> problems = {dense(2, 330, 900, 4, 2),
                                     packed({100, 1, 0, 257, 64}, {300, 5, 9, 700, 64}, 4, 4)};
    for (size_t n = 0; n < 2; ++n) {
      problems.push_back(problems[n]);
      problems.back().causal = true;
      problems.push_back(problems[n]);
      add_intervals(problems.back(), true, true, 6);
    }
    for (Problem& problem : problems) problem.deterministic = deterministic;
    return problems;
  }

  // More than three waves of work tiles, of 128 rows or keys and of 64, on 132 SMs.
  Problem of_many_waves() const { return dense(4, 1100, 1100, 16, 16); }
  std::vector<Problem> problems_of_many_waves() const {
    Problem causal = of_many_waves();
    causal.causal = true;
    Problem grouped = dense(6, 900, 1000, 16, 2);
    grouped.sink.assign(16, 0.5);
    grouped.with_dlse = true;
    Problem windowed = of_many_waves();
    windowed.has_window = true;
    windowed.window_left = 300;
    windowed.window_right = 0;
    std::vector<int32_t> lengths_q = {0}, lengths_k = {77};
    for (int32_t n = 1; n < 40; ++n) {
      lengths_q.push_back(n * 379 % 701);
      lengths_k.push_back(n * 277 % 997);
    }
    Problem sequences = packed(lengths_q, lengths_k, 8, 4);
    sequences.causal = true;
    return {of_many_waves(), causal, grouped, windowed, sequences};
  }
};

// Runs a problem again and again beside another stream that keeps the GPU busy in changing ways, and says how often the
// gradients are not those of the first time.
int count_different_runs(const BackwardProblem& first, const BackwardProblem& again, const BackwardProblem& other,
                         int repeats) {
  const Stream stream, racing;
  int different = 0;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    again.poison_results();
    for (int n = 0; n < repeat % 4; ++n) EXPECT_EQ(other.run(racing), TANDEM_OK) << tandem_last_error();
    EXPECT_EQ(again.run(stream), TANDEM_OK) << tandem_last_error();
    wait_for(stream);
    different += first.same_bits(again) ? 0 : 1;
  }
  wait_for(racing);
  return different;
}

TEST_P(BackwardBehaviour, C88_DeterministicRunsHaveTheSameBits) {
  TANDEM_NEEDS_DETERMINISTIC();
  const BackwardProblem other(packed({700, 3, 200}, {900, 1000, 50}, 6, 6), {4});
  for (Problem problem : problems_of_many_waves()) {
    problem.deterministic = true;
    const BackwardProblem first(problem, {3}), again(problem, {3});
    expect_ok(first.run_alone());
    EXPECT_EQ(first.fault(), "");
    EXPECT_EQ(count_different_runs(first, again, other, is_quick() ? 12 : 60), 0) << first.text();
  }
}

// Blocks wait for each other's sums: each grid must end though the other has some of the SMs, or it all but one of
// them.
TEST_P(BackwardBehaviour, DeterministicGridsSideBySide) {
  TANDEM_NEEDS_DETERMINISTIC();
  for (Problem problem : problems_of_many_waves()) {
    problem.deterministic = true;
    const BackwardProblem first(problem, {3}), again(problem, {3}), other(problem, {4});
    expect_ok(first.run_alone());
    const Stream stream, racing;
    for (int32_t margin : {0, 1, 66, 131, 1000}) {
      again.poison_results();
      for (int repeat = 0; repeat < 4; ++repeat) {
        expect_ok(other.run(racing, margin));
        expect_ok(again.run(stream, margin));
      }
      wait_for(stream);
      wait_for(racing);
      EXPECT_TRUE(first.same_bits(again)) << first.text() << ", margin " << margin;
    }
    EXPECT_EQ(other.fault(), "");
  }
}

// Otherwise the tests above show nothing.
TEST_P(BackwardBehaviour, OrdinaryRunsAreSeenToDiffer) {
  const BackwardProblem other(packed({700, 3, 200}, {900, 1000, 50}, 6, 6), {4});
  const BackwardProblem first(of_many_waves(), {3}), again(of_many_waves(), {3});
  expect_ok(first.run_alone());
  EXPECT_GT(count_different_runs(first, again, other, 60), 0);
  EXPECT_EQ(again.fault(), "");
  EXPECT_EQ(other.fault(), "");
}

TEST_P(BackwardBehaviour, Contract12_ASequencesBitsDoNotDependOnOtherSequences) {
  TANDEM_NEEDS_DETERMINISTIC();
  std::vector<Problem> problems = some_problems(true);
  problems.push_back(dense(6, 200, 300, 2, 2));
  problems.back().seqused_q = {200, 7, 0, 100, 64, 129};
  problems.back().seqused_k = {299, 200, 5, 64, 128, 1};
  problems.back().deterministic = true;
  for (const Problem& problem : problems) {
    for (bool infinite : {false, true}) {
      const BackwardProblem calm(problem, {2, Pattern::kNormal, infinite});
      expect_ok(calm.run_alone());
      EXPECT_EQ(calm.fault(), "");
      const Fill wild{2, Pattern::kNormal, !infinite, Wild::kSequences};
      const BackwardProblem beside_wild_sequences(problem, wild);
      expect_ok(beside_wild_sequences.run_alone());
      EXPECT_TRUE(calm.same_bits(beside_wild_sequences, wild)) << calm.text();
    }
  }
}

TEST_P(BackwardBehaviour, ManyRunsInTheSameScratchMemory) {
  for (const Problem& problem : some_problems()) {
    const BackwardProblem data(problem, {5});
    const Stream stream;
    for (int repeat = 0; repeat < 30; ++repeat) expect_ok(data.run(stream));
    wait_for(stream);
    EXPECT_EQ(data.fault(), "");
  }
}

TEST_P(BackwardBehaviour, SmMarginLeavesTheValues) {
  for (const Problem& problem : some_problems()) {
    const BackwardProblem data(problem, {6});
    for (int32_t margin : {1, 100, 131, 1000}) {
      const Stream stream;
      data.poison_results();
      expect_ok(data.run(stream, margin));
      wait_for(stream);
      EXPECT_EQ(data.fault(), "") << margin;
    }
  }
}

TEST_P(BackwardBehaviour, Contract14_ConcurrentCallsOnManyStreams) {
  std::vector<std::unique_ptr<BackwardProblem>> data;
  std::vector<std::unique_ptr<Stream>> streams;
  for (const Problem& problem : some_problems()) {
    data.push_back(std::make_unique<BackwardProblem>(problem, Fill{data.size() + 1}));
    streams.push_back(std::make_unique<Stream>());
  }
  for (int repeat = 0; repeat < 20; ++repeat) {
    for (size_t n = 0; n < data.size(); ++n) expect_ok(data[n]->run(*streams[n]));
  }
  for (const auto& stream : streams) wait_for(*stream);
  for (const auto& one : data) EXPECT_EQ(one->fault(), "");
}

TEST_P(BackwardBehaviour, Contract14_CallsFromTwoHostThreads) {
  const Problem problems[] = {dense(2, 500, 700, 4, 2), packed({300, 0, 77}, {300, 20, 500}, 4, 4)};
  std::string faults[2];
  const auto work = [&](int n) {
    try {
      const BackwardProblem data(problems[n], {static_cast<uint64_t>(n) + 9});
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

TEST_P(BackwardBehaviour, C98_GraphsReplayWithOtherContents) {
  expect_ok(tandem_prepare({TANDEM_CUDA, 0}));
  for (bool deterministic : {false, true}) {
    if (deterministic && !GetParam().deterministic) continue;
    for (const Problem& problem : some_problems(deterministic)) {
      BackwardProblem data(problem);
      const Stream stream;
      const Graph graph(stream, [&] { return data.run(stream); });
      expect_ok(graph.status());
      for (uint64_t seed = 11; seed < 13; ++seed) {
        data.change(problem, {seed, seed == 12 ? Pattern::kPeaked : Pattern::kNormal});
        graph.replay();
        EXPECT_EQ(data.fault(), "");
        graph.replay();  // scratch memory as the last replay left it
        EXPECT_EQ(data.fault(), "");
      }
    }
  }
}

TEST_P(BackwardBehaviour, C98_GraphsReplayWithOtherLengths) {
  expect_ok(tandem_prepare({TANDEM_CUDA, 0}));
  Problem batch = dense(5, 300, 700, 4, 2);
  batch.causal = true;
  batch.seqused_q.assign(5, 300);
  batch.seqused_k.assign(5, 700);
  BackwardProblem dense_data(batch);
  Problem sequences = packed({100, 100, 100, 100, 100}, {200, 200, 200, 200, 200}, 4, 4);
  sequences.seqused_k.assign(5, 200);
  BackwardProblem packed_data(sequences);
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

TEST_P(BackwardBehaviour, Contract13_CheckedModeLeavesTheValues) {
  for (const Problem& problem : some_problems()) {
    const BackwardProblem checked(problem);
    const Stream stream;
    expect_ok(checked.run(stream, 0, true));
    wait_for(stream);
    EXPECT_EQ(checked.fault(), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Each, BackwardBehaviour, testing::ValuesIn(instance_targets()), target_name);

}  // namespace
}  // namespace tandem::gpu_test
