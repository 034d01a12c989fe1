#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "engine/machine.h"
#include "sm90/ptx/shared.cuh"

namespace tandem::model {

constexpr uint32_t kBase = sm90::ptx::kDynamicSharedBase;

struct MicroLaunch {
  int threads = 32;
  int blocks = 1;
  int cluster_size = 1;
  uint32_t shared_bytes = 16 * 1024;
};

// Runs a few instructions as a kernel.
inline RunResult run_micro(Machine& machine, const MicroLaunch& micro, std::function<void()> kernel) {
  Launch launch;
  launch.threads = micro.threads;
  launch.blocks = micro.blocks;
  launch.cluster_size = micro.cluster_size;
  launch.shared_bytes = micro.shared_bytes;
  launch.kernel = std::move(kernel);
  return machine.run(launch);
}

inline RunResult run_micro(const MicroLaunch& micro, std::function<void()> kernel) {
  Machine machine(Options{});
  return run_micro(machine, micro, std::move(kernel));
}

inline void expect_finished(const RunResult& result) {
  EXPECT_FALSE(result.report) << result.text();
}

inline void expect_report(const RunResult& result, ReportKind kind, const std::string& words) {
  ASSERT_TRUE(result.report) << "the model saw nothing";
  EXPECT_STREQ(kind_name(result.report->kind), kind_name(kind)) << result.text();
  EXPECT_NE(result.report->message.find(words), std::string::npos) << "no \"" << words << "\" in: " << result.text();
}

}  // namespace tandem::model
