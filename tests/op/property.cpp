#include "property.h"

#include <cmath>
#include <cstring>

#include "compare.h"
#include "runner.h"

namespace tandem::optest {
namespace {

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

// Nothing but the inputs that count decides a bit: not the number of threads, not what lies where no row looks [7, 12].
std::string check_bits(const RandomCase& test, const Target& target) {
  const auto run = [&](const Problem& problem, const Inputs& inputs) {
    return target.gradients ? run_both(problem, inputs, target.backend) : run_forward(problem, inputs, target.backend);
  };
  const Inputs stored = Runner(test.problem, test.inputs, target.backend).inputs();
  const Results first = run(test.problem, stored);
  Problem problem = test.problem;
  problem.num_threads = test.problem.num_threads == 1 ? 3 : 1;
  Inputs inputs = stored;
  for (std::vector<double>* values : {&inputs.q, &inputs.k, &inputs.v, &inputs.dout, &inputs.dlse}) {
    for (double& value : *values) {
      if (!std::isfinite(value)) value = 12345;
    }
  }
  const Results second = run(problem, inputs);
  if (!same_bits(first.out, second.out)) return "out depends on the threads or on storage that no row sees";
  if (!same_bits(first.lse, second.lse)) return "lse depends on the threads or on storage that no row sees";
  if (!problem.deterministic) return "";
  if (!same_bits(first.dq, second.dq)) return "dq depends on the threads or on storage that no row sees";
  if (!same_bits(first.dk, second.dk)) return "dk depends on the threads or on storage that no row sees";
  if (!same_bits(first.dv, second.dv)) return "dv depends on the threads or on storage that no row sees";
  if (!same_bits(first.dsink, second.dsink)) return "dsink depends on the threads or on storage that no row sees";
  return "";
}

}  // namespace

std::string check_random_case(const Target& target, Domain domain, uint64_t seed, uint64_t n) {
  const RandomCase test = random_case(seed, n, domain);
  std::string fault = check_problem(test.problem, test.inputs, target.backend, target.gradients);
  if (fault.empty() && n % 4 == 0) fault = check_bits(test, target);
  return fault.empty() ? "" : fault + "\n  " + describe(test.problem) + "\n" + describe_layouts(test.problem);
}

}  // namespace tandem::optest
