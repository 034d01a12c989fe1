#pragma once

#include <cstdint>
#include <vector>

#include "core/problem.h"
#include "core/sequence.h"
#include "core/status.h"

// The oracle: attention in double precision by plain loops over the whole score row, written to be compared with the
// contract by eye. It shares no mask arithmetic with the other backends.
namespace tandem::reference {

Status run_forward(const AttentionProblem& problem);
Status run_backward(const AttentionProblem& problem);
Status run_merge(const MergeProblem& problem);
Status run_quantize(const QuantizeProblem& problem);

// Rows of one head of one sequence, converted to double. (rows, columns)
class Matrix {
 public:
  Matrix(int64_t rows, int64_t columns)
      : columns_(columns), values_(static_cast<size_t>(rows) * static_cast<size_t>(columns)) {}
  double* row(int64_t i) { return values_.data() + i * columns_; }
  const double* row(int64_t i) const { return values_.data() + i * columns_; }

 private:
  int64_t columns_;
  std::vector<double> values_;
};

Matrix load_rows(const Tensor& tensor, int64_t batch, int64_t head, int64_t begin, int64_t rows, int64_t columns);
void store_rows(const Tensor& tensor, int64_t batch, int64_t head, int64_t begin, int64_t rows, int64_t columns,
                const Matrix& values);

// The same rows in real units: times the scales of fp8. Of V^T in slots, too, if it is that.
Matrix load_query_rows(const AttentionProblem& problem, const SequenceSpan& span, int64_t batch, int64_t head);
Matrix load_key_rows(const AttentionProblem& problem, const SequenceSpan& span, int64_t batch, int64_t head);
Matrix load_value_rows(const AttentionProblem& problem, const SequenceSpan& span, int64_t batch, int64_t head);

double load_row_value(const RowTensor& tensor, int64_t batch, int64_t head, int64_t row);
void store_row_value(const RowTensor& tensor, int64_t batch, int64_t head, int64_t row, double value);

// Writes 0 to every row of every head, those outside all sequences included [8].
void zero_rows(const AttentionProblem& problem, const Tensor& tensor, int64_t rows, int64_t nheads, int64_t columns);

double dot(const double* a, const double* b, int64_t length);

std::vector<SequenceSpan> sequence_spans(const AttentionProblem& problem);

// What query row i of head h sees: the contract's sentence [3, 4], one row at a time.
class RowMask {
 public:
  RowMask(const AttentionProblem& problem, const SequenceSpan& span, int64_t batch, int64_t head, int64_t row);
  bool visible(int64_t key) const;

 private:
  const MaskSpec& mask_;
  int64_t position_;
  int64_t lo_;
  int64_t hi_;
};

// The score of a key: scaled, then capped.
double score(const AttentionProblem& problem, const double* q, const double* k);

}  // namespace tandem::reference
