#include "merge_case.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>

#include "tandem/tandem.h"

namespace tandem::gpu_test {
namespace {

constexpr double kWeightError = 0x1p-19;  // relative, of the kernel's exponentials, and of a few sums in fp32
constexpr double kMeanLse = 20;           // the sinks' too, so that they count

double unit_in_last_place(DType dtype, double value) {
  const double digits = dtype == DType::kFp32 ? 0x1p-23 : dtype == DType::kFp16 ? 0x1p-10 : 0x1p-7;
  const double smallest = dtype == DType::kFp16 ? 0x1p-24 : 0x1p-126;
  return std::max(std::abs(value) * digits, smallest);
}

template <typename AnyTensor>
int64_t element_of(const AnyTensor& tensor, const MergeData::Row& at) {
  return at.batch * tensor.batch_stride + at.row * tensor.row_stride + at.head * tensor.head_stride;
}

bool is_near(double got, double want, double allowed) {
  return got == want || std::abs(got - want) <= allowed || (std::isnan(got) && std::isnan(want));
}

std::string different(const char* what, double got, double want) {
  return std::string(what) + " is " + std::to_string(got) + ", not " + std::to_string(want);
}

}  // namespace

std::string MergeCase::text() const {
  char text[200];
  std::snprintf(
      text, sizeof(text),
      "%lld parts, batch %lld, rows %lld, heads %lld, headdim_v %lld, %s to %s, sink %d, lse %d, padding %lld, "
      "spread %g, NaN %d, seed %llu",
      static_cast<long long>(parts), static_cast<long long>(batch), static_cast<long long>(rows),
      static_cast<long long>(nheads), static_cast<long long>(headdim_v), dtype_name(in), dtype_name(out), sink,
      wants_lse, static_cast<long long>(padding), lse_spread, nan_in_lse, static_cast<unsigned long long>(seed));
  return text;
}

MergeData::MergeData(const MergeCase& test) : test_(test) {
  std::mt19937_64 random(test.seed);
  std::normal_distribution<double> normal(0.3, 1.0);
  const int64_t row_count = test.batch * test.rows;
  out_partial_.resize(static_cast<size_t>(test.parts * row_count * row_elems() * dtype_bytes(test.in)), 0xff);
  lse_partial_.resize(static_cast<size_t>(test.parts * test.batch * test.nheads * head_elems()), NAN);
  for (int64_t head = 0; head < test.nheads; ++head) sink_.push_back(static_cast<float>(kMeanLse + normal(random)));
  const MergeProblem p = problem({out_partial_.data(), lse_partial_.data(), sink_.data(), nullptr, nullptr});
  for (int64_t n = 0; n < p.parts; ++n) {
    for (int64_t row = 0; row < row_count * p.nheads; ++row) {
      const Row at = {row / p.nheads / p.rows, row % p.nheads, row / p.nheads % p.rows};
      auto lse = static_cast<float>(kMeanLse + test.lse_spread * normal(random));
      const bool empty = random() % 3 == 0;
      if (test.nan_in_lse && random() % 5 == 0) lse = NAN;
      if (empty) lse = -INFINITY;
      lse_partial_[static_cast<size_t>(n * p.lse_part_stride + element_of(p.lse_partial, at))] = lse;
      for (int64_t c = 0; c < p.headdim_v && !empty; ++c) {
        store_element(out_partial_.data(), test.in, n * p.out_part_stride + element_of(p.out_partial, at) + c,
                      normal(random));
      }
    }
  }
}

size_t MergeData::out_bytes() const {
  return static_cast<size_t>(test_.batch * test_.rows * row_elems() * dtype_bytes(test_.out));
}
size_t MergeData::lse_elems() const {
  return static_cast<size_t>(test_.batch * test_.nheads * head_elems());
}

MergeProblem MergeData::problem(const MergePointers& at) const {
  MergeProblem p;
  p.parts = test_.parts;
  p.batch = test_.batch;
  p.rows = test_.rows;
  p.nheads = test_.nheads;
  p.headdim_v = test_.headdim_v;
  p.out_partial = {at.out_partial, test_.in, test_.rows * row_elems(), row_elems(), test_.headdim_v};
  p.out_part_stride = test_.batch * test_.rows * row_elems();
  p.out = p.out_partial;
  p.out.data = at.out;
  p.out.dtype = test_.out;
  p.lse_partial = {at.lse_partial, DType::kFp32, test_.nheads * head_elems(), head_elems(), 1};
  p.lse_part_stride = test_.batch * test_.nheads * head_elems();
  if (test_.wants_lse) {
    p.lse = p.lse_partial;
    p.lse.data = at.lse;
  }
  if (test_.sink) p.sink = {at.sink, DType::kFp32, 1};
  p.exec.device_type = TANDEM_CUDA;
  return p;
}

// By the definition, in double. One part that counts and no sink: a copy.
MergeData::RowResult MergeData::expected_row(const MergeProblem& p, const Row& at) const {
  const double sink = test_.sink ? static_cast<double>(sink_[static_cast<size_t>(at.head)]) : -INFINITY;
  RowResult result;
  double maximum = sink;
  for (int64_t n = 0; n < p.parts; ++n) {
    const double lse =
        load_element(p.lse_partial.data, DType::kFp32, n * p.lse_part_stride + element_of(p.lse_partial, at));
    if (lse == -INFINITY) continue;
    result.parts.push_back(n);
    result.weights.push_back(lse);  // for now
    maximum = std::max(maximum, lse);
  }
  result.exact = result.parts.empty() || (result.parts.size() == 1 && !test_.sink);
  if (result.exact) {
    result.lse = result.parts.empty() ? sink : result.weights[0];
    result.weights.assign(result.parts.size(), 1.0);
    return result;
  }
  double sum = std::exp(sink - maximum);
  for (const double lse : result.weights) sum += std::exp(lse - maximum);
  result.lse = maximum + std::log(sum);
  for (double& weight : result.weights) weight = std::exp(weight - result.lse);
  return result;
}

std::string MergeData::fault_of_lse(const MergeProblem& p, const Row& at, const RowResult& want) const {
  const double got = load_element(p.lse.data, DType::kFp32, element_of(p.lse, at));
  const double allowed = want.exact ? 0 : kWeightError + unit_in_last_place(DType::kFp32, want.lse);
  return is_near(got, want.lse, allowed) ? "" : different("lse", got, want.lse);
}

std::string MergeData::fault_of_out(const MergeProblem& p, const Row& at, const RowResult& want) const {
  const bool copied = want.exact && test_.in == test_.out;
  for (int64_t c = 0; c < p.headdim_v; ++c) {
    double sum = 0;
    double largest = 0;
    for (size_t k = 0; k < want.parts.size(); ++k) {
      const int64_t element = want.parts[k] * p.out_part_stride + element_of(p.out_partial, at) + c;
      const double value = load_element(p.out_partial.data, test_.in, element);
      sum += want.weights[k] * value;
      largest = std::max(largest, std::abs(value));
    }
    const double got = load_element(p.out.data, test_.out, element_of(p.out, at) + c);
    const double allowed = copied ? 0 : unit_in_last_place(test_.out, sum) + (want.exact ? 0 : kWeightError * largest);
    if (!is_near(got, sum, allowed)) return different("out", got, sum) + ", column " + std::to_string(c);
  }
  return "";
}

std::string MergeData::fault_of_row(const MergeProblem& p, const Row& at) const {
  const RowResult want = expected_row(p, at);
  std::string fault = test_.wants_lse ? fault_of_lse(p, at, want) : "";
  if (fault.empty()) fault = fault_of_out(p, at, want);
  if (fault.empty()) return "";
  return fault + " at batch " + std::to_string(at.batch) + ", head " + std::to_string(at.head) + ", row " +
         std::to_string(at.row);
}

bool MergeData::gap_is_untouched(const std::vector<uint8_t>& out, int64_t row) const {
  const int64_t bytes = dtype_bytes(test_.out);
  const auto first = out.begin() + (row * row_elems() + test_.nheads * test_.headdim_v) * bytes;
  return std::all_of(first, first + test_.padding * bytes, [](uint8_t byte) { return byte == 0xff; });
}

std::string MergeData::fault(const std::vector<uint8_t>& out, const std::vector<float>& lse) const {
  std::vector<uint8_t> out_copy = out;
  std::vector<float> lse_copy = lse;
  MergeData inputs = *this;  // problem() takes pointers that may be written through
  const MergeProblem p = problem(
      {inputs.out_partial_.data(), inputs.lse_partial_.data(), inputs.sink_.data(), out_copy.data(), lse_copy.data()});
  for (int64_t row = 0; row < p.batch * p.rows; ++row) {
    for (int64_t h = 0; h < p.nheads; ++h) {
      const std::string fault = fault_of_row(p, {row / p.rows, h, row % p.rows});
      if (!fault.empty()) return fault;
    }
    if (!gap_is_untouched(out, row)) return "written between two rows";
  }
  return "";
}

std::vector<MergeCase> merge_cases() {
  std::vector<MergeCase> cases;
  const auto add = [&cases](const MergeCase& test) {
    cases.push_back(test);
    cases.back().seed = cases.size();
  };
  for (const DType in : {DType::kFp32, DType::kFp16, DType::kBf16}) {
    for (const DType out : {DType::kFp32, DType::kFp16, DType::kBf16}) {
      for (const bool sink : {false, true}) add({3, 2, 7, 3, 64, in, out, sink});
      add({2, 1, 5, 2, 33, in, out});
    }
  }
  for (const int64_t parts : {0, 1, 2, 40}) {
    for (const bool sink : {false, true}) add({parts, 2, 9, 2, 16, DType::kFp32, DType::kBf16, sink});
  }
  for (const int64_t headdim_v : {1, 7, 8, 200, 256}) add({2, 1, 6, 2, headdim_v, DType::kBf16, DType::kBf16});
  add({3, 2, 5, 2, 64, DType::kFp32, DType::kFp16, true, true, 3});
  add({3, 2, 5, 2, 64, DType::kFp32, DType::kFp16, true, true, 8});
  add({3, 2, 5, 2, 64, DType::kFp32, DType::kFp32, false, false, 1});
  add({4, 1, 50, 2, 8, DType::kFp32, DType::kFp32, false, true, 0, 60});
  MergeCase not_numbers{4, 1, 50, 2, 8, DType::kFp32, DType::kBf16};
  not_numbers.nan_in_lse = true;
  add(not_numbers);
  add({2, 0, 5, 2, 64});
  add({2, 1, 0, 2, 64});
  return cases;
}

}  // namespace tandem::gpu_test
