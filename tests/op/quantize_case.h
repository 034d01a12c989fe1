#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host_tensor.h"

namespace tandem::optest {

enum class Granularity { kTensor, kHead, kBlock };

// One call of tandem_quantize_fp8, and what it wrote.
struct QuantizeCase {
  bool packed = false;
  int64_t batch = 1;
  int64_t seqlen = 1;  // dense
  int64_t total = 0;   // packed
  int64_t nheads = 1;
  int64_t headdim = 64;
  int32_t dtype = TANDEM_BF16;
  std::vector<int32_t> cu_seqlens;
  std::vector<int32_t> seqused;  // empty: absent
  Layout x_layout, out_layout;

  Granularity granularity = Granularity::kBlock;
  int64_t blocks = 0;  // packed; 0: those of the longest sequence
  bool rotate = false;
  bool transposed = false;
  uint64_t seed = 0;

  std::vector<double> cos, sin;  // (positions, pairs); empty: no rotary embedding
  int32_t table_dtype = TANDEM_FP32;
  int64_t pairs = 0;
  bool interleaved = false;
  std::vector<int32_t> rotary_offset;  // empty: absent

  int32_t num_threads = 0;
  bool checked = false;

  int64_t begin(int64_t b) const;
  int64_t length(int64_t b) const;  // used
  int64_t slots() const;
  int64_t scale_blocks() const;
  int64_t rows() const { return packed ? total : batch * seqlen; }
  Shape x_shape() const;
  Shape out_shape() const;
  Shape scale_shape() const;

  int64_t x_index(int64_t b, int64_t row, int64_t head, int64_t column) const;
  int64_t out_index(int64_t b, int64_t row, int64_t head, int64_t column) const;
  int64_t scale_index(int64_t b, int64_t row, int64_t head) const;
};

struct Quantized {
  tandem_status status = TANDEM_OK;
  std::string error;          // the library's sentence, or what was written outside of the outputs
  std::vector<double> out;    // in the order of out_shape(), as e4m3 has it
  std::vector<double> scale;  // in the order of scale_shape()
  std::vector<double> x;      // as stored
};

// `x` in the order of x_shape().
Quantized quantize(const QuantizeCase& test, const std::vector<double>& x, int32_t backend);

}  // namespace tandem::optest
