// SPDX-License-Identifier: Apache-2.0
// The kernels for scalar; the build gives this file, and it alone, that instruction set's flags.
#define VLLM_ISA_SCALAR
#define VLLM_ISA_NAME "scalar"
#include "kernels.inl"

namespace vllm {
const Kernels* kernels_scalar() { return &kTable; }
}  // namespace vllm
