// The forward kernel's own source, run in the model, against a double reference.

#include <gtest/gtest.h>

#include "forward/launch.h"

namespace tandem::model {
namespace {

void expect_right(const ForwardProblem& problem, int blocks, uint64_t seed) {
  Options options;
  options.seed = seed;
  const ForwardInputs inputs = make_inputs(problem);
  const ForwardRun run = run_forward(problem, inputs, blocks, options);
  const std::string context = problem.text() + ", scheduler seed " + std::to_string(seed);
  ASSERT_FALSE(run.result.report) << run.result.text() << "\n" << context;
  EXPECT_EQ(difference(reference(problem, inputs), run.outputs), "") << context;
}

TEST(Forward, EdgeLengths) {
  for (const int64_t headdim : {64, 128}) {
    for (const int64_t seqlen : {1, 63, 64, 65, 127, 128, 129, 200}) {
      for (const bool causal : {false, true}) {
        ForwardProblem problem;
        problem.headdim = headdim;
        problem.seqlen_q = problem.seqlen_k = seqlen;
        problem.mask.causal = causal;
        problem.seed = static_cast<uint64_t>(seqlen);
        for (uint64_t seed = 1; seed <= 3; ++seed) expect_right(problem, 1, seed);
      }
    }
  }
}

TEST(Forward, LengthsThatDiffer) {
  for (const auto& [seqlen_q, seqlen_k] : {std::pair<int, int>{1, 300}, {300, 1}, {130, 65}, {65, 130}, {129, 0}}) {
    for (const bool causal : {false, true}) {
      ForwardProblem problem;
      problem.seqlen_q = seqlen_q;
      problem.seqlen_k = seqlen_k;
      problem.mask.causal = causal;
      expect_right(problem, 1, 1);
      expect_right(problem, 2, 2);
    }
  }
}

// More key blocks than twice the stages: every barrier goes through both parities more than once.
TEST(Forward, ManyKeyBlocks) {
  for (const bool causal : {false, true}) {
    ForwardProblem problem;
    problem.seqlen_q = 200;
    problem.seqlen_k = 900;
    problem.mask.causal = causal;
    for (uint64_t seed = 1; seed <= 5; ++seed) expect_right(problem, 1, seed);
  }
}

// More than two work tiles a block, drawn from the counter by blocks that run side by side; heads share keys.
TEST(Forward, ManyTilesOnSeveralBlocks) {
  ForwardProblem problem;
  problem.batch = 2;
  problem.nheads_q = 4;
  problem.nheads_k = 2;
  problem.seqlen_q = 150;
  problem.seqlen_k = 180;
  problem.mask.causal = true;
  for (uint64_t seed = 1; seed <= 4; ++seed) expect_right(problem, static_cast<int>(seed), seed);
}

TEST(Forward, Windows) {
  ForwardProblem problem;
  problem.seqlen_q = problem.seqlen_k = 400;
  problem.mask.window_left = 100;
  problem.mask.window_right = 20;
  for (uint64_t seed = 1; seed <= 2; ++seed) expect_right(problem, 2, seed);
}

TEST(Forward, SameSeedSameRun) {
  ForwardProblem problem;
  problem.nheads_q = problem.nheads_k = 3;
  problem.seqlen_q = problem.seqlen_k = 200;
  const ForwardInputs inputs = make_inputs(problem);
  const auto run = [&](uint64_t seed, bool keep_events) {
    Options options;
    options.seed = seed;
    options.keep_events = keep_events;
    return run_forward(problem, inputs, 2, options);
  };
  const ForwardRun first = run(7, false);
  const ForwardRun again = run(7, true);
  const ForwardRun other = run(8, false);
  EXPECT_EQ(first.result.trace_hash, again.result.trace_hash);
  EXPECT_EQ(first.result.steps, again.result.steps);
  EXPECT_EQ(first.outputs.out, again.outputs.out);
  EXPECT_NE(first.result.trace_hash, other.result.trace_hash);
  EXPECT_EQ(first.outputs.out, other.outputs.out);  // the schedule must not change a bit of the result
}

}  // namespace
}  // namespace tandem::model
