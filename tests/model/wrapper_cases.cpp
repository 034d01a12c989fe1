#include "wrapper_cases.h"

#include <algorithm>

#include "engine/machine.h"
#include "wrappers/cases.cuh"

namespace tandem::model {
namespace {

using sm90::wrappers::CaseResult;
using sm90::wrappers::NamedCase;
using sm90::wrappers::Words;

ptx::TensorMap encode(Machine& machine, const TensorMapSpec& spec) {
  return spec.rank == 0 ? ptx::TensorMap{} : machine.encode(spec);
}

template <typename Case>
CaseResult run_case(uint64_t seed) {
  sm90::wrappers::Random random(seed);
  Words in(Case::kInWords);
  Case::input(random, in);
  CaseResult result;
  result.want.assign(Case::kOutWords, Case::kOutFill);
  const Words filled = result.want;
  Case::expect(in, result.want);

  Options options;
  options.seed = seed;
  Machine machine(options);
  sm90::wrappers::Params params = {};
  params.in = machine.global().upload("in", in);
  params.out = machine.global().upload("out", filled);
  params.load_map = encode(machine, Case::load_map(params.in));
  params.store_map = encode(machine, Case::store_map(params.out));
  if constexpr (Case::kPrepareThreads > 0) {
    Launch prepare;
    prepare.threads = Case::kPrepareThreads;
    prepare.kernel = [&params] { Case::prepare(params); };
    machine.run(prepare);
  }
  Launch launch;
  launch.dependent = Case::kPrepareThreads > 0;
  launch.blocks = Case::kBlocks;
  launch.threads = Case::kThreads;
  launch.cluster_size = Case::kClusterSize;
  launch.shared_bytes = sm90::wrappers::kSharedBytes;
  launch.kernel = [&params] { Case::run(params); };
  const RunResult run = machine.run(launch);
  if (run.report) result.error = run.text();
  result.got.assign(params.out, params.out + Case::kOutWords);
  return result;
}

}  // namespace

std::vector<NamedCase> model_cases() {
  std::vector<NamedCase> cases;
  sm90::wrappers::for_each_case([&](auto test) {
    using Case = decltype(test);
    cases.push_back({sm90::wrappers::case_name(test), Case::kKind, Case::kRelative, Case::kAbsolute, run_case<Case>});
  });
  return cases;
}

}  // namespace tandem::model
