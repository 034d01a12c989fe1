#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "commands.h"
#include "exit_codes.h"
#include "float_formats.h"
#include "options.h"
#include "progress.h"
#include "random.h"
#include "system_info.h"

namespace tandem::cli {
namespace {

using nlohmann::json;

constexpr int64_t kMinRepetitions = 3;
constexpr int kCallsPerGpuRound = 10;
constexpr double kBackwardFlops = 2.5;  // five matrix products for the forward's two

struct BenchOptions {
  std::string op;                   // "": both; on a GPU, which has no backward yet, forward
  std::vector<std::string> dtypes;  // none: fp32; on a GPU bf16
  std::vector<int64_t> headdims = {64, 128};
  std::vector<int64_t> seqlens = {512, 1024, 2048};
  int64_t batch = 1;
  int64_t nheads_q = 8;
  int64_t nheads_k = 0;  // 0: nheads_q
  bool causal = false;
  double seconds = 1;
  bool as_json = false;
  std::string run_id;
  std::string commit;
  ExecutionOptions execution;
};

struct BenchConfig {
  Direction direction;
  int32_t dtype;
  int64_t headdim;
  int64_t seqlen;
};

struct BenchResult {
  double median = 0, lowest = 0, highest = 0;  // milliseconds
  double flops = 0;
  double bytes = 0;  // of all tensors, read or written once
  double per_second(double amount) const { return amount / (median * 1e-3); }
};

struct BenchTensors {
  TensorBuffer q, k, v, out, lse, dout, dq, dk, dv;
};

// One block of random values, repeated: the sums do not notice, and drawing is slow.
void fill_random(TensorBuffer& tensor, Random& random) {
  constexpr int64_t kPeriod = 4099;  // prime, so that rows differ
  const int64_t drawn = std::min(tensor.size(), kPeriod);
  for (int64_t i = 0; i < drawn; ++i) tensor.set(i, random.normal());
  const int64_t element_bytes = dtype_bytes(tensor.dtype());
  for (int64_t i = drawn; i < tensor.size(); i += kPeriod) {
    const int64_t elems = std::min(kPeriod, tensor.size() - i);
    std::copy_n(tensor.data(), elems * element_bytes, tensor.data() + i * element_bytes);
  }
}

BenchTensors make_tensors(const BenchOptions& options, const BenchConfig& config) {
  const int32_t out_dtype = is_fp8(config.dtype) ? static_cast<int32_t>(TANDEM_BF16) : config.dtype;
  const std::vector<int64_t> q_shape = {options.batch, config.seqlen, options.nheads_q, config.headdim};
  const std::vector<int64_t> k_shape = {options.batch, config.seqlen, options.nheads_k, config.headdim};
  BenchTensors tensors;
  tensors.q = TensorBuffer(config.dtype, q_shape);
  tensors.k = TensorBuffer(config.dtype, k_shape);
  tensors.v = TensorBuffer(config.dtype, k_shape);
  tensors.out = TensorBuffer(out_dtype, q_shape);
  tensors.lse = TensorBuffer(config.dtype == TANDEM_FP64 ? TANDEM_FP64 : TANDEM_FP32, lse_shape(q_shape));
  Random random(1);
  for (TensorBuffer* tensor : {&tensors.q, &tensors.k, &tensors.v}) fill_random(*tensor, random);
  if (config.direction == Direction::kForward) return tensors;
  tensors.dout = TensorBuffer(out_dtype, q_shape);
  tensors.dq = TensorBuffer(config.dtype, q_shape);
  tensors.dk = TensorBuffer(config.dtype, k_shape);
  tensors.dv = TensorBuffer(config.dtype, k_shape);
  fill_random(tensors.dout, random);
  return tensors;
}

AttentionCall make_call(const BenchOptions& options, const BenchTensors& tensors) {
  AttentionCall call;
  call.exec = options.execution.execution();
  call.mask.causal = options.causal ? 1 : 0;
  call.q = tensors.q.view();
  call.k = tensors.k.view();
  call.v = tensors.v.view();
  call.out = tensors.out.view();
  call.lse = tensors.lse.view();
  call.dout = tensors.dout.view();
  call.dq = tensors.dq.view();
  call.dk = tensors.dk.view();
  call.dv = tensors.dv.view();
  return call;
}

// Times single calls for about `seconds` after a warm-up of a quarter of that, one round at least. A round is one call
// on the CPU; on a GPU several, so that the next is queued before the last is done.
std::vector<double> time_calls(const PreparedCall& prepared, double seconds, int calls_per_round) {
  const double budget = seconds * 1e3;
  const auto spend = [&](double& spent) {
    const std::vector<double> round = prepared.time(calls_per_round);
    spent += std::accumulate(round.begin(), round.end(), 0.0);
    return round;
  };
  for (double spent = 0; spent <= budget / 4;) spend(spent);
  std::vector<double> times;
  for (double spent = 0; spent < budget || static_cast<int64_t>(times.size()) < kMinRepetitions;) {
    const std::vector<double> round = spend(spent);
    times.insert(times.end(), round.begin(), round.end());
  }
  return times;
}

double median_of(std::vector<double> sorted_times) {
  std::sort(sorted_times.begin(), sorted_times.end());
  const size_t middle = sorted_times.size() / 2;
  return sorted_times.size() % 2 == 1 ? sorted_times[middle] : (sorted_times[middle - 1] + sorted_times[middle]) / 2;
}

// 4 * batch * heads * seqlen^2 * headdim, halved if causal, times 2.5 for the backward.
double flops_of(const BenchOptions& options, const BenchConfig& config) {
  const double pairs = static_cast<double>(config.seqlen) * static_cast<double>(config.seqlen);
  const double flops = 4.0 * static_cast<double>(options.batch * options.nheads_q * config.headdim) * pairs;
  return flops * (options.causal ? 0.5 : 1) * (config.direction == Direction::kBackward ? kBackwardFlops : 1);
}

double bytes_of(const BenchTensors& tensors) {
  int64_t bytes = 0;
  for (const TensorBuffer* tensor : {&tensors.q, &tensors.k, &tensors.v, &tensors.out, &tensors.lse, &tensors.dout,
                                     &tensors.dq, &tensors.dk, &tensors.dv}) {
    bytes += tensor->bytes();
  }
  return static_cast<double>(bytes);
}

BenchResult measure(const BenchOptions& options, const BenchConfig& config) {
  const BenchTensors tensors = make_tensors(options, config);
  const AttentionCall call = make_call(options, tensors);
  if (config.direction == Direction::kBackward) run_once(call, Direction::kForward);  // its out and lse
  const int calls_per_round = options.execution.on_gpu() ? kCallsPerGpuRound : 1;
  const std::vector<double> times = time_calls(PreparedCall(call, config.direction), options.seconds, calls_per_round);
  BenchResult result;
  result.median = median_of(times);
  result.lowest = *std::min_element(times.begin(), times.end());
  result.highest = *std::max_element(times.begin(), times.end());
  result.flops = flops_of(options, config);
  result.bytes = bytes_of(tensors);
  return result;
}

// ---------------------------------------------------------------------------------------------------------------
// output

std::string time_text(const char* format) {
  char text[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(text, sizeof(text), format, std::gmtime(&now));
  return text;
}

const char* op_name(Direction direction) {
  return direction == Direction::kForward ? "forward" : "backward";
}

// A setting that is not what a user gets by default goes into "variant".
std::string variant_of(const BenchOptions& options) {
  return options.execution.backend == "auto" ? "" : options.execution.backend;
}

double rounded(double value) {
  return std::round(value * 1e6) / 1e6;
}

json json_line(const BenchOptions& options, const BenchConfig& config, const BenchResult& result) {
  return {{"run", options.run_id},
          {"date", time_text("%Y-%m-%d")},
          {"commit", options.commit},
          {"gpu", options.execution.on_gpu() ? gpu_name(options.execution.execution().device.ordinal) : ""},
          {"driver", options.execution.on_gpu() ? nvidia_driver() : ""},
          {"cpu", cpu_model()},
          {"threads", options.execution.threads},
          {"op", op_name(config.direction)},
          {"dtype", tandem_dtype_name(config.dtype)},
          {"headdim", config.headdim},
          {"headdim_v", config.headdim},
          {"mask", options.causal ? "causal" : "none"},
          {"batch", options.batch},
          {"seqlen_q", config.seqlen},
          {"seqlen_k", config.seqlen},
          {"nheads_q", options.nheads_q},
          {"nheads_k", options.nheads_k},
          {"library", "tandem"},
          {"variant", variant_of(options)},
          {"ms", rounded(result.median)},
          {"ms_min", rounded(result.lowest)},
          {"ms_max", rounded(result.highest)},
          {"tflops", rounded(result.per_second(result.flops) * 1e-12)},
          {"gbps", rounded(result.per_second(result.bytes) * 1e-9)}};
}

void print_table_head(const BenchOptions& options, int32_t backend) {
  std::printf("%s (%s), batch %lld, heads %lld/%lld, %s\n", tandem_backend_name(backend),
              tandem_backend_description(backend, options.execution.execution().device),
              static_cast<long long>(options.batch), static_cast<long long>(options.nheads_q),
              static_cast<long long>(options.nheads_k), options.causal ? "causal" : "no mask");
  std::printf("%-9s %-5s %8s %8s %12s %12s %12s %10s\n", "op", "dtype", "headdim", "seqlen", "median ms", "min ms",
              "max ms", "GFLOPS");
}

void print_table_row(const BenchConfig& config, const BenchResult& result) {
  std::printf("%-9s %-5s %8lld %8lld %12.3f %12.3f %12.3f %10.1f\n", op_name(config.direction),
              tandem_dtype_name(config.dtype), static_cast<long long>(config.headdim),
              static_cast<long long>(config.seqlen), result.median, result.lowest, result.highest,
              result.per_second(result.flops) * 1e-9);
}

std::vector<BenchConfig> configs_of(const BenchOptions& options) {
  std::vector<BenchConfig> configs;
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    if (options.op != "both" && options.op != op_name(direction)) continue;
    for (const std::string& name : options.dtypes) {
      for (const int64_t headdim : options.headdims) {
        for (const int64_t seqlen : options.seqlens) {
          configs.push_back({direction, require_dtype(name), headdim, seqlen});
        }
      }
    }
  }
  return configs;
}

int bench(BenchOptions options) {
  if (options.nheads_k == 0) options.nheads_k = options.nheads_q;
  if (options.op.empty()) options.op = options.execution.on_gpu() ? "forward" : "both";
  if (options.dtypes.empty()) options.dtypes = {options.execution.on_gpu() ? "bf16" : "fp32"};
  if (options.run_id.empty()) options.run_id = time_text("%Y%m%dT%H%M%SZ");
  const std::vector<BenchConfig> configs = configs_of(options);
  int32_t backend = options.execution.execution().backend;
  require_ok(tandem_backend_select(backend, options.execution.execution().device, &backend));
  if (!options.as_json) print_table_head(options, backend);
  Progress progress(static_cast<int64_t>(configs.size()));
  for (size_t i = 0; i < configs.size(); ++i) {
    const BenchConfig& config = configs[i];
    progress.show(static_cast<int64_t>(i), std::string(op_name(config.direction)) + " headdim " +
                                               std::to_string(config.headdim) + " seqlen " +
                                               std::to_string(config.seqlen));
    const BenchResult result = measure(options, config);
    progress.clear();
    if (options.as_json) std::printf("%s\n", json_line(options, config, result).dump().c_str());
    if (!options.as_json) print_table_row(config, result);
    std::fflush(stdout);
  }
  return kOk;
}

}  // namespace

Action add_bench_command(CLI::App& app) {
  const CLI::Validator positive = CLI::Validator(CLI::PositiveNumber) & fits_64_bits();
  CLI::App* command = app.add_subcommand("bench", "Speed of forward and backward on random data");
  const auto options = std::make_shared<BenchOptions>();
  command->add_option("--op", options->op, "forward, backward or both; default both, on a GPU forward")
      ->check(CLI::IsMember({"forward", "backward", "both"}));
  command
      ->add_option("--dtype", options->dtypes,
                   "list of fp64, fp32, fp16, bf16, e4m3, e5m2; default fp32, on a GPU bf16")
      ->delimiter(',');
  command->add_option("--headdim", options->headdims, "list")->delimiter(',')->check(positive);
  command->add_option("--seqlen", options->seqlens, "list")->delimiter(',')->check(positive);
  command->add_option("--batch", options->batch, "sequences")->check(positive);
  command->add_option("--heads", options->nheads_q, "query heads")->check(positive);
  command->add_option("--heads-k", options->nheads_k, "key heads; default as many as query heads")->check(positive);
  command->add_flag("--causal", options->causal, "causal mask");
  options->execution.add_to(*command);
  command->add_option("--seconds", options->seconds, "time for each row of the table")->check(CLI::Range(0.0, 3600.0));
  command->add_flag("--json", options->as_json, "one JSON object a line, as in bench/results");
  command->add_option("--run", options->run_id, "--json: name of this run; default the time");
  command->add_option("--commit", options->commit, "--json: the commit that was built");
  return [options] { return bench(*options); };
}

}  // namespace tandem::cli
