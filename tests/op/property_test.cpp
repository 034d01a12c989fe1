// Random problems, forward and backward, on one backend against its oracle. Case n of a seed is always the same
// problem, so that a failure is reproduced by the command that it prints.

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <string>

#include "compare.h"
#include "random_problem.h"
#include "runner.h"

namespace tandem::optest {
namespace {

struct Options {
  std::string backend_name = "tiled";
  uint64_t seed = 1;
  uint64_t first = 0;
  uint64_t cases = 1000;
  bool verbose = false;
};

[[noreturn]] void usage() {
  std::cerr << "usage: op_property_test [--backend tiled|reference] [--seed N] [--cases N | --case N] [--verbose]\n";
  std::exit(2);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int n = 1; n < argc; ++n) {
    const std::string name = argv[n];
    if (name == "--verbose") {
      options.verbose = true;
      continue;
    }
    if (n + 1 == argc) usage();
    const char* value = argv[++n];
    if (name == "--backend") {
      options.backend_name = value;
    } else if (name == "--seed") {
      options.seed = std::strtoull(value, nullptr, 10);
    } else if (name == "--cases") {
      options.cases = std::strtoull(value, nullptr, 10);
    } else if (name == "--case") {
      options.first = std::strtoull(value, nullptr, 10);
      options.cases = 1;
    } else {
      usage();
    }
  }
  return options;
}

int32_t backend_number(const std::string& name) {
  if (name == "tiled") return TANDEM_BACKEND_TILED;
  if (name == "reference") return TANDEM_BACKEND_REFERENCE;
  usage();
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

// Nothing but the inputs that count decides a bit: not the number of threads, not what lies where no row looks [7, 12].
std::string check_bits(const RandomCase& test, int32_t backend) {
  const Inputs stored = Runner(test.problem, test.inputs, backend).inputs();
  const Results first = run_both(test.problem, stored, backend);
  Problem problem = test.problem;
  problem.num_threads = test.problem.num_threads == 1 ? 3 : 1;
  Inputs inputs = stored;
  for (std::vector<double>* values : {&inputs.q, &inputs.k, &inputs.v, &inputs.dout, &inputs.dlse}) {
    for (double& value : *values) {
      if (!std::isfinite(value)) value = 12345;
    }
  }
  const Results second = run_both(problem, inputs, backend);
  if (!same_bits(first.out, second.out)) return "out depends on the threads or on storage that no row sees";
  if (!same_bits(first.lse, second.lse)) return "lse depends on the threads or on storage that no row sees";
  if (!problem.deterministic) return "";
  if (!same_bits(first.dq, second.dq)) return "dq depends on the threads or on storage that no row sees";
  if (!same_bits(first.dk, second.dk)) return "dk depends on the threads or on storage that no row sees";
  if (!same_bits(first.dv, second.dv)) return "dv depends on the threads or on storage that no row sees";
  if (!same_bits(first.dsink, second.dsink)) return "dsink depends on the threads or on storage that no row sees";
  return "";
}

int run(const Options& options) {
  const int32_t backend = backend_number(options.backend_name);
  const auto start = std::chrono::steady_clock::now();
  uint64_t failures = 0;
  for (uint64_t n = options.first; n < options.first + options.cases && failures < 5; ++n) {
    const RandomCase test = random_case(options.seed, n);
    if (options.verbose) std::cout << n << ": " << describe(test.problem) << std::endl;
    std::string fault = check_problem(test.problem, test.inputs, backend);
    if (fault.empty() && n % 4 == 0) fault = check_bits(test, backend);
    if (fault.empty()) continue;
    ++failures;
    std::cout << "FAILED: " << fault << "\n  " << describe(test.problem) << "\n"
              << describe_layouts(test.problem) << "  reproduce: op_property_test --backend " << options.backend_name
              << " --seed " << options.seed << " --case " << n << "\n";
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::cout << options.cases << " random problems on " << options.backend_name << " (seed " << options.seed
            << "): " << failures << " failures, " << seconds.count() << " s\n";
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tandem::optest

int main(int argc, char** argv) {
  return tandem::optest::run(tandem::optest::parse(argc, argv));
}
