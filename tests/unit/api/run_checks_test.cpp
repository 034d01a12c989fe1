// What a run checks beyond the problem: addresses, workspace, and values in checked mode.
#include "api/run_checks.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "rules.h"
#include "tandem/tandem.hpp"

namespace tandem {
namespace {

constexpr float kPoison = -12345.0f;

// Two sequences of one head and one column in buffers of 6 rows, on the reference backend.
struct PackedRun {
  std::vector<float> q = std::vector<float>(6), k = q, v = q, out = std::vector<float>(6, kPoison);
  std::vector<int32_t> cu_seqlens_q = {0, 2, 5}, cu_seqlens_k = {0, 4, 6};
  std::vector<int32_t> used_q = {2, 3}, used_k = {4, 2};
  std::vector<int32_t> lo = std::vector<int32_t>(6, 0), hi = std::vector<int32_t>(6, 100);
  VarlenForwardParams params;

  PackedRun() {
    params.exec.backend = TANDEM_BACKEND_REFERENCE;
    params.exec.checked = 1;
    params.q = view(q.data(), {6, 1, 1});
    params.k = view(k.data(), {6, 1, 1});
    params.v = view(v.data(), {6, 1, 1});
    params.out = view(out.data(), {6, 1, 1});
    params.cu_seqlens_q = view(cu_seqlens_q.data(), {3});
    params.cu_seqlens_k = view(cu_seqlens_k.data(), {3});
    params.seqused_q = view(used_q.data(), {2});
    params.seqused_k = view(used_k.data(), {2});
    params.mask.lo = view(lo.data(), {1, 6});
    params.mask.hi = view(hi.data(), {1, 6});
  }
  tandem_status run() { return tandem_varlen_forward(&params); }
};

struct Fault {
  std::string argument;
  std::function<void(PackedRun&)> change;
  std::vector<std::string> words;
};

void expect_faults(const std::vector<Fault>& faults) {
  for (const Fault& fault : faults) {
    PackedRun run;
    fault.change(run);
    EXPECT_EQ(run.run(), TANDEM_INVALID_ARGUMENT) << fault.argument;
    expect_sentence(tandem_last_error(), fault.argument, fault.words);
    for (float value : run.out) EXPECT_EQ(value, kPoison) << "written in spite of the error";
  }
}

TEST(RunChecks, AValidRunPasses) {
  PackedRun run;
  EXPECT_EQ(run.run(), TANDEM_OK) << tandem_last_error();
  EXPECT_EQ(run.out, std::vector<float>(6, 0.0f));
}

TEST(RunChecks, Addresses) {
  expect_faults({
      {"q.data", [](PackedRun& run) { run.params.q.data = nullptr; }, {"is NULL"}},
      {"out.data", [](PackedRun& run) { run.params.out.data = nullptr; }, {"is NULL"}},
      {"cu_seqlens_k.data", [](PackedRun& run) { run.params.cu_seqlens_k.data = nullptr; }, {"is NULL"}},
      {"mask.lo.data", [](PackedRun& run) { run.params.mask.lo.data = nullptr; }, {"is NULL"}},
      {"k.data",
       [](PackedRun& run) { run.params.k.data = reinterpret_cast<char*>(run.k.data()) + 2; },
       {"2 bytes past a multiple of 4", "fp32"}},
      {"out.data", [](PackedRun& run) { run.params.out.data = run.params.v.data; }, {"equal to v.data"}},
  });
}

TEST(RunChecks, OutputsMustNotBeOneAnother) {
  std::vector<float> storage(8, 1.0f);
  BackwardParams params;
  params.q = params.k = params.v = params.out = params.dout = view(storage.data(), {1, 1, 1, 1});
  params.lse = view(storage.data() + 1, {1, 1, 1});
  params.dq = view(storage.data() + 2, {1, 1, 1, 1});
  params.dk = view(storage.data() + 3, {1, 1, 1, 1});
  params.dv = params.dk;
  params.exec.backend = TANDEM_BACKEND_REFERENCE;
  EXPECT_EQ(tandem_backward(&params), TANDEM_INVALID_ARGUMENT);
  expect_sentence(tandem_last_error(), "dk.data", {"equal to dv.data"});
  params.dv = view(storage.data() + 4, {1, 1, 1, 1});
  EXPECT_EQ(tandem_backward(&params), TANDEM_OK) << tandem_last_error();
}

// A part of an output within another tensor, and a part of another tensor within an output.
TEST(RunChecks, OutputsMustNotOverlapOtherTensors) {
  std::vector<float> storage(4 * 24, 1.0f);
  const auto at = [&](int64_t first) { return view(storage.data() + first, {1, 3, 2, 4}); };
  ForwardParams params;
  params.exec.backend = TANDEM_BACKEND_REFERENCE;
  params.q = at(0);
  params.k = at(24);
  params.v = at(48);
  const auto expect_overlap = [&](const std::string& argument, const std::vector<std::string>& words) {
    EXPECT_EQ(tandem_forward(&params), TANDEM_INVALID_ARGUMENT);
    expect_sentence(tandem_last_error(), argument, words);
    EXPECT_EQ(storage, std::vector<float>(4 * 24, 1.0f));
  };
  params.out = at(71);
  expect_overlap("out.data", {"92 bytes into v", "out needs memory of its own"});
  params.v = at(72);
  params.out = at(49);
  expect_overlap("v.data", {"92 bytes into out", "out needs memory of its own"});
  params.out = at(72);
  expect_overlap("out.data", {"equal to v.data"});
  params.v = view(storage.data() + 48, {1, 3, 2, 4}, {0, 0, 4, 1});  // broadcast: 8 elements
  params.out = at(55);
  expect_overlap("out.data", {"28 bytes into v"});
  params.out = at(56);
  EXPECT_EQ(tandem_forward(&params), TANDEM_OK) << tandem_last_error();
}

TEST(RunChecks, SlicesOfOneBufferMayInterleave) {
  std::vector<float> storage(3 * 4 * 8);
  const auto slice = [&](int64_t part) { return view(storage.data() + part * 8, {1, 3, 2, 4}, {0, 32, 4, 1}); };
  ForwardParams params;
  params.exec.backend = TANDEM_BACKEND_REFERENCE;
  params.q = slice(0);
  params.k = slice(1);
  params.v = slice(2);
  params.out = slice(3);
  EXPECT_EQ(tandem_forward(&params), TANDEM_OK) << tandem_last_error();
  params.out.data = storage.data() + 3 * 8 - 1;
  EXPECT_EQ(tandem_forward(&params), TANDEM_INVALID_ARGUMENT);
  expect_sentence(tandem_last_error(), "out.data", {"28 bytes into v"});
}

TEST(RunChecks, TensorsWithoutElementsNeedNoAddress) {
  ForwardParams params;
  params.exec.backend = TANDEM_BACKEND_REFERENCE;
  params.q = params.out = view<float>(nullptr, {0, 5, 2, 8});
  params.k = params.v = view<float>(nullptr, {0, 7, 2, 8});
  params.lse = view<float>(nullptr, {0, 2, 5});
  EXPECT_EQ(tandem_forward(&params), TANDEM_OK) << tandem_last_error();
}

TEST(CheckedMode, Offsets) {  // C90
  expect_faults({
      {"cu_seqlens_q[0]", [](PackedRun& run) { run.cu_seqlens_q = {5, 5, 5}; }, {"is 5", "begin at 0"}},
      {"cu_seqlens_k[0]", [](PackedRun& run) { run.cu_seqlens_k[0] = -1; }, {"is -1", "begin at 0"}},
      {"cu_seqlens_q[2]", [](PackedRun& run) { run.cu_seqlens_q[2] = 1; }, {"is 1", "is 2", "never decrease"}},
      {"cu_seqlens_k[2]", [](PackedRun& run) { run.cu_seqlens_k[2] = 768; }, {"is 768", "k.shape[0] is 6"}},
  });
}

TEST(CheckedMode, UsedLengths) {
  expect_faults({
      {"seqused_q[1]", [](PackedRun& run) { run.used_q[1] = 4; }, {"is 4", "0 to 3"}},
      {"seqused_k[0]", [](PackedRun& run) { run.used_k[0] = -1; }, {"is -1", "0 to 4"}},
  });
}

TEST(CheckedMode, IntervalsThatCountFromElsewhere) {
  expect_faults({
      {"mask.lo", [](PackedRun& run) { run.lo[3] = 3; }, {"is 3", "sequence 1, head 0, row 1", "2 keys"}},
      {"mask.hi", [](PackedRun& run) { run.hi[0] = -1; }, {"is -1", "sequence 0, head 0, row 0", "4 keys"}},
  });
  PackedRun legal;  // clamped by definition, and row 5 belongs to no sequence
  legal.lo = {-9, 4, 2, -1, 0, 77};
  legal.hi = {0, 99, 2, 1, 0, -77};
  EXPECT_EQ(legal.run(), TANDEM_OK) << tandem_last_error();
}

TEST(CheckedMode, DenseLengths) {
  std::vector<float> storage(12, 1.0f);
  std::vector<int32_t> used = {2, 4};
  ForwardParams params;
  params.exec.backend = TANDEM_BACKEND_REFERENCE;
  params.exec.checked = 1;
  params.q = params.k = params.v = view(storage.data(), {2, 3, 1, 1});
  params.out = view(storage.data() + 6, {2, 3, 1, 1});
  params.seqused_k = view(used.data(), {2});
  EXPECT_EQ(tandem_forward(&params), TANDEM_INVALID_ARGUMENT);
  expect_sentence(tandem_last_error(), "seqused_k[1]", {"is 4", "0 to 3"});
  params.exec.checked = 0;
  EXPECT_EQ(tandem_forward(&params), TANDEM_OK) << tandem_last_error();
}

TEST(CheckedMode, TheVariableTurnsItOn) {
  PackedRun run;
  run.params.exec.checked = 0;
  run.cu_seqlens_k[2] = 768;
  EXPECT_EQ(run.run(), TANDEM_OK) << tandem_last_error();
  setenv("TANDEM_CHECK", "1", 1);
  EXPECT_EQ(run.run(), TANDEM_INVALID_ARGUMENT);
  setenv("TANDEM_CHECK", "0", 1);
  EXPECT_EQ(run.run(), TANDEM_OK) << tandem_last_error();
  setenv("TANDEM_CHECK", "yes", 1);
  EXPECT_EQ(run.run(), TANDEM_INVALID_ARGUMENT);
  expect_sentence(tandem_last_error(), "the environment variable TANDEM_CHECK", {"\"yes\"", "0 and 1"});
  unsetenv("TANDEM_CHECK");
}

TEST(CheckedMode, ScalesForAllBlocks) {
  AttentionProblem problem;
  problem.batch = 1;
  problem.nheads_q = problem.nheads_k = 1;
  problem.packed = true;
  problem.total_q = problem.total_k = 300;
  std::vector<int32_t> offsets = {0, 300};
  problem.cu_seqlens_q = problem.cu_seqlens_k = {offsets.data(), DType::kInt32, 1};
  problem.k_scale.dtype = DType::kFp32;
  problem.k_scale.block_stride = 1;
  problem.k_scale.blocks = 3;
  EXPECT_TRUE(check_values(problem).is_ok());
  problem.k_scale.blocks = 2;
  const Status status = check_values(problem);
  EXPECT_EQ(status.code(), TANDEM_INVALID_ARGUMENT);
  expect_sentence(status.message(), "k_scale.shape[2]", {"is 2", "3 blocks"});
}

// A device whose memory the host cannot read: its addresses are kFar beyond those of the storage that plays it.
constexpr uintptr_t kFar = uintptr_t{1} << 60;
std::vector<uint64_t> copied_bytes;

void* on_device(const std::vector<int32_t>& storage) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(storage.data()) + kFar);
}
Status copy_from_device(const Execution& exec, void* host, const void* device, uint64_t bytes) {
  EXPECT_EQ(exec.device_ordinal, 5);
  copied_bytes.push_back(bytes);
  std::memcpy(host, reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(device) - kFar), bytes);
  return Status::ok();
}

// Two sequences of two heads, with every array that is checked: offsets 2 elements apart, bounds with a head axis.
struct DeviceRun {
  std::vector<int32_t> offsets = {0, -7, 2, -7, 5}, used = {2, 3};
  std::vector<int32_t> lo = {0, 0, 0, 0, 0, -7, 1, 1, 1, 1, 1}, hi = {4, 4, 4, 4, 4};
  AttentionProblem problem;
  Backend backend{};

  DeviceRun() {
    copied_bytes.clear();
    backend.copy_to_host = copy_from_device;
    problem.packed = true;
    problem.batch = 2;
    problem.nheads_q = problem.nheads_k = 2;
    problem.total_q = problem.total_k = 5;
    problem.cu_seqlens_q = problem.cu_seqlens_k = {on_device(offsets), DType::kInt32, 2};
    problem.seqused_k = {on_device(used), DType::kInt32, 1};
    problem.lo = {on_device(lo), DType::kInt32, 0, 6, 1};
    problem.hi = {on_device(hi), DType::kInt32, 0, 0, 1};
    problem.exec.device_ordinal = 5;
  }
};

TEST(CheckedMode, ArraysInDeviceMemoryAreCopiedFirst) {
  DeviceRun run;
  const Status status = check_values(run.backend, run.problem);
  EXPECT_TRUE(status.is_ok()) << status.message();
  EXPECT_EQ(copied_bytes, (std::vector<uint64_t>{5 * 4, 5 * 4, 2 * 4, 11 * 4, 5 * 4}));  // from first to last element
}

TEST(CheckedMode, FaultsInDeviceMemoryAreReported) {
  const auto expect_fault = [](std::vector<int32_t> DeviceRun::* array, size_t index, int32_t value,
                               const std::string& argument) {
    DeviceRun run;
    (run.*array)[index] = value;
    const Status status = check_values(run.backend, run.problem);
    EXPECT_EQ(status.code(), TANDEM_INVALID_ARGUMENT);
    expect_sentence(status.message(), argument, {"is " + std::to_string(value)});
  };
  expect_fault(&DeviceRun::offsets, 4, 6, "cu_seqlens_q[2]");
  expect_fault(&DeviceRun::used, 1, 4, "seqused_k[1]");
  expect_fault(&DeviceRun::lo, 10, 9, "mask.lo");
  expect_fault(&DeviceRun::hi, 0, -1, "mask.hi");
}

TEST(CheckedMode, NothingIsCopiedThatHasNoElements) {
  DeviceRun run;
  run.problem = {};
  run.problem.seqused_q = run.problem.seqused_k = {nullptr, DType::kInt32, 1};
  run.problem.lo.dtype = DType::kInt32;
  run.problem.seqlen_q = run.problem.total_q = 5;
  run.problem.nheads_q = run.problem.nheads_k = 1;
  EXPECT_TRUE(check_values(run.backend, run.problem).is_ok());
  EXPECT_TRUE(copied_bytes.empty());
}

TEST(CheckedMode, ACopyThatFailsIsTheError) {
  DeviceRun run;
  run.backend.copy_to_host = [](const Execution&, void*, const void*, uint64_t) {
    return Status::unsupported("the stream is captured");
  };
  EXPECT_EQ(check_values(run.backend, run.problem).message(), "the stream is captured");
}

TEST(CheckedMode, QuantisationOfDeviceMemory) {
  DeviceRun run;
  QuantizeProblem problem;
  problem.exec.device_ordinal = 5;
  problem.packed = true;
  problem.batch = 2;
  problem.total = 5;
  problem.cu_seqlens = run.problem.cu_seqlens_q;
  problem.seqused = run.problem.seqused_k;
  EXPECT_TRUE(check_values(run.backend, problem).is_ok());
  EXPECT_EQ(copied_bytes, (std::vector<uint64_t>{5 * 4, 2 * 4}));
  problem.rotary_pairs = 8;
  problem.rotary_positions = 1;
  expect_sentence(check_values(run.backend, problem).message(), "rotary_offset is 0", {"sequence", "is 1"});
  problem.total = 1;
  expect_sentence(check_values(run.backend, problem).message(), "cu_seqlens", {"x.shape[0] is 1"});
}

TEST(Workspaces, MissingSmallOrMisaligned) {
  alignas(256) static char memory[1024];
  Workspace needed;
  Execution exec;
  EXPECT_TRUE(check_workspace(exec, needed).is_ok());
  needed.bytes = 512;
  const auto expect = [&](const std::string& argument, const std::vector<std::string>& words) {
    const Status status = check_workspace(exec, needed);
    EXPECT_EQ(status.code(), TANDEM_WORKSPACE_TOO_SMALL);
    expect_sentence(status.message(), argument, words);
  };
  expect("exec.workspace", {"is NULL", "512"});
  exec.workspace = memory;
  exec.workspace_bytes = 511;
  expect("exec.workspace_bytes", {"is 511", "512"});
  exec.workspace = memory + 128;
  exec.workspace_bytes = 800;
  expect("exec.workspace", {"misaligned", "256"});
  exec.workspace = memory + 256;
  EXPECT_TRUE(check_workspace(exec, needed).is_ok());
}

TEST(Workspaces, OutParametersAreRequired) {
  ForwardParams params;
  uint64_t number = 0;
  EXPECT_EQ(tandem_forward_workspace(&params, nullptr, &number), TANDEM_INVALID_ARGUMENT);
  expect_sentence(tandem_last_error(), "bytes is NULL", {});
  EXPECT_EQ(tandem_forward_workspace(&params, &number, nullptr), TANDEM_INVALID_ARGUMENT);
  expect_sentence(tandem_last_error(), "alignment is NULL", {});
}

}  // namespace
}  // namespace tandem
