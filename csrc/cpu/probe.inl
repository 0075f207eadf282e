// SPDX-License-Identifier: Apache-2.0
// What the machine can do, for benchmarks to compare with. Included once per instruction set.

#include "vec.hpp"

namespace vllm {
namespace {

// Runs `iterations` of 12 independent multiply-adds per thread; returns the operations done.
double probe_multiply_add(int64_t iterations, int num_threads) {
  double total = 0;
#pragma omp parallel num_threads(num_threads) reduction(+ : total)
  {
    Vec acc[12];
    for (Vec& a : acc) a = Vec::set(0.5f);
    const Vec x = Vec::set(0.999f), y = Vec::set(1e-3f);
    for (int64_t i = 0; i < iterations; ++i)
      for (Vec& a : acc) a = Vec::fma(a, x, y);
    for (int i = 1; i < 12; ++i) acc[0] = acc[0] + acc[i];
    // The sum is used, so that the loop stays; it adds less than one operation.
    total += 24.0 * Vec::kWidth * static_cast<double>(iterations) + (sum(acc[0]) > 0 ? 0.0 : 1.0);
  }
  return total;
}

// Reads `count` floats once; returns their sum.
double probe_read(const float* data, int64_t count, int num_threads) {
  double total = 0;
  const int64_t step = 8 * Vec::kWidth;
#pragma omp parallel num_threads(num_threads) reduction(+ : total)
  {
    Vec acc[8];
    for (Vec& a : acc) a = Vec::zero();
#pragma omp for schedule(static)
    for (int64_t i = 0; i < count / step; ++i)
      for (int j = 0; j < 8; ++j) acc[j] = acc[j] + Vec::load(data + i * step + j * Vec::kWidth);
    for (int j = 1; j < 8; ++j) acc[0] = acc[0] + acc[j];
    total += sum(acc[0]);
  }
  return total;
}

}  // namespace
}  // namespace vllm
