// SPDX-License-Identifier: Apache-2.0
// Every kernel, compiled once per instruction set: the including file has defined VLLM_ISA_NAME.

#include "linear.inl"
#include "probe.inl"
#include "vec.hpp"

namespace vllm {
namespace {

template <typename F>
void with_type(DType dtype, F f) {
  switch (dtype) {
    case DType::kFloat32:
      return f(float{});
    case DType::kBFloat16:
      return f(bf16{});
    case DType::kFloat16:
      return f(fp16{});
  }
}

// Call f(i, n) for each vector of a row: n lanes from element i, n == kWidth but at the end.
template <typename F>
inline void for_each_vec(int64_t width, F f) {
  int64_t i = 0;
  for (; i + Vec::kWidth <= width; i += Vec::kWidth) f(i, static_cast<int64_t>(Vec::kWidth));
  if (i < width) f(i, width - i);
}

template <typename T>
inline Vec get(const T* p, int64_t n) {
  return n == Vec::kWidth ? Vec::load(p) : load_partial(p, n);
}

template <typename T>
inline void put(Vec v, T* p, int64_t n) {
  if (n == Vec::kWidth)
    v.store(p);
  else
    store_partial(v, p, n);
}

// Rounds twice, as the definition does: after the division and after the weight.
template <typename T>
inline void norm_row(const T* x, const T* weight, T* out, float eps, int64_t width) {
  Vec squares = Vec::zero();
  for_each_vec(width, [&](int64_t i, int64_t n) {
    const Vec v = get(x + i, n);
    squares = Vec::fma(v, v, squares);
  });
  const Vec scale = Vec::set(1.0f / std::sqrt(sum(squares) / static_cast<float>(width) + eps));
  for_each_vec(width, [&](int64_t i, int64_t n) {
    put(rounded<T>(get(x + i, n) * scale) * get(weight + i, n), out + i, n);
  });
}

void rms_norm(DType dtype, void* out, const void* x, int64_t x_stride, const void* weight,
              float eps, int64_t num_rows, int64_t width, int num_threads) {
  with_type(dtype, [&](auto tag) {
    using T = decltype(tag);
#pragma omp parallel for num_threads(num_threads) if (num_rows * width > 16384)
    for (int64_t r = 0; r < num_rows; ++r)
      norm_row(static_cast<const T*>(x) + r * x_stride, static_cast<const T*>(weight),
               static_cast<T*>(out) + r * width, eps, width);
  });
}

void fused_add_rms_norm(DType dtype, void* x, int64_t x_stride, void* residual,
                        int64_t residual_stride, const void* weight, float eps, int64_t num_rows,
                        int64_t width, int num_threads) {
  with_type(dtype, [&](auto tag) {
    using T = decltype(tag);
#pragma omp parallel for num_threads(num_threads) if (num_rows * width > 16384)
    for (int64_t r = 0; r < num_rows; ++r) {
      T* x_row = static_cast<T*>(x) + r * x_stride;
      T* residual_row = static_cast<T*>(residual) + r * residual_stride;
      for_each_vec(width, [&](int64_t i, int64_t n) {
        put(get(x_row + i, n) + get(residual_row + i, n), residual_row + i, n);
      });
      norm_row(residual_row, static_cast<const T*>(weight), x_row, eps, width);
    }
  });
}

void silu_and_mul(DType dtype, void* out, const void* x, int64_t x_stride, int64_t num_rows,
                  int64_t width, int num_threads) {
  with_type(dtype, [&](auto tag) {
    using T = decltype(tag);
#pragma omp parallel for num_threads(num_threads) if (num_rows * width > 16384)
    for (int64_t r = 0; r < num_rows; ++r) {
      const T* gate = static_cast<const T*>(x) + r * x_stride;
      const T* up = gate + width;
      T* out_row = static_cast<T*>(out) + r * width;
      for_each_vec(width, [&](int64_t i, int64_t n) {
        const Vec g = get(gate + i, n);
        const Vec silu = g / (Vec::set(1.0f) + exp(Vec::zero() - g));
        put(rounded<T>(silu) * get(up + i, n), out_row + i, n);
      });
    }
  });
}

template <typename T>
inline void rotate_neox(T* head, const float* cos, const float* sin, int64_t half) {
  for_each_vec(half, [&](int64_t i, int64_t n) {
    const Vec a = get(head + i, n), b = get(head + half + i, n);
    const Vec c = get(cos + i, n), s = get(sin + i, n);
    put(a * c - b * s, head + i, n);
    put(b * c + a * s, head + half + i, n);
  });
}

template <typename T>
inline void rotate_pairs(T* head, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = to_float(head[2 * i]), b = to_float(head[2 * i + 1]);
    from_float(a * cos[i] - b * sin[i], head + 2 * i);
    from_float(b * cos[i] + a * sin[i], head + 2 * i + 1);
  }
}

void rotary_embedding(DType dtype, const int64_t* positions, void* x, int64_t x_stride,
                      const float* cos_sin_cache, int64_t num_tokens, int64_t num_heads,
                      int64_t head_size, int64_t rotary_dim, bool is_neox, int num_threads) {
  with_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    const int64_t half = rotary_dim / 2;
#pragma omp parallel for num_threads(num_threads) if (num_tokens * num_heads * rotary_dim > 16384)
    for (int64_t t = 0; t < num_tokens; ++t) {
      const float* cos = cos_sin_cache + positions[t] * rotary_dim;
      T* row = static_cast<T*>(x) + t * x_stride;
      for (int64_t h = 0; h < num_heads; ++h) {
        T* head = row + h * head_size;
        if (is_neox)
          rotate_neox(head, cos, cos + half, half);
        else
          rotate_pairs(head, cos, cos + half, half);
      }
    }
  });
}

void linear(DType dtype, void* out, const void* x, int64_t x_stride, const void* weight,
            const void* bias, int64_t m, int64_t n, int64_t k, int num_threads) {
  with_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    linear_typed(static_cast<T*>(out), static_cast<const T*>(x), x_stride,
                 static_cast<const T*>(weight), static_cast<const T*>(bias), m, n, k, num_threads);
  });
}

const Kernels kTable{VLLM_ISA_NAME, linear,           rms_norm,           fused_add_rms_norm,
                     silu_and_mul,  rotary_embedding, probe_multiply_add, probe_read};

}  // namespace
}  // namespace vllm
