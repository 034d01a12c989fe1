#pragma once

#include "float_types.h"
#include "problem.h"

// Which random problems the kernels must take; others they may refuse.
namespace tandem::gpu_test {

// Is every base and stride a multiple of 16 bytes?
inline bool is_16_byte_grid(int32_t dtype, const optest::Shape& shape, const optest::Layout& layout) {
  optest::HostTensor tensor(shape, dtype, layout);
  const tandem_tensor view = tensor.view();
  const int64_t bytes = optest::element_bytes(dtype);
  bool fits = layout.offset * bytes % 16 == 0;
  for (int axis = 0; axis + 1 < view.ndim; ++axis) {
    fits = fits && (view.shape[axis] == 1 || (view.stride[axis] > 0 && view.stride[axis] * bytes % 16 == 0));
  }
  return fits;
}

inline bool is_forward_addressable(const optest::Problem& p) {
  return is_16_byte_grid(p.dtype, p.q_shape(), p.q_layout) && is_16_byte_grid(p.dtype, p.k_shape(), p.k_layout) &&
         is_16_byte_grid(p.dtype, p.stored_v_shape(), p.v_layout) &&
         is_16_byte_grid(p.out_dtype, p.out_shape(), p.out_layout);
}

inline bool is_backward_addressable(const optest::Problem& p) {
  return is_forward_addressable(p) && is_16_byte_grid(p.out_dtype, p.out_shape(), p.dout_layout) &&
         is_16_byte_grid(p.dtype, p.q_shape(), p.gradient_layout) &&
         is_16_byte_grid(p.dtype, p.k_shape(), p.gradient_layout) &&
         is_16_byte_grid(p.dtype, p.v_shape(), p.gradient_layout);
}

inline bool is_in_fp8_domain(const optest::Problem& p) {
  return p.dtype == TANDEM_E4M3 && p.out_dtype != TANDEM_FP32 && p.headdim % 16 == 0 && p.headdim_v % 16 == 0;
}

inline bool is_in_domain(const optest::Problem& p) {
  return (p.dtype == TANDEM_BF16 || p.dtype == TANDEM_FP16) && p.out_dtype == p.dtype && p.headdim % 8 == 0 &&
         p.headdim_v % 8 == 0;
}

}  // namespace tandem::gpu_test
