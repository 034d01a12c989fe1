// Random problems, forward and backward, on one backend against its oracle. Case n of a seed is always the same
// problem, so that a failure is reproduced by the command that it prints.

#include "property.h"

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>

namespace tandem::optest {
namespace {

struct Options {
  std::string backend_name = "tiled";
  std::string domain_name = "cpu";
  uint64_t seed = 1;
  uint64_t first = 0;
  uint64_t cases = 1000;
  bool verbose = false;
};

[[noreturn]] void usage() {
  std::cerr << "usage: op_property_test [--backend tiled|reference] [--domain cpu|tensor_cores|fp8] [--seed N]\n"
               "                        [--cases N | --case N] [--verbose]\n";
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
    } else if (name == "--domain") {
      options.domain_name = value;
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

Target target_named(const std::string& name) {
  if (name == "tiled") return {name, TANDEM_BACKEND_TILED};
  if (name == "reference") return {name, TANDEM_BACKEND_REFERENCE};
  usage();
}

Domain domain_named(const std::string& name) {
  if (name == "cpu") return Domain::kCpu;
  if (name == "tensor_cores") return Domain::kTensorCores;
  if (name == "fp8") return Domain::kFp8;
  usage();
}

int run(const Options& options) {
  Target target = target_named(options.backend_name);
  const Domain domain = domain_named(options.domain_name);
  if (domain == Domain::kFp8) target.gradients = false;
  const auto start = std::chrono::steady_clock::now();
  uint64_t failures = 0;
  for (uint64_t n = options.first; n < options.first + options.cases && failures < 5; ++n) {
    if (options.verbose) {
      std::cout << n << ": " << describe(random_case(options.seed, n, domain).problem) << std::endl;
    }
    const std::string fault = check_random_case(target, domain, options.seed, n);
    if (fault.empty()) continue;
    ++failures;
    std::cout << "FAILED: " << fault << "  reproduce: op_property_test --backend " << options.backend_name
              << " --domain " << options.domain_name << " --seed " << options.seed << " --case " << n << "\n";
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::cout << options.cases << " random problems on " << options.backend_name << " ("
            << tandem_backend_description(target.backend, {TANDEM_CPU, 0}) << "; seed " << options.seed
            << "): " << failures << " failures, " << seconds.count() << " s\n";
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tandem::optest

int main(int argc, char** argv) {
  return tandem::optest::run(tandem::optest::parse(argc, argv));
}
