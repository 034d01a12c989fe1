#include "quantize_definition.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "float_types.h"

namespace tandem::optest {
namespace {

// Sylvester's doubling, and Paley's construction for 12 = 11 + 1 where the size has a factor of 3.
std::vector<std::vector<double>> hadamard(int64_t size) {
  std::vector<std::vector<double>> h = {{1}};
  if (size % 3 == 0) {
    bool square[11] = {};
    for (int n = 1; n < 11; ++n) square[n * n % 11] = true;
    h.assign(12, std::vector<double>(12, -1));
    for (int i = 0; i < 12; ++i) {
      for (int j = 0; j < 12; ++j) {
        if (i == 0 || i == j || (j > 0 && square[(i - j + 11) % 11]))
          h[static_cast<size_t>(i)][static_cast<size_t>(j)] = 1;
      }
    }
  }
  while (static_cast<int64_t>(h.size()) < size) {  // the Sylvester part is the inner one
    std::vector<std::vector<double>> doubled(2 * h.size(), std::vector<double>(2 * h.size()));
    for (size_t i = 0; i < doubled.size(); ++i) {
      for (size_t j = 0; j < doubled.size(); ++j) doubled[i][j] = h[i / 2][j / 2] * (i % 2 == 1 && j % 2 == 1 ? -1 : 1);
    }
    h = doubled;
  }
  return h;
}

// Bits of splitmix64, from its public definition.
double sign_of(uint64_t seed, int64_t column) {
  uint64_t state = seed;
  uint64_t output = 0;
  for (int64_t n = 0; n <= column / 64; ++n) {
    state += 0x9e3779b97f4a7c15;
    output = state;
    output = (output ^ (output >> 30)) * 0xbf58476d1ce4e5b9;
    output = (output ^ (output >> 27)) * 0x94d049bb133111eb;
    output ^= output >> 31;
  }
  return output >> (column % 64) & 1 ? -1 : 1;
}

class Definition {
 public:
  explicit Definition(const QuantizeCase& test) : test_(test) {
    if (!test.rotate) return;
    matrix_ = hadamard(test.headdim);
    for (std::vector<double>& line : matrix_) {
      for (size_t c = 0; c < line.size(); ++c) line[c] *= sign_of(test.seed, static_cast<int64_t>(c));
    }
  }

  // What is to be rounded.
  std::vector<double> row(const std::vector<double>& x, int64_t b, int64_t i, int64_t h) const {
    const auto begin = x.begin() + test_.x_index(b, i, h, 0);
    std::vector<double> values(begin, begin + test_.headdim);
    embed(b, i, values);
    return test_.rotate ? rotated(values) : values;
  }

 private:
  void embed(int64_t b, int64_t i, std::vector<double>& x) const {
    const int64_t offset = test_.rotary_offset.empty() ? 0 : test_.rotary_offset[static_cast<size_t>(b)];
    for (int64_t n = 0; n < test_.pairs; ++n) {
      const size_t entry = static_cast<size_t>((offset + i) * test_.pairs + n);
      const double cos = round_to(test_.table_dtype, test_.cos[entry]);
      const double sin = round_to(test_.table_dtype, test_.sin[entry]);
      const size_t first = static_cast<size_t>(test_.interleaved ? 2 * n : n);
      const size_t second = static_cast<size_t>(test_.interleaved ? 2 * n + 1 : test_.pairs + n);
      const double a = x[first], c = x[second];
      x[first] = a * cos - c * sin;
      x[second] = c * cos + a * sin;
    }
  }

  std::vector<double> rotated(const std::vector<double>& x) const {
    std::vector<double> result;
    for (const std::vector<double>& line : matrix_) {
      double sum = 0;
      for (size_t c = 0; c < x.size(); ++c) sum += line[c] * x[c];
      result.push_back(sum / std::sqrt(static_cast<double>(test_.headdim)));
    }
    return result;
  }

  const QuantizeCase& test_;
  std::vector<std::vector<double>> matrix_;  // H D
};

std::string at(const char* what, size_t index, double got, double wanted) {
  return std::string(what) + " " + std::to_string(index) + " is " + std::to_string(got) + ", not " +
         std::to_string(wanted);
}

// Calls visit(b, i, h, what is to be rounded) for each row of each sequence.
template <typename Visit>
void for_each_row(const QuantizeCase& test, const std::vector<double>& x, const Visit& visit) {
  const Definition definition(test);
  for (int64_t b = 0; b < test.batch; ++b) {
    for (int64_t h = 0; h < test.nheads; ++h) {
      for (int64_t i = 0; i < test.length(b); ++i) visit(b, i, h, definition.row(x, b, i, h));
    }
  }
}

std::string fault_of_scales(const QuantizeCase& test, const Quantized& got) {
  std::vector<double> scale(got.scale.size(), 0);
  for_each_row(test, got.x, [&](int64_t b, int64_t i, int64_t h, const std::vector<double>& y) {
    double& largest = scale[static_cast<size_t>(test.scale_index(b, i, h))];
    for (double value : y) {
      if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
    }
  });
  for (size_t n = 0; n < scale.size(); ++n) {
    const double wanted = std::max(scale[n] / 448, 0x1p-126);
    if (!(std::fabs(got.scale[n] - wanted) <= 2e-6 * wanted)) return at("scale", n, got.scale[n], wanted);
  }
  return "";
}

// The e4m3 number nearest to y / scale, but for the rounding of y itself in fp32.
bool is_rounded(double got, double wanted) {
  if (!std::isfinite(wanted)) return std::isnan(got);
  return std::fabs(got - wanted) <= ulp(TANDEM_E4M3, std::fabs(got)) / 2 + 448 * 1e-6;
}

std::string fault_of_out(const QuantizeCase& test, const Quantized& got) {
  std::string fault;
  std::vector<bool> written(got.out.size());
  for_each_row(test, got.x, [&](int64_t b, int64_t i, int64_t h, const std::vector<double>& y) {
    for (size_t c = 0; c < y.size(); ++c) {
      const size_t index = static_cast<size_t>(test.out_index(b, i, h, static_cast<int64_t>(c)));
      written[index] = true;
      const double wanted = y[c] / got.scale[static_cast<size_t>(test.scale_index(b, i, h))];
      if (!fault.empty() || is_rounded(got.out[index], wanted)) continue;
      fault = at("element", index, got.out[index], wanted) + ": sequence " + std::to_string(b) + ", row " +
              std::to_string(i) + ", head " + std::to_string(h) + ", column " + std::to_string(c);
    }
  });
  for (size_t n = 0; n < written.size() && fault.empty(); ++n) {
    if (!written[n] && (got.out[n] != 0 || std::signbit(got.out[n]))) {
      fault = at("element", n, got.out[n], 0) + ", which no row has";
    }
  }
  return fault;
}

// Offsets with gaps before, between and after, empty sequences among them; each owns rows that it does not use.
void choose_lengths(QuantizeCase& test, std::mt19937_64& random) {
  const auto below = [&](uint64_t bound) { return static_cast<int32_t>(random() % bound); };
  int32_t row = below(20);
  for (int64_t b = 0; test.packed && b <= test.batch; ++b) {
    test.cu_seqlens.push_back(row);
    row += below(3) == 0 ? below(3) : below(300);
  }
  if (test.packed) test.total = test.cu_seqlens.back() + below(20);
  if (below(2) == 0) return;
  std::vector<int32_t> used;
  for (int64_t b = 0; b < test.batch; ++b) used.push_back(below(static_cast<uint64_t>(test.length(b)) + 1));
  test.seqused = used;
}

}  // namespace

std::string definition_fault(const QuantizeCase& test, const Quantized& got) {
  if (!got.error.empty()) return got.error;
  QuantizeCase counted = test;
  counted.blocks = test.scale_blocks();  // for each element it would look for the longest sequence anew
  const std::string fault = fault_of_scales(counted, got);
  return fault.empty() ? fault_of_out(counted, got) : fault;
}

std::vector<double> random_values(const QuantizeCase& test, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> values(static_cast<size_t>(test.rows() * test.nheads * test.headdim));
  for (double& value : values) value = normal(random);
  return values;
}

QuantizeCase dense_case(int64_t batch, int64_t seqlen, int64_t nheads, int64_t headdim) {
  QuantizeCase test;
  test.batch = batch;
  test.seqlen = seqlen;
  test.nheads = nheads;
  test.headdim = headdim;
  return test;
}

QuantizeCase packed_case(std::vector<int32_t> cu_seqlens, int64_t total, int64_t nheads, int64_t headdim) {
  QuantizeCase test = dense_case(static_cast<int64_t>(cu_seqlens.size()) - 1, 0, nheads, headdim);
  test.packed = true;
  test.total = total;
  test.cu_seqlens = std::move(cu_seqlens);
  return test;
}

void add_rotary_tables(QuantizeCase& test, int64_t positions, int64_t pairs) {
  test.pairs = pairs;
  for (int64_t position = 0; position < positions; ++position) {
    for (int64_t n = 0; n < pairs; ++n) {
      const double angle = static_cast<double>(position) * std::pow(10000.0, -static_cast<double>(n) / pairs);
      test.cos.push_back(std::cos(angle));
      test.sin.push_back(std::sin(angle));
    }
  }
}

QuantizeCase random_quantize_case(uint64_t seed, const std::vector<int32_t>& dtypes) {
  constexpr int64_t kHeadDims[] = {8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256};
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t bound) { return static_cast<int64_t>(random() % bound); };
  QuantizeCase test;
  test.packed = below(2) == 0;
  test.batch = 1 + below(4);
  test.seqlen = test.packed ? 0 : below(300);
  test.nheads = 1 + below(4);
  test.headdim = below(4) == 0 ? 1 + below(256) : kHeadDims[below(11)];
  test.dtype = dtypes[static_cast<size_t>(below(dtypes.size()))];
  test.granularity = static_cast<Granularity>(below(3));
  choose_lengths(test, random);
  if (test.packed && below(3) == 0) test.blocks = 1 + below(3);  // may be fewer than the longest sequence has
  test.transposed = below(3) == 0;
  test.x_layout.padding = below(3) == 0 ? below(20) : 0;
  test.out_layout.padding = below(3) == 0 ? below(20) : 0;
  test.x_layout.offset = below(4) == 0 ? below(9) : 0;
  test.seed = random();
  if (test.transposed) return test;
  const bool has_hadamard = std::find(kHeadDims, std::end(kHeadDims), test.headdim) != std::end(kHeadDims);
  test.rotate = has_hadamard && below(2) == 0;
  if (test.headdim < 2 || below(2) == 0) return test;
  test.interleaved = below(2) == 0;
  test.table_dtype = below(2) == 0 ? test.dtype : int32_t{TANDEM_FP32};
  for (int64_t b = 0; b < test.batch; ++b) test.rotary_offset.push_back(static_cast<int32_t>(below(50)));
  add_rotary_tables(test, 50 + std::max<int64_t>(test.seqlen, 300), 1 + below(static_cast<uint64_t>(test.headdim) / 2));
  return test;
}

}  // namespace tandem::optest
