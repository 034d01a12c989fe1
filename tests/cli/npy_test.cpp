#include "npy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "exit_codes.h"
#include "temporary_file.h"

namespace tandem::cli {
namespace {

using namespace std::string_literals;

// A file as NumPy writes it.
std::string npy(const std::string& dict, const std::string& data, int version = 1) {
  std::string header = dict + "\n";
  std::string bytes = "\x93NUMPY"s + static_cast<char>(version) + '\0';
  const int length_bytes = version == 1 ? 2 : 4;
  for (int i = 0; i < length_bytes; ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return bytes + header + data;
}

std::string dict(const std::string& descr, const std::string& shape, const std::string& order = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }";
}

template <class T>
std::string bytes_of(std::initializer_list<T> values) {
  return {reinterpret_cast<const char*>(values.begin()), values.size() * sizeof(T)};
}

TensorBuffer read(const std::string& bytes) {
  const TemporaryFile file(".npy");
  file.write(bytes);
  return read_npy(file.path());
}

// The sentence of the error; "" if there is none.
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

TEST(Npy, ReadsEveryVersionAndType) {
  for (const int version : {1, 2, 3}) {
    const TensorBuffer tensor = read(npy(dict("<f4", "(2, 3)"), bytes_of<float>({1, 2, 3, 4, 5, -6}), version));
    EXPECT_EQ(tensor.dtype(), TANDEM_FP32);
    EXPECT_EQ(tensor.shape(), (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(tensor.at(5), -6);
  }
  EXPECT_EQ(read(npy(dict("<f8", "(1,)"), bytes_of<double>({0.1}))).at(0), 0.1);
  EXPECT_EQ(read(npy(dict("<f2", "(1,)"), "\x00\x3c"s)).at(0), 1.0);
  EXPECT_EQ(read(npy(dict("<i4", "(2,)"), bytes_of<int32_t>({7, -8}))).at(1), -8);
  EXPECT_EQ(read(npy(dict("<i8", "(2,)"), bytes_of<int64_t>({7, -8}))).dtype(), TANDEM_INT32);
  EXPECT_EQ(read(npy(dict("<f4", "()"), bytes_of<float>({3}))).size(), 1);
  EXPECT_EQ(read(npy(dict("<f4", "(0, 5)"), "")).size(), 0);
}

TEST(Npy, HeaderIsReadAsPythonWould) {
  const std::string data = bytes_of<float>({1, 2});
  EXPECT_EQ(read(npy("{\"shape\":(2,),\"fortran_order\":False,\"descr\":\"<f4\"}", data)).size(), 2);
  EXPECT_EQ(read(npy("  { 'shape' : ( 2 , ) , 'descr':'<f4', 'fortran_order' : False }   ", data)).size(), 2);
}

TEST(Npy, RefusesInWords) {
  EXPECT_ERROR("", "too short");
  EXPECT_ERROR("PK\x03\x04 no such thing", "not a .npy file");
  EXPECT_ERROR(npy(dict("<f4", "(1,)"), "1234", 9), "unknown version 9");
  EXPECT_ERROR(npy(dict("<f4", "(2,)", "True"), bytes_of<float>({1, 2})), "Fortran order");
  EXPECT_ERROR(npy(dict(">f4", "(1,)"), "1234"), "big-endian");
  EXPECT_ERROR(npy(dict("<c8", "(1,)"), "12345678"), "dtype <c8");
  EXPECT_ERROR(npy(dict("|V2", "(1,)"), "12"), "no bf16");
  EXPECT_ERROR(npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", "1234"), "structured");
  EXPECT_ERROR(npy(dict("<i8", "(1,)"), bytes_of<int64_t>({int64_t{1} << 31})), "2147483648, which does not fit int32");
  EXPECT_ERROR(npy(dict("<f4", "(1, 1, 1, 1, 1, 1, 1)"), "1234"), "more than 6 axes");
}

TEST(Npy, RefusesSizesThatDoNotMatch) {
  EXPECT_ERROR(npy(dict("<f4", "(3,)"), bytes_of<float>({1, 2})), "needs 12 bytes of data, but it has 8");
  EXPECT_ERROR(npy(dict("<f4", "(1,)"), bytes_of<float>({1, 2})), "needs 4 bytes of data, but it has 8");
  EXPECT_ERROR(npy(dict("<f4", "(4611686018427387904,)"), "1234"), "does not fit any memory");
  EXPECT_ERROR(npy(dict("<f4", "(4294967296, 4294967296)"), "1234"), "does not fit any memory");
  EXPECT_ERROR(npy(dict("<f4", "(99999999999999999999,)"), "1234"), "64-bit");
  EXPECT_ERROR(npy(dict("<f4", "(1000000000000,)"), "1234"), "needs 4000000000000 bytes");
  EXPECT_ERROR("\x93NUMPY\x02\x00\xff\xff\xff\xff{}"s, "longer than the file");
  EXPECT_ERROR("\x93NUMPY\x01\x00\xff\x7f{}"s, "longer than the file");
}

TEST(Npy, RefusesMalformedHeaders) {
  for (const char* text : {"", "{", "}", "[]", "{'descr': '<f4'}", "{'descr': '<f4, 'fortran_order': False}",
                           "{'shape'}", "{'shape': (1}", "{'shape': (-1,)}", "{'shape': (1.5,)}", "{'shape': 1}",
                           "{'fortran_order': Maybe}", "{'other': 1}", "{'descr': '<f4' 'shape': (1,)}"}) {
    EXPECT_ERROR(npy(text, "1234"), "malformed") << text;
  }
  EXPECT_ERROR(npy(dict("<f4", "(1,)") + "; import os", "1234"), "malformed");
}

TEST(Npy, NoFileCrashesTheReader) {
  const std::string valid = npy(dict("<f4", "(2, 2)"), bytes_of<float>({1, 2, 3, 4}));
  for (size_t length = 0; length < valid.size(); ++length) EXPECT_NE(error_of(valid.substr(0, length)), "");
  for (size_t position = 0; position < valid.size(); ++position) {
    for (const char value : {'\0', '\xff', '9', '(', '\'', '\n'}) {
      std::string damaged = valid;
      damaged[position] = value;
      error_of(damaged);
    }
  }
}

TEST(Npy, WritesWhatItReads) {
  for (const int32_t dtype : {TANDEM_FP16, TANDEM_FP32, TANDEM_FP64, TANDEM_INT32}) {
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, {3}, {0}, {2, 3}, {1, 2, 3, 2}}) {
      TensorBuffer tensor(dtype, shape);
      for (int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, static_cast<double>(i - 2));
      const TemporaryFile file(".npy");
      OutputFile output(file.path());
      write_npy(output, tensor);
      output.commit();
      EXPECT_EQ((file.read().size() - static_cast<size_t>(tensor.bytes())) % 64, 0u);
      const TensorBuffer again = read_npy(file.path());
      EXPECT_EQ(again.dtype(), dtype);
      EXPECT_EQ(again.shape(), shape);
      EXPECT_EQ(again.to_doubles(), tensor.to_doubles());
    }
  }
}

TEST(Npy, HoldsNoBf16) {
  EXPECT_FALSE(npy_can_hold(TANDEM_BF16));
  EXPECT_FALSE(npy_can_hold(TANDEM_E4M3));
  EXPECT_TRUE(npy_can_hold(TANDEM_FP16));
}

}  // namespace
}  // namespace tandem::cli
