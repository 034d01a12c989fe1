#pragma once

// TANDEM_HD marks the arithmetic that the host, the CPU backend and the GPU kernels share. Headers that use it include
// nothing of CUDA, so that a build without a CUDA toolkit sees plain constexpr functions.
#if defined(__CUDACC__)
#define TANDEM_HD __host__ __device__
#else
#define TANDEM_HD
#endif
