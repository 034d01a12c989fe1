#include "sm90/tensor_map_spec.h"

#include <gtest/gtest.h>

#include <functional>

namespace tandem::sm90 {
namespace {

TensorMapSpec valid() {
  TensorMapSpec spec;
  spec.base = reinterpret_cast<const void*>(uintptr_t{4096});
  spec.dtype = DType::kBf16;
  spec.rank = 3;
  spec.dims[0] = 128;
  spec.dims[1] = 1000;
  spec.dims[2] = 4;
  spec.strides_bytes[1] = 256;
  spec.strides_bytes[2] = 256000;
  spec.box[0] = 64;
  spec.box[1] = 128;
  spec.box[2] = 1;
  return spec;
}

TEST(TensorMapSpec, AValidOneIsValid) {
  EXPECT_TRUE(check_tensor_map(valid()).is_ok());
}

TEST(TensorMapSpec, RefusesInWordsWhatTheHardwareRefuses) {
  struct Case {
    const char* words;
    std::function<void(TensorMapSpec&)> spoil;
  };
  const Case cases[] = {
      {"element type fp64", [](TensorMapSpec& s) { s.dtype = DType::kFp64; }},
      {"it has 6 axes", [](TensorMapSpec& s) { s.rank = 6; }},
      {"base is not a multiple of 16", [](TensorMapSpec& s) { s.base = reinterpret_cast<const void*>(uintptr_t{8}); }},
      {"axis 1 has 0 elements", [](TensorMapSpec& s) { s.dims[1] = 0; }},
      {"axis 2 has 4294967297 elements", [](TensorMapSpec& s) { s.dims[2] = (int64_t{1} << 32) + 1; }},
      {"axis 1's box has 257 elements", [](TensorMapSpec& s) { s.box[1] = 257; }},
      {"axis 1 has a stride of 264 bytes", [](TensorMapSpec& s) { s.strides_bytes[1] = 264; }},
      {"axis 2 has a stride of 0 bytes", [](TensorMapSpec& s) { s.strides_bytes[2] = 0; }},
      {"axis 2 has a stride of 1099511627776 bytes", [](TensorMapSpec& s) { s.strides_bytes[2] = int64_t{1} << 40; }},
      {"a box's row has 256 bytes", [](TensorMapSpec& s) { s.box[0] = 128; }},
      {"a box's row has 128 bytes", [](TensorMapSpec& s) { s.swizzle = Swizzle::k64Bytes; }},
      {"row is not a multiple of 16 bytes", [](TensorMapSpec& s) { s.box[0] = 12; }},
  };
  for (const Case& test : cases) {
    TensorMapSpec spec = valid();
    test.spoil(spec);
    const Status status = check_tensor_map(spec);
    EXPECT_EQ(status.code(), TANDEM_UNSUPPORTED) << test.words;
    EXPECT_NE(status.message().find(test.words), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace tandem::sm90
