#include "api/backends.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "api/last_error.h"
#include "gpu_build.h"
#include "tandem/tandem.h"

namespace tandem {
namespace {

constexpr tandem_device kCpu = {TANDEM_CPU, 0};
constexpr tandem_device kCuda = {TANDEM_CUDA, 0};

Status is_available(int32_t) {
  return Status::ok();
}
Status is_broken(int32_t ordinal) {
  return {TANDEM_NO_DEVICE, "device " + std::to_string(ordinal) + " is of another generation"};
}

Backend fake(int32_t id, const char* name, int32_t device_type, Status (*available)(int32_t) = is_available) {
  Backend backend{};
  backend.id = id;
  backend.name = name;
  backend.device_type = device_type;
  backend.available = available;
  return backend;
}

const Backend kFakeTiled = fake(TANDEM_BACKEND_TILED, "tiled", TANDEM_CPU);
const Backend kFakeReference = fake(TANDEM_BACKEND_REFERENCE, "reference", TANDEM_CPU);
const Backend kFakeSm90 = fake(TANDEM_BACKEND_SM90, "sm90", TANDEM_CUDA);
const Backend kBrokenSm90 = fake(TANDEM_BACKEND_SM90, "sm90", TANDEM_CUDA, is_broken);
const BackendList kCpuOnly = {&kFakeTiled, &kFakeReference};
const BackendList kAll = {&kFakeSm90, &kFakeTiled, &kFakeReference};

struct Choice {
  Status status;
  const Backend* backend = nullptr;
};

Choice choose(const BackendList& built, int32_t requested, const char* variable, tandem_device device) {
  Choice choice;
  choice.status = select_backend(built, "exec.backend", requested, variable, device, &choice.backend);
  return choice;
}

void expect_refusal(const Choice& choice, tandem_status code, const std::string& words) {
  EXPECT_EQ(choice.status.code(), code);
  EXPECT_NE(choice.status.message().find(words), std::string::npos) << choice.status.message();
  EXPECT_EQ(choice.backend, nullptr);
}

TEST(BackendChoice, AutoTakesTheFirstOfTheDevice) {
  EXPECT_EQ(choose(kAll, TANDEM_BACKEND_AUTO, nullptr, kCpu).backend, &kFakeTiled);
  EXPECT_EQ(choose(kAll, TANDEM_BACKEND_AUTO, "", kCpu).backend, &kFakeTiled);
  EXPECT_EQ(choose(kAll, TANDEM_BACKEND_AUTO, "auto", kCuda).backend, &kFakeSm90);
}

TEST(BackendChoice, TheArgumentBeatsTheVariable) {
  EXPECT_EQ(choose(kAll, TANDEM_BACKEND_AUTO, "reference", kCpu).backend, &kFakeReference);
  EXPECT_EQ(choose(kAll, TANDEM_BACKEND_TILED, "reference", kCpu).backend, &kFakeTiled);
  EXPECT_EQ(choose(kAll, TANDEM_BACKEND_REFERENCE, "nonsense", kCpu).backend, &kFakeReference);
}

TEST(BackendChoice, UnknownNamesAndNumbers) {
  expect_refusal(choose(kAll, TANDEM_BACKEND_AUTO, "cuda", kCpu), TANDEM_INVALID_ARGUMENT,
                 "TANDEM_BACKEND is \"cuda\"; allowed are auto, reference, tiled and sm90");
  expect_refusal(choose(kAll, 17, nullptr, kCpu), TANDEM_INVALID_ARGUMENT, "exec.backend is 17; allowed are 0 (auto)");
}

TEST(BackendChoice, ForcingOneThatCannotServeIsAnError) {  // C93, C103
  expect_refusal(choose(kCpuOnly, TANDEM_BACKEND_SM90, nullptr, kCpu), TANDEM_UNSUPPORTED,
                 "sm90 is not part of this library, which was built with tiled, reference");
  expect_refusal(choose(kAll, TANDEM_BACKEND_SM90, nullptr, kCpu), TANDEM_UNSUPPORTED,
                 "sm90 runs on TANDEM_CUDA but device.type is TANDEM_CPU");
  expect_refusal(choose(kAll, TANDEM_BACKEND_AUTO, "tiled", kCuda), TANDEM_UNSUPPORTED,
                 "tiled runs on TANDEM_CPU but device.type is TANDEM_CUDA");
  expect_refusal(choose(kCpuOnly, TANDEM_BACKEND_AUTO, nullptr, kCuda), TANDEM_NO_DEVICE, "without a backend");
  expect_refusal(choose(kCpuOnly, TANDEM_BACKEND_SM90, nullptr, kCuda), TANDEM_UNSUPPORTED,
                 "sm90 is not part of this library, which was built with tiled, reference");
}

TEST(BackendChoice, ADeviceThatCannotRunSaysWhy) {
  const BackendList built = {&kBrokenSm90, &kFakeTiled};
  const tandem_device second = {TANDEM_CUDA, 1};
  expect_refusal(choose(built, TANDEM_BACKEND_AUTO, nullptr, second), TANDEM_NO_DEVICE, "device 1 is of another");
  expect_refusal(choose(built, TANDEM_BACKEND_SM90, nullptr, second), TANDEM_NO_DEVICE, "device 1 is of another");
  EXPECT_EQ(choose(built, TANDEM_BACKEND_AUTO, nullptr, kCpu).backend, &kFakeTiled);
}

// --------------------------------------------------------------------------------------------- through the C interface

class BackendVariable {
 public:
  explicit BackendVariable(const char* value) { setenv("TANDEM_BACKEND", value, 1); }
  ~BackendVariable() { unsetenv("TANDEM_BACKEND"); }
};

TEST(BackendQueries, SelectFollowsTheVariable) {
  int32_t backend = -1;
  {
    BackendVariable variable("reference");
    ASSERT_EQ(tandem_backend_select(TANDEM_BACKEND_AUTO, kCpu, &backend), TANDEM_OK) << tandem_last_error();
    EXPECT_EQ(backend, TANDEM_BACKEND_REFERENCE);
  }
  {
    BackendVariable variable("fastest");
    EXPECT_EQ(tandem_backend_select(TANDEM_BACKEND_AUTO, kCpu, &backend), TANDEM_INVALID_ARGUMENT);
  }
  ASSERT_EQ(tandem_backend_select(TANDEM_BACKEND_REFERENCE, kCpu, &backend), TANDEM_OK);
  EXPECT_EQ(backend, TANDEM_BACKEND_REFERENCE);
  EXPECT_EQ(tandem_backend_select(TANDEM_BACKEND_AUTO, kCpu, nullptr), TANDEM_INVALID_ARGUMENT);
  EXPECT_EQ(tandem_backend_select(TANDEM_BACKEND_AUTO, {5, 0}, &backend), TANDEM_INVALID_ARGUMENT);
}

TEST(BackendQueries, AvailableAndDescription) {
  EXPECT_EQ(tandem_backend_available(TANDEM_BACKEND_REFERENCE, kCpu), TANDEM_OK) << tandem_last_error();
  EXPECT_EQ(tandem_backend_available(TANDEM_BACKEND_REFERENCE, kCuda), TANDEM_UNSUPPORTED);
  EXPECT_EQ(tandem_backend_available(TANDEM_BACKEND_AUTO, kCpu), TANDEM_INVALID_ARGUMENT);
  EXPECT_EQ(tandem_backend_available(4, kCpu), TANDEM_INVALID_ARGUMENT);
  EXPECT_STRNE(tandem_backend_description(TANDEM_BACKEND_REFERENCE, kCpu), "");
}

TEST(BackendQueries, TheGpuOrWhyThereIsNone) {  // C103
  constexpr int32_t kNoMachineHasIt = 1000;
  for (const int32_t ordinal : {0, kNoMachineHasIt}) {
    const tandem_device device = {TANDEM_CUDA, ordinal};
    const std::string name = "CUDA device " + std::to_string(ordinal) + " ";
    const tandem_status status = tandem_backend_available(TANDEM_BACKEND_SM90, device);
    const std::string reason = tandem_last_error();
    const std::string description = tandem_backend_description(TANDEM_BACKEND_SM90, device);
    if (!has_sm90()) {
      EXPECT_EQ(status, TANDEM_UNSUPPORTED);
      EXPECT_NE(reason.find("is not part of this library"), std::string::npos) << reason;
      EXPECT_EQ(description, reason);
    } else if (status == TANDEM_OK && ordinal == 0) {
      EXPECT_NE(description.find(" SMs, "), std::string::npos) << description;
    } else {
      EXPECT_EQ(status, TANDEM_NO_DEVICE);
      EXPECT_EQ(reason.rfind(name, 0), 0u) << reason;
      EXPECT_EQ(reason.find("kernel image"), std::string::npos) << reason;
      EXPECT_EQ(description, reason);
    }
  }
}

TEST(BackendQueries, AutoOnAGpu) {
  int32_t backend = -1;
  const tandem_status selected = tandem_backend_select(TANDEM_BACKEND_AUTO, kCuda, &backend);
  const std::string reason = tandem_last_error();
  if (!has_sm90()) {
    EXPECT_EQ(selected, TANDEM_NO_DEVICE);
    EXPECT_NE(reason.find("built without a backend for it"), std::string::npos) << reason;
    return;
  }
  EXPECT_EQ(selected, tandem_backend_available(TANDEM_BACKEND_SM90, kCuda));
  EXPECT_EQ(reason, tandem_last_error());
  EXPECT_EQ(backend, selected == TANDEM_OK ? TANDEM_BACKEND_SM90 : -1);
}

TEST(BackendQueries, Names) {
  EXPECT_STREQ(tandem_backend_name(TANDEM_BACKEND_AUTO), "auto");
  EXPECT_STREQ(tandem_backend_name(TANDEM_BACKEND_SM90), "sm90");
  EXPECT_STREQ(tandem_backend_name(4), "unknown backend");
  EXPECT_STREQ(tandem_backend_name(-1), "unknown backend");
  EXPECT_STREQ(tandem_status_name(TANDEM_NO_DEVICE), "TANDEM_NO_DEVICE");
  EXPECT_STREQ(tandem_status_name(8), "unknown status");
  EXPECT_STREQ(tandem_dtype_name(TANDEM_E5M2), "e5m2");
  EXPECT_STREQ(tandem_dtype_name(-1), "unknown dtype");
  EXPECT_STREQ(tandem_version(), "0.1.0");
}

TEST(BackendQueries, Prepare) {
  EXPECT_EQ(tandem_prepare(kCpu), TANDEM_OK) << tandem_last_error();
  EXPECT_EQ(tandem_prepare(kCuda),
            has_sm90() ? tandem_backend_available(TANDEM_BACKEND_SM90, kCuda) : tandem_status{TANDEM_NO_DEVICE});
  EXPECT_EQ(tandem_prepare({TANDEM_CPU, 3}), TANDEM_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace tandem
