// SPDX-License-Identifier: Apache-2.0
// The kernels for avx2; the build gives this file, and it alone, that instruction set's flags.
#define VLLM_ISA_AVX2
#define VLLM_ISA_NAME "avx2"
#include "kernels.inl"

namespace vllm {
const Kernels* kernels_avx2() { return &kTable; }
}  // namespace vllm
