// SPDX-License-Identifier: Apache-2.0
// Element types and the table of kernels that each instruction set fills in. No torch, no Python.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vllm {

struct bf16 {
  uint16_t bits;
};
struct fp16 {
  uint16_t bits;
};

enum class DType : int { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

// All sizes and strides count elements; `stride` is the distance between rows. Rows themselves
// are contiguous. Launchers in Python have checked shapes, dtypes and strides.
struct Kernels {
  const char* name;
  // out[m, n] = sum_k x[m, k] * weight[n, k] + bias[n]; weight contiguous, out contiguous.
  void (*linear)(DType, void* out, const void* x, int64_t x_stride, const void* weight,
                 const void* bias, int64_t m, int64_t n, int64_t k, int num_threads);
  void (*rms_norm)(DType, void* out, const void* x, int64_t x_stride, const void* weight, float eps,
                   int64_t num_rows, int64_t width, int num_threads);
  // residual += x; x = rms_norm(residual).
  void (*fused_add_rms_norm)(DType, void* x, int64_t x_stride, void* residual,
                             int64_t residual_stride, const void* weight, float eps,
                             int64_t num_rows, int64_t width, int num_threads);
  // out[i] = silu(x[i]) * x[width + i].
  void (*silu_and_mul)(DType, void* out, const void* x, int64_t x_stride, int64_t num_rows,
                       int64_t width, int num_threads);
  void (*rotary_embedding)(DType, const int64_t* positions, void* x, int64_t x_stride,
                           const float* cos_sin_cache, int64_t num_tokens, int64_t num_heads,
                           int64_t head_size, int64_t rotary_dim, bool is_neox, int num_threads);
  double (*probe_multiply_add)(int64_t iterations, int num_threads);
  double (*probe_read)(const float* data, int64_t count, int num_threads);
};

// One per translation unit of kernels.inl; those an architecture lacks are not built.
const Kernels* kernels_scalar();
#ifdef VLLM_X86
const Kernels* kernels_avx2();
const Kernels* kernels_avx512();
#ifdef VLLM_HAS_AVX512BF16  // the compiler knows it; whether the CPU does is asked at run time
const Kernels* kernels_avx512bf16();
#endif
#endif

}  // namespace vllm
