#include <limits>

#include "quantize/launch.h"
#include "quantize_definition.h"
#include "waits/experiments.h"

namespace tandem::model {
namespace {

using optest::dense_case;
using optest::Granularity;
using optest::packed_case;
using optest::QuantizeCase;

// Infinities are dropped before the rounding.
std::vector<double> values_of(const QuantizeCase& test) {
  std::vector<double> x = optest::random_values(test, 1);
  for (size_t n = 17; n < x.size(); n += 5000) x[n] = std::numeric_limits<double>::infinity();
  return x;
}

// Against the definition, which leaves next to no choice.
Experiment experiment(const std::string& name, const QuantizeCase& test, int blocks) {
  const auto prepare = [test, blocks]() -> Run {
    return [test, blocks, x = values_of(test)](const Options& options) -> Finding {
      QuantizeOptions with;
      with.machine = options;
      with.most_blocks = blocks;
      const QuantizeRun run = run_quantize(test, x, with);
      if (run.result.report) return {kind_name(run.result.report->kind), run.result.report->message};
      const std::string fault = optest::definition_fault(test, run.quantized);
      return {fault.empty() ? "" : "wrong result", fault};
    };
  };
  return {"quantize_" + name, [prepare] { return prepare()(options_for(1)); }, prepare};
}

// Thread blocks take several items each, in both passes over shared scales.
Experiment shared_scales(const std::string& name, QuantizeCase test) {
  test.granularity = Granularity::kHead;
  return experiment(name, test, 2);
}

QuantizeCase rows(int64_t headdim) {
  return dense_case(2, 130, 2, headdim);
}
QuantizeCase packed(int64_t headdim) {
  return packed_case({3, 3, 20, 160, 163}, 170, 2, headdim);
}
QuantizeCase transposed(int64_t headdim) {
  QuantizeCase test = packed(headdim);
  test.transposed = true;
  return test;
}
QuantizeCase rotated(int64_t headdim) {
  QuantizeCase test = rows(headdim);
  test.rotate = true;
  test.seed = 12345;
  return test;
}
QuantizeCase turned(QuantizeCase test) {
  add_rotary_tables(test, 150, test.headdim / 2);
  return test;
}

}  // namespace

std::vector<Experiment> quantize_experiments() {
  std::vector<Experiment> all;
  for (const int64_t headdim : {64, 256}) {
    const std::string suffix = "_" + std::to_string(headdim);
    all.push_back(experiment("rows" + suffix, rows(headdim), 2));
    all.push_back(experiment("transposed" + suffix, transposed(headdim), 2));
    all.push_back(experiment("rotated" + suffix, rotated(headdim), 2));
    all.push_back(experiment("turned" + suffix, turned(packed(headdim)), 2));
  }
  for (const int64_t headdim : {96, 192}) {
    all.push_back(experiment("rotated_" + std::to_string(headdim), rotated(headdim), 2));
  }
  all.push_back(shared_scales("shared_rows", rows(64)));
  all.push_back(shared_scales("shared_transposed", transposed(128)));
  all.push_back(shared_scales("shared_rotated", rotated(128)));
  all.push_back(experiment("narrow", packed(50), 2));
  all.push_back(experiment("narrow_transposed", transposed(50), 2));
  all.push_back(experiment("narrow_rotated", turned(rotated(12)), 2));
  all.push_back(shared_scales("narrow_shared", transposed(50)));
  return all;
}

}  // namespace tandem::model
