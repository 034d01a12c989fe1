#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attention_call.h"
#include "commands.h"
#include "exit_codes.h"
#include "files.h"
#include "options.h"
#include "safetensors.h"

namespace tandem::cli {
namespace {

struct QuantizeOptions {
  std::string input;
  std::string output;
  std::string granularity = "block";
  bool rotate = false;
  uint64_t seed = 0;
  ExecutionOptions execution;
};

void add_options(CLI::App& command, QuantizeOptions& options) {
  command.add_option("--input", options.input, "a .safetensors file with q, k and v, as for tandem run")->required();
  command
      .add_option("--output", options.output,
                  "a .safetensors file for q, k and v in e4m3, q_scale, k_scale and v_scale, and all else that the "
                  "input holds: an input of tandem run")
      ->required();
  command
      .add_option("--granularity", options.granularity,
                  "which rows share a scale: tensor, head, or block (128 rows of a head); default block")
      ->check(CLI::IsMember({"tensor", "head", "block"}));
  command.add_flag("--rotate", options.rotate, "q and k times random signs and a Hadamard matrix");
  command.add_option("--seed", options.seed, "of the signs; default 0")->check(fits_64_bits(false));
  options.execution.add_to(command);
  command.add_flag("--checked", options.execution.checked, "validate offsets and lengths by value");
}

// As many blocks as a sequence could have.
std::vector<int64_t> scale_shape(const QuantizeOptions& options, const std::vector<int64_t>& x,
                                 const TensorBuffer* cu_seqlens) {
  if (options.granularity == "tensor") return {1};
  const size_t row = cu_seqlens == nullptr ? 1 : 0;
  const int64_t batch = cu_seqlens == nullptr ? x[0] : std::max<int64_t>(cu_seqlens->size() - 1, 0);
  if (options.granularity == "head") return {batch, x[row + 1]};
  const int64_t blocks = (x[row] + 127) / 128;
  return {batch, x[row + 1], cu_seqlens == nullptr ? blocks : std::max<int64_t>(blocks, 1)};
}

const TensorBuffer* find(const TensorMap& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  return found == tensors.end() ? nullptr : &found->second;
}

tandem_tensor view_of(const TensorBuffer* tensor) {
  return tensor == nullptr ? tandem_tensor{} : tensor->view();
}

void run_call(tandem_quantize_fp8_params& params) {
  uint64_t bytes = 0;
  uint64_t alignment = 0;
  require_ok(tandem_quantize_fp8_workspace(&params, &bytes, &alignment));
  std::vector<char> workspace(bytes + alignment);
  const uint64_t misalignment = reinterpret_cast<uintptr_t>(workspace.data()) % alignment;
  params.exec.workspace = workspace.data() + (alignment - misalignment) % alignment;
  params.exec.workspace_bytes = bytes;
  require_ok(tandem_quantize_fp8(&params));
}

// Replaces the tensor `name` by its rounded form and a scale.
void quantize(const QuantizeOptions& options, const std::string& name, TensorMap& tensors) {
  const TensorBuffer& x = tensors.at(name);
  const std::string side = name == "q" ? "q" : "k";
  const TensorBuffer* cu_seqlens = find(tensors, "cu_seqlens_" + side);
  const size_t axes = cu_seqlens == nullptr ? 4 : 3;
  if (x.shape().size() != axes) {
    throw CliError(kFileError, options.input + ": " + name + " has shape " + shape_text(x.shape()) + "; it must have " +
                                   std::to_string(axes) + " axes" + (axes == 3 ? " beside cu_seqlens." : "."));
  }
  TensorBuffer out(TANDEM_E4M3, x.shape());
  TensorBuffer scale(TANDEM_FP32, scale_shape(options, x.shape(), cu_seqlens));
  tandem_quantize_fp8_params params = {};
  params.struct_size = sizeof params;
  params.exec = options.execution.execution();
  params.x = x.view();
  params.out = out.view();
  params.scale = scale.view();
  params.cu_seqlens = view_of(cu_seqlens);
  params.seqused = view_of(find(tensors, "seqused_" + side));
  params.rotate = options.rotate && name != "v";
  params.seed = params.rotate ? options.seed : 0;
  run_call(params);
  tensors[name] = std::move(out);
  tensors[name + "_scale"] = std::move(scale);
}

int run(const QuantizeOptions& options) {
  if (options.execution.on_gpu()) {
    throw CliError(kUsageError, "tandem quantize runs on the CPU only; drop --device.");
  }
  TensorMap tensors = read_safetensors(options.input);
  for (const char* name : {"q", "k", "v"}) {
    if (find(tensors, name) == nullptr)
      throw CliError(kFileError, options.input + ": it has no tensor '" + name + "'.");
  }
  OutputFile file(options.output);  // before the work: a bad path costs no time
  for (const char* name : {"q", "k", "v"}) quantize(options, name, tensors);
  write_safetensors(file, tensors);
  file.commit();
  std::printf("wrote %s\n", options.output.c_str());
  return kOk;
}

}  // namespace

Action add_quantize_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("quantize", "q, k and v of a .safetensors file in fp8, for tandem run");
  const auto options = std::make_shared<QuantizeOptions>();
  add_options(*command, *options);
  return [options] { return run(*options); };
}

}  // namespace tandem::cli
