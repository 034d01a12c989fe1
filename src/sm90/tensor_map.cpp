#include "sm90/tensor_map.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

namespace tandem::sm90 {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// The library is not linked against the driver, so that it loads where there is none.
EncodeTiled find_encode_tiled() {
  constexpr unsigned int kCudaVersion = 12000;  // of the entry point's signature
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kCudaVersion, cudaEnableDefault, &found);
  const bool usable = error == cudaSuccess && found == cudaDriverEntryPointSuccess;
  return usable ? reinterpret_cast<EncodeTiled>(function) : nullptr;
}

CUtensorMapDataType map_data_type(DType dtype) {
  switch (dtype) {
    case DType::kFp16: return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::kBf16: return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::kFp32: return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    default: return CU_TENSOR_MAP_DATA_TYPE_UINT8;  // e4m3, e5m2: only moved, zero is zero
  }
}

}  // namespace

Status encode_tensor_map(const TensorMapSpec& spec, ptx::TensorMap* map) {
  static_assert(sizeof(ptx::TensorMap) == sizeof(CUtensorMap) && alignof(ptx::TensorMap) >= alignof(CUtensorMap));
  static const EncodeTiled encode = find_encode_tiled();
  if (encode == nullptr) return {TANDEM_NO_DEVICE, "no NVIDIA driver, or one older than CUDA 12"};
  TANDEM_RETURN_IF_ERROR(check_tensor_map(spec));
  cuuint64_t dims[TensorMapSpec::kMaxRank];
  cuuint64_t strides[TensorMapSpec::kMaxRank];  // of axes 1 ..
  cuuint32_t box[TensorMapSpec::kMaxRank];
  const cuuint32_t steps[TensorMapSpec::kMaxRank] = {1, 1, 1, 1, 1};
  for (int axis = 0; axis < spec.rank; ++axis) {
    dims[axis] = static_cast<cuuint64_t>(spec.dims[axis]);
    box[axis] = static_cast<cuuint32_t>(spec.box[axis]);
    if (axis > 0) strides[axis - 1] = static_cast<cuuint64_t>(spec.strides_bytes[axis]);
  }
  const auto swizzle = spec.swizzle == Swizzle::k128Bytes ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;
  const CUresult result =
      encode(reinterpret_cast<CUtensorMap*>(map), map_data_type(spec.dtype), static_cast<cuuint32_t>(spec.rank),
             const_cast<void*>(spec.base), dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return Status::ok();
  return {TANDEM_DEVICE_ERROR, "the driver refused a tensor map, error " + std::to_string(result)};
}

}  // namespace tandem::sm90
