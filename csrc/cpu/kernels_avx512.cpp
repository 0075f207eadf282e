// SPDX-License-Identifier: Apache-2.0
// The kernels for avx512; the build gives this file, and it alone, that instruction set's flags.
#define VLLM_ISA_AVX512
#define VLLM_ISA_NAME "avx512"
#include "kernels.inl"

namespace vllm {
const Kernels* kernels_avx512() { return &kTable; }
}  // namespace vllm
