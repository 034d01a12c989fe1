#include "safetensors.h"

#include <gtest/gtest.h>

#include <string>

#include "exit_codes.h"
#include "temporary_file.h"

namespace tandem::cli {
namespace {

std::string safetensors(const std::string& header, const std::string& data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return bytes + header + data;
}

TensorMap read(const std::string& bytes) {
  const TemporaryFile file(".safetensors");
  file.write(bytes);
  return read_safetensors(file.path());
}

std::string error_of(const std::string& bytes) {
  try {
    read(bytes);
  } catch (const CliError& error) {
    EXPECT_EQ(error.code(), kFileError);
    return error.what();
  }
  return "";
}

#define EXPECT_ERROR(bytes, words) EXPECT_NE(error_of(bytes).find(words), std::string::npos) << error_of(bytes)

TEST(Safetensors, ReadsTensorsInAnyOrder) {
  const TensorMap tensors = read(safetensors(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]},)"
      R"("a":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},"e":{"dtype":"I32","shape":[0],"data_offsets":[4,4]}})",
      std::string("\x00\x00\x80\x3f\x80\x3f\x00\xc0", 8)));
  EXPECT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors.at("a").at(0), 1.0);
  EXPECT_EQ(tensors.at("b").dtype(), TANDEM_BF16);
  EXPECT_EQ(tensors.at("b").at(1), -2.0);
  EXPECT_EQ(tensors.at("e").size(), 0);
}

TEST(Safetensors, RefusesInWords) {
  EXPECT_ERROR("", "too short");
  EXPECT_ERROR(std::string(8, '\xff') + "{}", "claims 18446744073709551615 bytes");
  EXPECT_ERROR(safetensors("[]", ""), "not a JSON object");
  EXPECT_ERROR(safetensors("{", ""), "not a JSON object");
  EXPECT_ERROR(safetensors(std::string(100000, '['), ""), "not a JSON object");
  EXPECT_ERROR(safetensors(R"({"q":1})", ""), "tensor 'q' is malformed");
  EXPECT_ERROR(safetensors(R"({"q":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "1234"), "malformed");
  EXPECT_ERROR(safetensors(R"({"q":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", "1234"), "malformed");
  EXPECT_ERROR(safetensors(R"({"q":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", "1234"), "malformed");
  EXPECT_ERROR(safetensors(R"({"q":{"dtype":"BOOL","shape":[4],"data_offsets":[0,4]}})", "1234"), "dtype BOOL");
  EXPECT_ERROR(safetensors(R"({"q":{"dtype":"F32","shape":[1,1,1,1,1,1,1],"data_offsets":[0,4]}})", "1234"),
               "more than 6 axes");
}

TEST(Safetensors, RefusesOffsetsThatDoNotMatch) {
  const auto with = [](const std::string& shape, const std::string& offsets) {
    return safetensors(R"({"q":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}", "12345678");
  };
  EXPECT_EQ(error_of(with("[2]", "[0,8]")), "");
  EXPECT_ERROR(with("[3]", "[0,8]"), "do not match");
  EXPECT_ERROR(with("[3]", "[0,12]"), "need 12 bytes");
  EXPECT_ERROR(with("[1]", "[0,4]"), "need 4 bytes of data, but it has 8");
  EXPECT_ERROR(with("[1]", "[4,8]"), "do not match");
  EXPECT_ERROR(with("[2]", "[8,0]"), "do not match");
  EXPECT_ERROR(with("[4294967296,4294967296]", "[0,8]"), "does not fit any memory");
  EXPECT_ERROR(with("[4611686018427387904]", "[0,8]"), "does not fit any memory");
  EXPECT_ERROR(with("[18446744073709551615]", "[0,8]"), "malformed");
  EXPECT_ERROR(with("[1000000000000]", "[0,4000000000000]"), "need 4000000000000 bytes");
}

TEST(Safetensors, RefusesOverlaps) {
  EXPECT_ERROR(safetensors(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                           R"("b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                           "1234"),
               "do not match");
}

TEST(Safetensors, Int64MustFitInt32) {
  const std::string header = R"({"lo":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})";
  EXPECT_EQ(read(safetensors(header, std::string("\xfe\xff\xff\xff\xff\xff\xff\xff", 8))).at("lo").at(0), -2);
  EXPECT_ERROR(safetensors(header, std::string("\x00\x00\x00\x80\x00\x00\x00\x00", 8)), "does not fit int32");
}

TEST(Safetensors, NoFileCrashesTheReader) {
  const std::string valid = safetensors(R"({"q":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}})", "12345678");
  for (size_t length = 0; length < valid.size(); ++length) EXPECT_NE(error_of(valid.substr(0, length)), "");
  for (size_t position = 0; position < valid.size(); ++position) {
    for (const char value : {'\0', '\xff', '9', '[', '"', '}'}) {
      std::string damaged = valid;
      damaged[position] = value;
      error_of(damaged);
    }
  }
}

TEST(Safetensors, WritesWhatItReads) {
  TensorMap tensors;
  for (const int32_t dtype :
       {TANDEM_FP16, TANDEM_BF16, TANDEM_FP32, TANDEM_FP64, TANDEM_INT32, TANDEM_E4M3, TANDEM_E5M2}) {
    TensorBuffer tensor(dtype, {3, 1});
    for (int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, static_cast<double>(2 - i));
    tensors[tandem_dtype_name(dtype)] = std::move(tensor);
  }
  tensors["empty"] = TensorBuffer(TANDEM_FP32, {0, 4});
  const TemporaryFile file(".safetensors");
  OutputFile output(file.path());
  write_safetensors(output, tensors);
  output.commit();
  const TensorMap again = read_safetensors(file.path());
  ASSERT_EQ(again.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(again.at(name).dtype(), tensor.dtype());
    EXPECT_EQ(again.at(name).shape(), tensor.shape());
    EXPECT_EQ(again.at(name).to_doubles(), tensor.to_doubles());
  }
}

}  // namespace
}  // namespace tandem::cli
