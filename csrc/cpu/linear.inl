// SPDX-License-Identifier: Apache-2.0
// out = x @ weight.T + bias. Included once per instruction set by kernels.inl.
//
// Both operands are contiguous along K, so every output is a dot product of two rows and the
// weight is read as it lies; no transposed or packed copy exists. A tile of kTileM x kTileN
// outputs keeps its sums in registers.
//
//   few rows (<= kTileM)   the weight is converted in registers and read once, in full
//   many rows              blocks of kBlockM rows x kChunkN columns: K is cut into slices, and
//                          kPanelN weight rows of a slice are converted once into the first-level
//                          cache; x is converted once per call
//
// Each output adds its terms in an order that depends on K alone: a row's result is the same
// bits whatever else is in the batch and however the work is split.

#include <new>
#include <type_traits>

#include "vec.hpp"

namespace vllm {
namespace {

#if defined(VLLM_ISA_AVX512)
constexpr int kTileM = 6;
#else
constexpr int kTileM = 3;  // 12 sums, 3 rows of x and 1 weight fill 16 registers
#endif
constexpr int kTileN = 4;
constexpr int kPanelN = 2 * kTileN;
constexpr int64_t kChunkN = 64;   // columns that a thread takes at a time
constexpr int64_t kBlockM = 96;   // rows of x whose slice stays in the second-level cache
constexpr int64_t kSliceK = 640;  // 8 weight rows and 3 of x: 28 KiB of first-level cache

// How elements of type T are multiplied. `Stored` is what x (and a converted weight) is kept as,
// `kStep` elements are taken at a time, in `kParts` registers.
template <typename T>
struct Dot {
  using Stored = float;
  using Lanes = Vec;
  static constexpr int kParts = 1;
  static constexpr int64_t kStep = Vec::kWidth;
  static Lanes stored(const float* p, int) { return Vec::load(p); }
  static Lanes raw(const T* p, int) { return Vec::load(p); }
  static Vec mac(Lanes x, Lanes w, Vec sum) { return Vec::fma(x, w, sum); }
};

#if defined(VLLM_ISA_AVX512BF16)
template <>
struct Dot<bf16> {  // pairs of products, added to 16 fp32 sums by one instruction
  using Stored = bf16;
  using Lanes = __m512bh;
  static constexpr int kParts = 1;
  static constexpr int64_t kStep = 32;
  static Lanes stored(const bf16* p, int) { return (__m512bh)_mm512_loadu_si512(p); }
  static Lanes raw(const bf16* p, int part) { return stored(p, part); }
  static Vec mac(Lanes x, Lanes w, Vec sum) { return {_mm512_dpbf16_ps(sum.v, x, w)}; }
};
#elif defined(VLLM_ISA_AVX512) || defined(VLLM_ISA_AVX2)
template <>
struct Dot<bf16> {  // even elements, then odd ones: a shift and a mask convert, no shuffle
  using Stored = float;
  using Lanes = Vec;
  static constexpr int kParts = 2;
  static constexpr int64_t kStep = 2 * Vec::kWidth;
  static Lanes stored(const float* p, int part) { return Vec::load(p + part * Vec::kWidth); }
  static Lanes raw(const bf16* p, int part) { return part ? load_odd(p) : load_even(p); }
  static Vec mac(Lanes x, Lanes w, Vec sum) { return Vec::fma(x, w, sum); }
};
#endif

// Scratch that grows and is kept, per thread; a step allocates nothing once it has run.
enum Slot { kX, kWeight, kSums, kNumSlots };
inline void* scratch(Slot slot, size_t bytes) {
  constexpr std::align_val_t kAlign{64};
  thread_local struct Buffers {
    void* data[kNumSlots] = {};
    size_t size[kNumSlots] = {};
    ~Buffers() {
      for (void* p : data) ::operator delete[](p, kAlign);
    }
  } buffers;
  if (buffers.size[slot] < bytes) {
    ::operator delete[](buffers.data[slot], kAlign);
    buffers.size[slot] = 0;
    buffers.data[slot] = ::operator new[](bytes, kAlign);
    buffers.size[slot] = bytes;
  }
  return buffers.data[slot];
}

template <typename T>
inline int64_t padded(int64_t k) {
  return (k + Dot<T>::kStep - 1) / Dot<T>::kStep * Dot<T>::kStep;
}

// Copy k elements to `Stored`, in the order in which they are multiplied, and pad with zeros.
// `ahead`: as for add_products.
template <typename T>
inline void convert(const T* row, int64_t k, typename Dot<T>::Stored* out, int64_t ahead = 0) {
  using D = Dot<T>;
  if constexpr (std::is_same_v<T, typename D::Stored>) {
    std::memcpy(out, row, static_cast<size_t>(k) * sizeof(T));
    std::memset(out + k, 0, static_cast<size_t>(padded<T>(k) - k) * sizeof(T));
  } else {
    T tail[D::kStep] = {};
    for (int64_t i = 0; i < k; i += D::kStep) {
      const T* p = row + i;
      if (ahead > 0) __builtin_prefetch(p + ahead, 0, 2);
      if (i + D::kStep > k) {
        std::memcpy(tail, p, static_cast<size_t>(k - i) * sizeof(T));
        p = tail;
      }
      for (int part = 0; part < D::kParts; ++part)
        D::raw(p, part).store(out + i + part * Vec::kWidth);
    }
  }
}

template <typename T>
struct LinearArgs {
  T* out;
  const typename Dot<T>::Stored* x;  // [m, x_stride], converted
  int64_t x_stride;
  const T* weight;
  const T* bias;
  int64_t m, n, k;
};

template <int kRows, int kCols, typename T, typename W>
inline void add_step(Vec (&acc)[kRows][kCols], const typename Dot<T>::Stored* x, int64_t x_stride,
                     const W* const* w, int64_t i) {
  using D = Dot<T>;
  for (int part = 0; part < D::kParts; ++part) {
    typename D::Lanes xs[kRows];
    for (int r = 0; r < kRows; ++r) xs[r] = D::stored(x + r * x_stride + i, part);
    for (int c = 0; c < kCols; ++c) {
      typename D::Lanes ws;
      if constexpr (std::is_same_v<W, T>)
        ws = D::raw(w[c] + i, part);
      else
        ws = D::stored(w[c] + i, part);
      for (int r = 0; r < kRows; ++r) acc[r][c] = D::mac(xs[r], ws, acc[r][c]);
    }
  }
}

// acc += the products of the first k elements. A converted weight is padded and has no tail.
// `ahead`: how far behind the weight rows lie those that come next, to be fetched meanwhile; rows
// are too short for the processor to guess that by itself.
template <int kRows, int kCols, typename T, typename W>
inline void add_products(Vec (&acc)[kRows][kCols], const typename Dot<T>::Stored* x,
                         int64_t x_stride, const W* const* w, int64_t k, int64_t ahead = 0) {
  constexpr int64_t kStep = Dot<T>::kStep;
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(W));
  int64_t i = 0;
  if (ahead > 0) {
    for (; i + kLine <= k; i += kLine) {
      for (int c = 0; c < kCols; ++c) __builtin_prefetch(w[c] + i + ahead, 0, 2);
      for (int64_t j = i; j < i + kLine; j += kStep)
        add_step<kRows, kCols, T>(acc, x, x_stride, w, j);
    }
  }
  for (; i + kStep <= k; i += kStep) add_step<kRows, kCols, T>(acc, x, x_stride, w, i);
  if (i == k) return;
  W tail[kCols][kStep] = {};
  const W* tails[kCols];
  for (int c = 0; c < kCols; ++c) {
    std::memcpy(tail[c], w[c] + i, static_cast<size_t>(k - i) * sizeof(W));
    tails[c] = tail[c];
  }
  add_step<kRows, kCols, T>(acc, x + i, x_stride, tails, 0);
}

template <int kRows, int kCols, typename T>
inline void finish(const LinearArgs<T>& a, const Vec (&acc)[kRows][kCols], int64_t m, int64_t n) {
  float sums[kRows][kCols];
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kCols; c += 4) sum4(&acc[r][c], &sums[r][c]);
  const int64_t columns = a.n - n < kCols ? a.n - n : kCols;
  for (int r = 0; r < kRows; ++r) {
    T* out = a.out + (m + r) * a.n + n;
    for (int64_t c = 0; c < columns; ++c)
      from_float(sums[r][c] + (a.bias ? to_float(a.bias[n + c]) : 0.0f), out + c);
  }
}

// Pointers to kCols weight rows from n on. Past the last row it is repeated, and never stored.
template <int kCols, typename T>
inline void weight_rows(const LinearArgs<T>& a, int64_t n, int64_t k0, const T** rows) {
  for (int c = 0; c < kCols; ++c) rows[c] = a.weight + (n + c < a.n ? n + c : a.n - 1) * a.k + k0;
}

template <int kRows, int kCols, typename T>
void few_rows(const LinearArgs<T>& a, int64_t m, int64_t begin, int64_t end) {
  for (int64_t n = begin; n < end; n += kCols) {
    const T* rows[kCols];
    weight_rows<kCols>(a, n, 0, rows);
    Vec acc[kRows][kCols];
    for (auto& row : acc)
      for (Vec& sum : row) sum = Vec::zero();
    add_products<kRows, kCols, T>(acc, a.x + m * a.x_stride, a.x_stride, rows, a.k, kCols * a.k);
    finish(a, acc, m, n);
  }
}

// One slice of K for one block: which part of x and of the sums a tile works on.
struct Slice {
  int64_t k0, k;
  bool is_first, is_last;
  Vec* sums;  // [rows of the block, sums_stride]; unused when the slice is first and last
  int64_t sums_stride;
};

template <int kRows, typename T, typename W>
inline void slice_tile(const LinearArgs<T>& a, const Slice& s, int64_t m, int64_t n,
                       const W* const* w, Vec* sums, int64_t ahead) {
  Vec acc[kRows][kTileN];
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kTileN; ++c)
      acc[r][c] = s.is_first ? Vec::zero() : sums[r * s.sums_stride + c];
  add_products<kRows, kTileN, T>(acc, a.x + m * a.x_stride + s.k0, a.x_stride, w, s.k, ahead);
  if (s.is_last) return finish(a, acc, m, n);
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kTileN; ++c) sums[r * s.sums_stride + c] = acc[r][c];
}

template <typename T, typename W>
void slice_panel(const LinearArgs<T>& a, const Slice& s, int64_t first, int64_t last, int64_t n,
                 const W* const* w) {
  constexpr bool kIsConverted = !std::is_same_v<T, W>;
  int64_t m = first;
  for (int64_t rows; m < last; m += rows) {
    const int64_t ahead = kIsConverted || m > first ? 0 : kPanelN * a.k;
    rows = last - m >= kTileM ? kTileM : (last - m >= 2 ? 2 : 1);
    for (int c = 0; c < kPanelN && n + c < a.n; c += kTileN) {
      Vec* sums = s.sums + (m - first) * s.sums_stride + c;
      if (rows == kTileM)
        slice_tile<kTileM>(a, s, m, n + c, w + c, sums, ahead);
      else if (rows == 2)
        slice_tile<2>(a, s, m, n + c, w + c, sums, ahead);
      else
        slice_tile<1>(a, s, m, n + c, w + c, sums, ahead);
    }
  }
}

template <typename T>
void many_rows(const LinearArgs<T>& a, int64_t first, int64_t last, int64_t begin, int64_t end) {
  using Stored = typename Dot<T>::Stored;
  const int64_t num_slices = (a.k + kSliceK - 1) / kSliceK;
  const int64_t length = padded<T>((a.k + num_slices - 1) / num_slices);
  auto* sums = static_cast<Vec*>(scratch(kSums, sizeof(Vec) * kBlockM * kChunkN));
  auto* wide = static_cast<Stored*>(scratch(kWeight, sizeof(Stored) * kPanelN * length));
  for (int64_t k0 = 0; k0 < a.k; k0 += length) {
    const int64_t k = a.k - k0 < length ? a.k - k0 : length;
    Slice slice{k0, k, k0 == 0, k0 + k == a.k, sums, kChunkN};
    for (int64_t n = begin; n < end; n += kPanelN, slice.sums += kPanelN) {
      const T* rows[kPanelN];
      weight_rows<kPanelN>(a, n, k0, rows);
      if constexpr (std::is_same_v<T, Stored>) {
        slice_panel(a, slice, first, last, n, rows);
      } else {
        const Stored* wide_rows[kPanelN];
        Slice converted = slice;
        converted.k = padded<T>(k);
        for (int c = 0; c < kPanelN; ++c) {
          convert(rows[c], k, wide + c * length, kPanelN * a.k);
          wide_rows[c] = wide + c * length;
        }
        slice_panel(a, converted, first, last, n, wide_rows);
      }
    }
  }
}

template <typename T>
void linear_block(const LinearArgs<T>& a, int64_t first, int64_t last, int64_t begin, int64_t end) {
  const int64_t rows = last - first;
  if (rows > kTileM) return many_rows(a, first, last, begin, end);
  if (rows == 1) return few_rows<1, kPanelN>(a, first, begin, end);
  if (rows == kTileM) return few_rows<kTileM, kTileN>(a, first, begin, end);
  int64_t m = first;
  if (rows >= 4) {  // only where a tile has six rows
    few_rows<4, kTileN>(a, m, begin, end);
    m += 4;
  }
  if (last - m >= 2) {
    few_rows<2, kTileN>(a, m, begin, end);
    m += 2;
  }
  if (m < last) few_rows<1, kPanelN>(a, m, begin, end);
}

template <typename T>
void linear_typed(T* out, const T* x, int64_t x_stride, const T* weight, const T* bias, int64_t m,
                  int64_t n, int64_t k, int num_threads) {
  using Stored = typename Dot<T>::Stored;
  const int64_t stride = padded<T>(k);
  auto* stored = static_cast<Stored*>(scratch(kX, sizeof(Stored) * m * stride));
  const LinearArgs<T> args{out, stored, stride, weight, bias, m, n, k};
  const int64_t num_blocks = (m + kBlockM - 1) / kBlockM;
  // Enough pieces to even out threads of unequal speed; a piece is whole panels.
  const int64_t chunk = n >= 8 * kChunkN ? kChunkN : 2 * kPanelN;
  const bool is_short = m * k <= 32768;  // quicker converted alone than by meeting at a barrier
  if (is_short)
    for (int64_t r = 0; r < m; ++r) convert(x + r * x_stride, k, stored + r * stride);
#pragma omp parallel num_threads(num_threads) if (m * n * k > 65536)
  {
    if (!is_short) {
#pragma omp for schedule(static)
      for (int64_t r = 0; r < m; ++r) convert(x + r * x_stride, k, stored + r * stride);
    }
#pragma omp for collapse(2) schedule(dynamic, 1) nowait
    for (int64_t b = 0; b < num_blocks; ++b)
      for (int64_t c = 0; c < n; c += chunk)
        linear_block(args, b * kBlockM, b + 1 < num_blocks ? (b + 1) * kBlockM : m, c,
                     c + chunk < n ? c + chunk : n);
  }
}

}  // namespace
}  // namespace vllm
