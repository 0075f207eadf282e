// SPDX-License-Identifier: Apache-2.0
// One vector type, `Vec`, for every instruction set: `kWidth` fp32 lanes, with loads and stores
// that convert from and to bf16 and fp16. The scalar form always builds.
#pragma once

#include <cmath>
#include <cstring>

#include "types.hpp"
#if defined(VLLM_ISA_AVX2) || defined(VLLM_ISA_AVX512)
#include <immintrin.h>
#endif

namespace vllm {
namespace {

inline float to_float(float v) { return v; }

inline float to_float(bf16 v) {
  const uint32_t bits = static_cast<uint32_t>(v.bits) << 16;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

inline float to_float(fp16 v) {
  const uint32_t sign = static_cast<uint32_t>(v.bits & 0x8000u) << 16;
  const uint32_t exponent = (v.bits >> 10) & 0x1Fu;
  const uint32_t mantissa = v.bits & 0x3FFu;
  float out;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24
    out = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
    return sign ? -out : out;
  }
  const uint32_t bits =
      sign | (exponent == 31 ? 0x7F800000u : (exponent + 112) << 23) | (mantissa << 13);
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

inline void from_float(float v, float* out) { *out = v; }

inline void from_float(float v, bf16* out) {  // to nearest even; NaN stays NaN
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof bits);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
    out->bits = static_cast<uint16_t>((bits >> 16) | 0x40u);
    return;
  }
  bits += 0x7FFFu + ((bits >> 16) & 1u);
  out->bits = static_cast<uint16_t>(bits >> 16);
}

inline void from_float(float v, fp16* out) {  // to nearest even, with subnormals and overflow
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof bits);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    out->bits = static_cast<uint16_t>(sign | 0x7E00u);
  } else if (magnitude >= 0x477FF000u) {  // 65520 and above round to infinity
    out->bits = static_cast<uint16_t>(sign | 0x7C00u);
  } else if (magnitude < 0x38800000u) {  // below 2^-14: multiples of 2^-24
    const float scaled = std::fabs(v) * 16777216.0f;
    out->bits = static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyint(scaled)));
  } else {
    const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
    out->bits = static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
}

#if defined(VLLM_ISA_AVX512)

struct Vec {
  static constexpr int kWidth = 16;
  __m512 v;
  static Vec zero() { return {_mm512_setzero_ps()}; }
  static Vec set(float x) { return {_mm512_set1_ps(x)}; }
  static Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Vec load(const bf16* p) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
  }
  static Vec load(const fp16* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
  void store(bf16* p) const {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __m512i high = _mm512_srli_epi32(_mm512_mask_blend_epi32(nan, rounded, quiet), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(high));
  }
  void store(fp16* p) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  friend Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
  friend Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
  friend Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
  friend Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
  static Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  static Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
  static Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
  static Vec round(Vec a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT)}; }
  static Vec pow2(Vec n) {  // 2^n for whole n in [-126, 127]
    const __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(e, 23))};
  }
};

// Elements 0, 2, 4 ... and 1, 3, 5 ... of 32.
inline Vec load_even(const bf16* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))};
}
inline Vec load_odd(const bf16* p) {
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), high))};
}

inline __m256 fold(Vec a) {
  const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1));
  return _mm256_add_ps(_mm512_castps512_ps256(a.v), high);
}

#elif defined(VLLM_ISA_AVX2)

struct Vec {
  static constexpr int kWidth = 8;
  __m256 v;
  static Vec zero() { return {_mm256_setzero_ps()}; }
  static Vec set(float x) { return {_mm256_set1_ps(x)}; }
  static Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static Vec load(const bf16* p) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16))};
  }
  static Vec load(const fp16* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  void store(float* p) const { _mm256_storeu_ps(p, v); }
  void store(bf16* p) const {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    const __m256i packed = _mm256_packus_epi32(high, high);  // per 128-bit half
    const __m256i joined = _mm256_permute4x64_epi64(packed, 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(joined));
  }
  void store(fp16* p) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  friend Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
  friend Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
  friend Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
  friend Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
  static Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
  static Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
  static Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
  static Vec round(Vec a) {
    return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  static Vec pow2(Vec n) {
    const __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(e, 23))};
  }
};

// Elements 0, 2, 4 ... and 1, 3, 5 ... of 16.
inline Vec load_even(const bf16* p) {
  const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16))};
}
inline Vec load_odd(const bf16* p) {
  const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xFFFF0000u));
  return {_mm256_castsi256_ps(_mm256_and_si256(pairs, high))};
}

inline __m256 fold(Vec a) { return a.v; }

#else

struct Vec {
  static constexpr int kWidth = 8;
  float v[kWidth];
  template <typename F>
  static Vec make(F f) {
    Vec r;
    for (int i = 0; i < kWidth; ++i) r.v[i] = f(i);
    return r;
  }
  static Vec zero() { return set(0.0f); }
  static Vec set(float x) {
    return make([&](int) { return x; });
  }
  template <typename T>
  static Vec load(const T* p) {
    return make([&](int i) { return to_float(p[i]); });
  }
  template <typename T>
  void store(T* p) const {
    for (int i = 0; i < kWidth; ++i) from_float(v[i], p + i);
  }
  friend Vec operator+(Vec a, Vec b) {
    return make([&](int i) { return a.v[i] + b.v[i]; });
  }
  friend Vec operator-(Vec a, Vec b) {
    return make([&](int i) { return a.v[i] - b.v[i]; });
  }
  friend Vec operator*(Vec a, Vec b) {
    return make([&](int i) { return a.v[i] * b.v[i]; });
  }
  friend Vec operator/(Vec a, Vec b) {
    return make([&](int i) { return a.v[i] / b.v[i]; });
  }
  static Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
  static Vec min(Vec a, Vec b) {
    return make([&](int i) { return b.v[i] < a.v[i] ? b.v[i] : a.v[i]; });
  }
  static Vec max(Vec a, Vec b) {
    return make([&](int i) { return b.v[i] > a.v[i] ? b.v[i] : a.v[i]; });
  }
  static Vec round(Vec a) {
    return make([&](int i) { return std::nearbyint(a.v[i]); });
  }
  static Vec pow2(Vec n) {
    return make([&](int i) { return std::ldexp(1.0f, static_cast<int>(n.v[i])); });
  }
};

#endif

#if defined(VLLM_ISA_AVX2) || defined(VLLM_ISA_AVX512)
// Sums of the lanes of four vectors. The order of the additions is the same for each.
inline void sum4(const Vec* a, float* out) {
  const __m256 ab = _mm256_hadd_ps(fold(a[0]), fold(a[1]));
  const __m256 cd = _mm256_hadd_ps(fold(a[2]), fold(a[3]));
  const __m256 all = _mm256_hadd_ps(ab, cd);
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
}
#else
inline void sum4(const Vec* a, float* out) {
  for (int i = 0; i < 4; ++i) {
    const float* v = a[i].v;
    out[i] = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
  }
}
#endif

inline float sum(Vec a) {
  const Vec four[4] = {a, Vec::zero(), Vec::zero(), Vec::zero()};
  float out[4];
  sum4(four, out);
  return out[0];
}

// The first n < kWidth elements at p, zeros behind them.
template <typename T>
inline Vec load_partial(const T* p, int64_t n) {
  T buffer[Vec::kWidth] = {};
  std::memcpy(buffer, p, static_cast<size_t>(n) * sizeof(T));
  return Vec::load(buffer);
}

template <typename T>
inline void store_partial(Vec a, T* p, int64_t n) {
  T buffer[Vec::kWidth];
  a.store(buffer);
  std::memcpy(p, buffer, static_cast<size_t>(n) * sizeof(T));
}

// What is left of a after a round trip through T.
template <typename T>
inline Vec rounded(Vec a) {
  T buffer[Vec::kWidth];
  a.store(buffer);
  return Vec::load(buffer);
}
template <>
inline Vec rounded<float>(Vec a) {
  return a;
}

// e^x within about 2 units in the last place; x is held to [-87, 88].
inline Vec exp(Vec x) {
  x = Vec::max(Vec::min(x, Vec::set(88.0f)), Vec::set(-87.0f));
  const Vec n = Vec::round(x * Vec::set(1.44269504f));
  Vec r = Vec::fma(n, Vec::set(-0.693359375f), x);  // ln 2 in two parts
  r = Vec::fma(n, Vec::set(2.12194440e-4f), r);
  Vec p = Vec::set(1.0f / 5040);
  const float factorials[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
  for (float c : factorials) p = Vec::fma(p, r, Vec::set(c));
  return p * Vec::pow2(n);
}

}  // namespace
}  // namespace vllm
