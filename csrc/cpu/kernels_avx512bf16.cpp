// SPDX-License-Identifier: Apache-2.0
// The kernels for avx512 with bf16 dot products; the build gives this file its flags.
#define VLLM_ISA_AVX512
#define VLLM_ISA_AVX512BF16
#define VLLM_ISA_NAME "avx512bf16"
#include "kernels.inl"

namespace vllm {
const Kernels* kernels_avx512bf16() { return &kTable; }
}  // namespace vllm
