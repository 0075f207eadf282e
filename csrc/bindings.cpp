// SPDX-License-Identifier: Apache-2.0
// The module vllm._C: addresses and sizes in, nothing out. Chooses the instruction set once.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <omp.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/types.hpp"

namespace nb = nanobind;
using vllm::DType;
using vllm::Kernels;

namespace {

// Best first.
std::vector<const Kernels*> supported() {
  std::vector<const Kernels*> tables;
#ifdef VLLM_X86
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq");
#ifdef VLLM_HAS_AVX512BF16
  if (avx512 && __builtin_cpu_supports("avx512bf16")) tables.push_back(vllm::kernels_avx512bf16());
#endif
  if (avx512) tables.push_back(vllm::kernels_avx512());
  if (avx2) tables.push_back(vllm::kernels_avx2());
#endif
  tables.push_back(vllm::kernels_scalar());
  return tables;
}

const Kernels* active = supported().front();

void select_isa(const std::string& name) {
  std::string names;
  for (const Kernels* table : supported()) {
    if (name == table->name) {
      active = table;
      return;
    }
    names += (names.empty() ? "" : ", ") + std::string(table->name);
  }
  throw std::invalid_argument("instruction set '" + name + "': this CPU runs " + names);
}

void* ptr(uintptr_t address) { return reinterpret_cast<void*>(address); }

}  // namespace

NB_MODULE(_C, m) {
  m.def("isa", [] { return std::string(active->name); });
  m.def("select_isa", &select_isa);
  m.def("supported_isas", [] {
    std::vector<std::string> names;
    for (const Kernels* table : supported()) names.emplace_back(table->name);
    return names;
  });
  m.def("linear", [](int dtype, uintptr_t out, uintptr_t x, int64_t x_stride, uintptr_t weight,
                     uintptr_t bias, int64_t rows, int64_t n, int64_t k, int threads) {
    active->linear(DType(dtype), ptr(out), ptr(x), x_stride, ptr(weight), ptr(bias), rows, n, k,
                   threads);
  });
  m.def("rms_norm", [](int dtype, uintptr_t out, uintptr_t x, int64_t x_stride, uintptr_t weight,
                       float eps, int64_t rows, int64_t width, int threads) {
    active->rms_norm(DType(dtype), ptr(out), ptr(x), x_stride, ptr(weight), eps, rows, width,
                     threads);
  });
  m.def("fused_add_rms_norm",
        [](int dtype, uintptr_t x, int64_t x_stride, uintptr_t residual, int64_t residual_stride,
           uintptr_t weight, float eps, int64_t rows, int64_t width, int threads) {
          active->fused_add_rms_norm(DType(dtype), ptr(x), x_stride, ptr(residual), residual_stride,
                                     ptr(weight), eps, rows, width, threads);
        });
  m.def("silu_and_mul", [](int dtype, uintptr_t out, uintptr_t x, int64_t x_stride, int64_t rows,
                           int64_t width, int threads) {
    active->silu_and_mul(DType(dtype), ptr(out), ptr(x), x_stride, rows, width, threads);
  });
  m.def("rotary_embedding", [](int dtype, uintptr_t positions, uintptr_t x, int64_t x_stride,
                               uintptr_t cache, int64_t tokens, int64_t heads, int64_t head_size,
                               int64_t rotary_dim, bool is_neox, int threads) {
    active->rotary_embedding(DType(dtype), static_cast<const int64_t*>(ptr(positions)), ptr(x),
                             x_stride, static_cast<const float*>(ptr(cache)), tokens, heads,
                             head_size, rotary_dim, is_neox, threads);
  });
  m.def("probe_multiply_add", [](int64_t iterations, int threads) {
    return active->probe_multiply_add(iterations, threads);
  });
  m.def("probe_read", [](uintptr_t data, int64_t count, int threads) {
    return active->probe_read(static_cast<const float*>(ptr(data)), count, threads);
  });
}
