#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "attention_call.h"
#include "commands.h"
#include "exit_codes.h"
#include "files.h"
#include "float_formats.h"
#include "npy.h"
#include "options.h"
#include "safetensors.h"

namespace tandem::cli {
namespace {

struct TensorName {
  const char* name;
  const char* help;
};

constexpr TensorName kInputNames[] = {
    {"q", "queries: (batch, seqlen_q, nheads_q, headdim), or packed (total_q, nheads_q, headdim)"},
    {"k", "keys: (batch, seqlen_k, nheads_k, headdim), or packed (total_k, nheads_k, headdim)"},
    {"v", "values: (batch, seqlen_k, nheads_k, headdim_v), or packed (total_k, nheads_k, headdim_v)"},
    {"sink", "one more logit per head: fp32 (nheads_q)"},
    {"lo", "first visible key of each row: int32 (batch or 1, nheads_q or 1, seqlen_q), or packed (.., total_q)"},
    {"hi", "one past the last visible key of each row: the same"},
    {"cu_seqlens_q", "makes the call packed: int32 (batch + 1)"},
    {"cu_seqlens_k", "int32 (batch + 1)"},
    {"seqused_q", "rows of each sequence that count: int32 (batch)"},
    {"seqused_k", "keys of each sequence that count: int32 (batch)"},
    {"q_scale", "fp8: factors of the stored values, fp32"},
    {"k_scale", "fp8: the same"},
    {"v_scale", "fp8: the same"},
    {"dout", "gradient of out, with --backward"},
    {"dlse", "gradient of lse, with --backward"},
};

constexpr TensorName kOutputNames[] = {
    {"out", "attention's result"},
    {"lse", "log-sum-exp: (batch, nheads_q, seqlen_q), or packed (nheads_q, total_q)"},
    {"dq", "gradient of q, with --backward"},
    {"dk", "gradient of k, with --backward"},
    {"dv", "gradient of v, with --backward"},
    {"dsink", "gradient of sink, with --backward"},
};

struct RunOptions {
  std::map<std::string, std::string> input_paths;  // tensor name -> .npy file
  std::map<std::string, std::string> output_paths;
  std::string input;  // .safetensors
  std::string output;
  std::string out_dtype;
  ExecutionOptions execution;
  MaskOptions mask;
  double softmax_scale = 0;
  CLI::Option* has_softmax_scale = nullptr;
  double softcap = 0;
  bool backward = false;
  bool deterministic = false;
};

// A file to be written, and the results that go into it.
struct Destination {
  std::string path;
  bool is_npy;
  std::vector<std::string> names;
};

std::string flag_of(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return "--" + name;
}

void add_options(CLI::App& command, RunOptions& options) {
  command
      .add_option("--input", options.input, "a .safetensors file with tensors named as the options below: q, k, ...")
      ->group("Files");
  command.add_option("--output", options.output, "a .safetensors file for all results: out, lse, dq, dk, ...")
      ->group("Files");
  for (const TensorName& tensor : kInputNames) {
    command.add_option(flag_of(tensor.name), options.input_paths[tensor.name], tensor.help)
        ->type_name("NPY")
        ->group("Inputs as .npy (fp16, fp32, fp64, int32; the format has no bf16: use --input)");
  }
  for (const TensorName& tensor : kOutputNames) {
    command.add_option(flag_of(tensor.name), options.output_paths[tensor.name], tensor.help)
        ->type_name("NPY")
        ->group("Outputs as .npy");
  }
  options.mask.add_to(command);
  options.execution.add_to(command);
  options.has_softmax_scale =
      command.add_option("--scale", options.softmax_scale, "factor of the scores; default 1 / sqrt(headdim)");
  command.add_option("--softcap", options.softcap, "scores become softcap * tanh(score / softcap); 0: none");
  command.add_option("--out-dtype", options.out_dtype, "type of out: that of q, or fp32; default: q's (fp8: bf16)");
  command.add_flag("--backward", options.backward, "compute gradients too; needs dout");
  command.add_flag("--deterministic", options.deterministic, "gradients bitwise equal on every run, or a refusal");
  command.add_flag("--checked", options.execution.checked, "validate offsets, lengths and intervals by value");
}

// ------------------------------------------------------------------------------------------------------------- inputs

void check_names(const std::string& path, const TensorMap& tensors) {
  for (const auto& [name, tensor] : tensors) {
    const std::string& wanted = name;
    const bool known = std::any_of(std::begin(kInputNames), std::end(kInputNames),
                                   [&](const TensorName& input) { return wanted == input.name; });
    if (!known) {
      throw CliError(kFileError, path + ": tensor '" + name.substr(0, 64) +
                                     "' is none of the inputs that tandem run --help lists.");
    }
  }
}

TensorMap read_inputs(const RunOptions& options) {
  TensorMap tensors;
  for (const auto& [name, path] : options.input_paths) {
    if (path.empty()) continue;
    if (!options.input.empty()) {
      throw CliError(kUsageError, "--input already names the file of every input; drop " + flag_of(name) + ".");
    }
    tensors[name] = read_npy(path);
  }
  if (!options.input.empty()) {
    tensors = read_safetensors(options.input);
    check_names(options.input, tensors);
  }
  return tensors;
}

void require_inputs(const RunOptions& options, const TensorMap& inputs) {
  std::vector<std::string> required = {"q", "k", "v"};
  if (options.backward) required.emplace_back("dout");
  for (const std::string& name : required) {
    if (inputs.count(name) > 0) continue;
    if (options.input.empty()) throw CliError(kUsageError, "tandem run needs " + flag_of(name) + " or --input.");
    throw CliError(kFileError, options.input + ": it has no tensor '" + name + "'.");
  }
}

// out and lse take their shapes from q and v, so these must be what they should be before the library sees them.
void check_axes(const TensorMap& inputs) {
  const bool packed = inputs.count("cu_seqlens_q") > 0 || inputs.count("cu_seqlens_k") > 0;
  const size_t axes = packed ? 3 : 4;
  for (const char* name : {"q", "k", "v"}) {
    const std::vector<int64_t>& shape = inputs.at(name).shape();
    if (shape.size() == axes) continue;
    throw CliError(kFileError, std::string(name) + " has shape " + shape_text(shape) + "; " +
                                   (packed ? "with cu_seqlens it must be (total, nheads, headdim)."
                                           : "without cu_seqlens it must be (batch, seqlen, nheads, headdim)."));
  }
  if (packed && (inputs.count("cu_seqlens_q") == 0 || inputs.count("cu_seqlens_k") == 0)) {
    throw CliError(kUsageError, "cu_seqlens_q and cu_seqlens_k come together or not at all.");
  }
}

// ------------------------------------------------------------------------------------------------------------ results

int32_t result_dtype(const RunOptions& options, int32_t q_dtype) {
  if (!options.out_dtype.empty()) return require_dtype(options.out_dtype);
  return is_fp8(q_dtype) ? TANDEM_BF16 : q_dtype;
}

TensorMap make_results(const RunOptions& options, const TensorMap& inputs) {
  const TensorBuffer& q = inputs.at("q");
  TensorMap results;
  results["out"] = TensorBuffer(result_dtype(options, q.dtype()), out_shape(q.shape(), inputs.at("v").shape()));
  results["lse"] = TensorBuffer(q.dtype() == TANDEM_FP64 ? TANDEM_FP64 : TANDEM_FP32, lse_shape(q.shape()));
  if (!options.backward) return results;
  for (const char* name : {"q", "k", "v", "sink"}) {
    const auto input = inputs.find(name);
    if (input == inputs.end()) continue;
    results[std::string("d") + name] = TensorBuffer(input->second.dtype(), input->second.shape());
  }
  return results;
}

std::vector<Destination> plan_destinations(const RunOptions& options, const TensorMap& results) {
  std::vector<Destination> destinations;
  std::set<std::string> paths;
  for (const auto& [name, path] : options.output_paths) {
    if (path.empty()) continue;
    const auto result = results.find(name);
    if (result == results.end()) {
      throw CliError(kUsageError, flag_of(name) + " needs --backward" + (name == "dsink" ? " and a sink." : "."));
    }
    if (!npy_can_hold(result->second.dtype())) {
      throw CliError(kUsageError, std::string(".npy cannot hold ") + tandem_dtype_name(result->second.dtype()) +
                                      "; write " + name + " with --output, or choose --out-dtype fp32.");
    }
    destinations.push_back({path, true, {name}});
  }
  if (!options.output.empty()) {
    destinations.push_back({options.output, false, {}});
    for (const auto& entry : results) destinations.back().names.push_back(entry.first);
  }
  if (destinations.empty()) throw CliError(kUsageError, "tandem run needs --out or --output.");
  for (const Destination& destination : destinations) {
    std::error_code error;  // a path that cannot be resolved cannot be written either, which says so then
    if (!paths.insert(std::filesystem::weakly_canonical(destination.path, error).string()).second && !error) {
      throw CliError(kUsageError, "two results would go to " + destination.path + ".");
    }
  }
  return destinations;
}

std::vector<OutputFile> open_destinations(const std::vector<Destination>& destinations) {
  std::vector<OutputFile> files;
  files.reserve(destinations.size());
  for (const Destination& destination : destinations) files.emplace_back(destination.path);
  return files;
}

void write_results(const std::vector<Destination>& destinations, std::vector<OutputFile>& files,
                   const TensorMap& results) {
  for (size_t i = 0; i < files.size(); ++i) {
    if (destinations[i].is_npy) {
      write_npy(files[i], results.at(destinations[i].names.front()));
    } else {
      write_safetensors(files[i], results);
    }
  }
  for (OutputFile& file : files) file.close();
  for (OutputFile& file : files) file.commit();
}

// --------------------------------------------------------------------------------------------------------------- call

tandem_tensor view_of(const TensorMap& tensors, const char* name) {
  const auto found = tensors.find(name);
  return found == tensors.end() ? tandem_tensor{} : found->second.view();
}

AttentionCall make_call(const RunOptions& options, const TensorMap& inputs, const TensorMap& results) {
  AttentionCall call;
  call.exec = options.execution.execution();
  call.exec.needs_grad = options.backward ? 1 : 0;
  call.exec.deterministic = options.deterministic ? 1 : 0;
  call.mask = options.mask.mask();
  call.mask.lo = view_of(inputs, "lo");
  call.mask.hi = view_of(inputs, "hi");
  call.has_softmax_scale = options.has_softmax_scale->count() > 0;
  call.softmax_scale = options.softmax_scale;
  call.softcap = options.softcap;
  const std::pair<tandem_tensor*, const char*> input_fields[] = {
      {&call.q, "q"},
      {&call.k, "k"},
      {&call.v, "v"},
      {&call.sink, "sink"},
      {&call.q_scale, "q_scale"},
      {&call.k_scale, "k_scale"},
      {&call.v_scale, "v_scale"},
      {&call.cu_seqlens_q, "cu_seqlens_q"},
      {&call.cu_seqlens_k, "cu_seqlens_k"},
      {&call.seqused_q, "seqused_q"},
      {&call.seqused_k, "seqused_k"},
      {&call.dout, "dout"},
      {&call.dlse, "dlse"},
  };
  for (const auto& [field, name] : input_fields) *field = view_of(inputs, name);
  const std::pair<tandem_tensor*, const char*> result_fields[] = {
      {&call.out, "out"}, {&call.lse, "lse"}, {&call.dq, "dq"},
      {&call.dk, "dk"},   {&call.dv, "dv"},   {&call.dsink, "dsink"},
  };
  for (const auto& [field, name] : result_fields) *field = view_of(results, name);
  return call;
}

void run_and_report(const AttentionCall& call, Direction direction) {
  const PreparedCall prepared(call, direction);
  const auto start = std::chrono::steady_clock::now();
  prepared.run();
  prepared.wait();
  const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
  prepared.fetch_results();
  int32_t backend = call.exec.backend;
  require_ok(tandem_backend_select(call.exec.backend, call.exec.device, &backend));
  std::printf("%s on %s: %.3f ms\n", direction == Direction::kForward ? "forward" : "backward",
              tandem_backend_name(backend), elapsed.count());
}

int run(const RunOptions& options) {
  const TensorMap inputs = read_inputs(options);
  require_inputs(options, inputs);
  check_axes(inputs);
  const TensorMap results = make_results(options, inputs);
  const std::vector<Destination> destinations = plan_destinations(options, results);
  const AttentionCall call = make_call(options, inputs, results);
  require_ok(check(call, Direction::kForward));
  if (options.backward) require_ok(check(call, Direction::kBackward));

  std::vector<OutputFile> files = open_destinations(destinations);  // before the work: a bad path costs no time
  run_and_report(call, Direction::kForward);
  if (options.backward) run_and_report(call, Direction::kBackward);
  write_results(destinations, files, results);
  for (const Destination& destination : destinations) std::printf("wrote %s\n", destination.path.c_str());
  return kOk;
}

}  // namespace

Action add_run_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("run", "Attention of tensors in .npy or .safetensors files");
  const auto options = std::make_shared<RunOptions>();
  add_options(*command, *options);
  return [options] { return run(*options); };
}

}  // namespace tandem::cli
