#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <vector>

#include "guarded_buffer.h"
#include "pool_buffer.h"
#include "quantize_case.h"
#include "tandem/tandem.h"

namespace tandem::gpu_test {

// A quantisation that lives on device 0, contiguous and without rotary embedding, for what the host cannot hold or has
// to repeat. x is a run of normal values over and over, of a length that no row divides.
class QuantizeOnDevice {
 public:
  QuantizeOnDevice(const optest::QuantizeCase& test, uint64_t seed);
  QuantizeOnDevice(const QuantizeOnDevice&) = delete;

  void poison_results() const;
  // Through the C interface; does not wait.
  tandem_status run(cudaStream_t stream);
  // Other contents and lengths in the same memory.
  void change(const optest::QuantizeCase& test, uint64_t seed);

  // All of out and scale, for comparisons.
  std::vector<uint8_t> results() const;
  // Empty, or what is wrong: of everything, or of one block of 128 rows with a scale of its own.
  std::string fault() const;
  std::string fault_of_block(int64_t sequence, int64_t head, int64_t block) const;

 private:
  void fill_x() const;
  double x_value(int64_t element) const;
  int64_t out_elements() const;
  int64_t scales() const;
  std::vector<double> block_of_out(const optest::QuantizeCase& block, int64_t sequence, int64_t head,
                                   int64_t first) const;

  optest::QuantizeCase test_;
  std::vector<uint16_t> pattern_;
  PoolBuffer x_, cu_seqlens_, seqused_;
  GuardedBuffer out_, scale_, workspace_;
};

}  // namespace tandem::gpu_test
