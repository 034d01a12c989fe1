#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "commands.h"
#include "exit_codes.h"
#include "system_info.h"
#include "tandem/tandem.h"

namespace tandem::cli {
namespace {

using nlohmann::json;

std::string last_error_or(const char* otherwise) {
  const std::string text = tandem_last_error();
  return text.empty() ? otherwise : text;
}

json backend_info(int32_t backend, tandem_device device) {
  json info;
  info["name"] = tandem_backend_name(backend);
  const tandem_status status = tandem_backend_available(backend, device);
  info["available"] = status == TANDEM_OK;
  info["description"] =
      status == TANDEM_OK ? tandem_backend_description(backend, device) : last_error_or("it is not available");
  return info;
}

json default_backend() {
  int32_t backend = TANDEM_BACKEND_AUTO;
  const tandem_status status = tandem_backend_select(TANDEM_BACKEND_AUTO, {TANDEM_CPU, 0}, &backend);
  if (status == TANDEM_OK) return tandem_backend_name(backend);
  return last_error_or("none");
}

// GPUs after the first that can be used.
json other_gpus() {
  json descriptions = json::array();
  for (int32_t ordinal = 1;; ++ordinal) {
    const tandem_device device = {TANDEM_CUDA, ordinal};
    if (tandem_backend_available(TANDEM_BACKEND_SM90, device) != TANDEM_OK) return descriptions;
    descriptions.push_back(tandem_backend_description(TANDEM_BACKEND_SM90, device));
  }
}

json collect() {
  json info;
  info["version"] = tandem_version();
  info["backends"] = {backend_info(TANDEM_BACKEND_REFERENCE, {TANDEM_CPU, 0}),
                      backend_info(TANDEM_BACKEND_TILED, {TANDEM_CPU, 0}),
                      backend_info(TANDEM_BACKEND_SM90, {TANDEM_CUDA, 0})};
  info["default_cpu_backend"] = default_backend();
  const char* omp_num_threads = std::getenv("OMP_NUM_THREADS");
  info["cpu"] = {{"model", cpu_model()},
                 {"features", cpu_features()},
                 {"threads", std::thread::hardware_concurrency()},
                 {"omp_num_threads", omp_num_threads != nullptr ? json(omp_num_threads) : json()}};
  const json& sm90 = info["backends"].back();
  info["gpu"] = {{"available", sm90["available"]}, {"description", sm90["description"]}};
  info["other_gpus"] = other_gpus();
  return info;
}

std::string joined(const json& words) {
  std::string text;
  for (const json& word : words) text += (text.empty() ? "" : " ") + word.get<std::string>();
  return text.empty() ? "unknown" : text;
}

void print_text(const json& info) {
  std::printf("tandem %s\n\nbackends\n", info["version"].get<std::string>().c_str());
  for (const json& backend : info["backends"]) {
    std::printf("  %-10s %-14s %s\n", backend["name"].get<std::string>().c_str(),
                backend["available"].get<bool>() ? "available" : "not available",
                backend["description"].get<std::string>().c_str());
  }
  std::printf("  on the CPU, \"auto\" is %s\n", info["default_cpu_backend"].get<std::string>().c_str());
  const json& cpu = info["cpu"];
  std::printf("\ncpu        %s\n", cpu["model"].get<std::string>().c_str());
  std::printf("features   %s\n", joined(cpu["features"]).c_str());
  std::printf("threads    %u", cpu["threads"].get<unsigned>());
  if (!cpu["omp_num_threads"].is_null()) {
    std::printf(" (OMP_NUM_THREADS=%s)", cpu["omp_num_threads"].get<std::string>().c_str());
  }
  const json& gpu = info["gpu"];
  std::printf("\ngpu        %s%s\n", gpu["available"].get<bool>() ? "" : "none that can be used: ",
              gpu["description"].get<std::string>().c_str());
  for (const json& other : info["other_gpus"]) std::printf("           %s\n", other.get<std::string>().c_str());
}

}  // namespace

Action add_info_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("info", "Version, backends and the hardware they run on");
  const auto as_json = std::make_shared<bool>(false);
  command->add_flag("--json", *as_json, "print one JSON object");
  return [as_json] {
    const json info = collect();
    if (*as_json) {
      std::printf("%s\n", info.dump(2).c_str());
    } else {
      print_text(info);
    }
    return static_cast<int>(kOk);
  };
}

}  // namespace tandem::cli
