// A row's q, k and v after their product: heads are normalized where a model does so, q and k rotated by position, and
// k and v stored in the sequence's page.
#pragma once
#include <cstring>
#include <type_traits>

#include "bf16.h"
#include "kernels.h"
#include "kernels_quant.h"
#include "kernels_rowwise.h"
#include "kv_format.h"

namespace ridgeline::RIDGELINE_ISA {

// How one element type lies in pages: `kStep` values of the reduced dimension stand together.
struct PagesF32 {
  using Element = float;
  using Query = float;
  static constexpr int kStep = 1;
  static constexpr bool kHasScales = false;
};
struct PagesBf16 {
  using Element = uint16_t;
  using Query = uint16_t;
  static constexpr int kStep = 2;
  static constexpr bool kHasScales = false;
};
struct PagesInt8 {
  using Element = int8_t;
  using Query = float;
  static constexpr int kStep = 4;
  static constexpr bool kHasScales = true;
};

// Whole vectors of a head as elements or queries; returns the scale of int8.
static inline void convert_vector(Vec x, float* to) { store(to, x); }
static inline void convert_vector(Vec x, uint16_t* to) { store_rounded(to, x); }
template <class To>
static inline float convert_head(const float* head, int head_dim, To* to) {
  for (int i = 0; i < head_dim; i += kLanes) convert_vector(load(head + i), to + i);
  return 0;
}
static inline float convert_head(const float* head, int head_dim, int8_t* to) {
  float scale;
  int32_t sum;
  quantize_group(head, head, head_dim, padded_head_dim(head_dim), to, &scale, &sum);
  return scale;
}

// Of a head with zeros up to whole vectors.
static inline void norm_head(float* head, const float* weight, int head_dim, float eps) {
  norm({head, 0, weight, head, 0, head_dim, padded_head_dim(head_dim), eps, Format::kF32}, 0, 1);
}

// Pairs are (i, i + half). Fused explicitly: what the compiler would contract may differ between ISA paths.
static inline void rotate_head(float* head, const float* cos, const float* sin, int half) {
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Vec a = load(head + i), b = load(head + i + half), c = load(cos + i), s = load(sin + i);
    store(head + i, fma(a, c, sub(zero(), mul(b, s))));
    store(head + i + half, fma(b, c, mul(a, s)));
  }
  for (; i < half; ++i) {
    const float a = head[i], b = head[i + half];
    head[i] = __builtin_fmaf(a, cos[i], -(b * sin[i]));
    head[i + half] = __builtin_fmaf(b, cos[i], a * sin[i]);
  }
}

// One key or value of a page, strided as K or V lies (see KvLayer); `scale` counts where pages have scales.
template <class Pages, class Element = typename Pages::Element>
static inline void store_key(char* keys, int offset, const Element* k, float scale, int head_dim) {
  constexpr int kStep = Pages::kStep;
  const int padded_dim = (head_dim + kStep - 1) / kStep * kStep;
  Element* to = reinterpret_cast<Element*>(keys) + offset / kLanes * padded_dim * kLanes + offset % kLanes * kStep;
  for (int d = 0; d < padded_dim; d += kStep) std::memcpy(to + d * kLanes, k + d, sizeof(Element) * kStep);
  if constexpr (Pages::kHasScales) int8_scales(keys, padded_dim)[offset] = scale;
}
template <class Pages, class Element = typename Pages::Element>
static inline void store_value(char* values, int offset, const Element* v, float scale, int head_dim) {
  constexpr int kStep = Pages::kStep;
  Element* to = reinterpret_cast<Element*>(values) + offset / kStep * kLanes * kStep + offset % kStep;
  for (int d = 0; d < head_dim; d += kLanes, to += kLanes * kPageSize) {
    const int count = head_dim - d < kLanes ? head_dim - d : kLanes;
    for (int i = 0; i < count; ++i) to[i * kStep] = v[d + i];
  }
  if constexpr (Pages::kHasScales) int8_scales(values, padded_head_dim(head_dim))[offset] = scale;
}

// `count` keys or values from slot `offset` on: 16 from a multiple of 16, or one.
template <class Pages, class Element = typename Pages::Element>
static inline void store_keys(char* keys, int offset, int count, const Element (*rows)[kMaxHeadDim],
                              const float* scales, int head_dim) {
  constexpr int kWords = 4 * kLanes / sizeof(Element);  // elements in 16 words
  if (count == 1 || head_dim % kWords) {
    for (int i = 0; i < count; ++i) store_key<Pages>(keys, offset + i, rows[i], scales[i], head_dim);
    return;
  }
  Element* to = reinterpret_cast<Element*>(keys) + offset * head_dim;
  for (int d = 0; d < head_dim; d += kWords) transpose_words(rows[0] + d, sizeof rows[0], to + d * kLanes);
  if constexpr (Pages::kHasScales) std::memcpy(int8_scales(keys, head_dim) + offset, scales, sizeof(float) * kLanes);
}
template <class Pages, class Element = typename Pages::Element>
static inline void store_values(char* values, int offset, int count, const Element (*rows)[kMaxHeadDim],
                                const float* scales, int head_dim) {
  constexpr int kStep = Pages::kStep;
  if (count == 1 || head_dim % kLanes) {
    for (int i = 0; i < count; ++i) store_value<Pages>(values, offset + i, rows[i], scales[i], head_dim);
    return;
  }
  for (int row = 0; row < kLanes; row += kStep) {
    Element* to = reinterpret_cast<Element*>(values) + (offset + row) * kLanes;
    for (int d = 0; d < head_dim; d += kLanes, to += kLanes * kPageSize) interleave(rows[row] + d, kMaxHeadDim, to);
  }
  if constexpr (Pages::kHasScales) std::memcpy(int8_scales(values, head_dim) + offset, scales, sizeof(float) * kLanes);
}

// Clears what another sequence left behind: a masked weight of 0 times a stale NaN is NaN.
template <class Pages>
static inline void clear_slots(const KvLayer& kv, int page, int kv_head, int from, int head_dim) {
  char *keys = kv.k_at(page, kv_head), *values = kv.v_at(page, kv_head);
  if (from == 0) {
    std::memset(keys, 0, kv.k_head_bytes);
    std::memset(values, 0, kv.v_head_bytes);
    return;
  }
  const typename Pages::Element zeros[kMaxHeadDim] = {};
  for (int slot = from; slot < kPageSize; ++slot) {
    store_key<Pages>(keys, slot, zeros, 0, head_dim);
    store_value<Pages>(values, slot, zeros, 0, head_dim);
  }
}

// A head of whole vectors, normalized and rotated in registers: the same operations as norm_head and rotate_head.
template <class To>
static inline void prepare_vectors(const RopeArgs& a, const float* from, const float* norm_weight, const float* cos,
                                   To* to) {
  const int half = a.head_dim / 2;
  const float* sin = cos + a.rotation_stride;
  const Vec inverse = norm_weight ? inverse_root_mean_square(from, a.head_dim, a.head_dim, a.eps) : zero();
  for (int i = 0; i < half; i += kLanes) {
    Vec first = load(from + i), second = load(from + i + half);
    if (norm_weight) {
      first = mul(mul(first, inverse), load(norm_weight + i));
      second = mul(mul(second, inverse), load(norm_weight + i + half));
    }
    const Vec c = load(cos + i), s = load(sin + i);
    const Vec rotated = fma(first, c, sub(zero(), mul(second, s))), other = fma(second, c, mul(first, s));
    convert_vector(rotated, to + i);
    convert_vector(other, to + i + half);
  }
}

// One head, normalized where there are weights and rotated where there are angles, as elements or queries with zeros up
// to whole vectors. Returns the scale of int8.
template <class To>
static inline float prepare(const RopeArgs& a, const float* from, const float* norm_weight, const float* cos, To* to) {
  const bool in_vectors = a.head_dim % (2 * kLanes) == 0;
  if constexpr (!std::is_same_v<To, int8_t>) {
    if (in_vectors && cos) {
      prepare_vectors(a, from, norm_weight, cos, to);
      return 0;
    }
  }
  if (in_vectors && !norm_weight && !cos) return convert_head(from, a.head_dim, to);
  alignas(64) float head[kMaxHeadDim];
  if (in_vectors && cos) {
    prepare_vectors(a, from, norm_weight, cos, head);
    return convert_head(head, a.head_dim, to);
  }
  for (int i = 0; i < a.head_dim; i += kLanes) store(head + i, load_left(from + i, a.head_dim - i));
  if (norm_weight) norm_head(head, norm_weight, a.head_dim, a.eps);
  if (cos) rotate_head(head, cos, cos + a.rotation_stride, a.head_dim / 2);
  return convert_head(head, a.head_dim, to);
}

static inline void prefetch_head(const float* head, int head_dim) {
  for (int i = 0; i < head_dim; i += kLanes) __builtin_prefetch(head + i);
}

template <class Pages>
static inline void rope_queries(const RopeArgs& a, int row) {
  using Query = typename Pages::Query;
  alignas(64) Query query[kMaxHeadDim];
  const int group = a.num_heads / a.kv.num_kv_heads;
  const bool whole = a.head_dim % kLanes == 0;
  const float* from = a.qkv + row * a.qkv_stride;
  const float* cos = a.rotations + a.positions[row] * 2 * a.rotation_stride;
  for (int h = 0; h < a.kv.num_kv_heads; ++h) {
    Query* q = static_cast<Query*>(a.q) + h * a.q_head_stride + static_cast<size_t>(row) * group * a.head_dim;
    for (int i = 0; i < group; ++i, from += a.head_dim, q += a.head_dim) {
      prefetch_head(from + a.qkv_stride, a.head_dim);  // of the next row
      prepare(a, from, a.q_norm, cos, whole ? q : query);
      if (!whole) std::memcpy(q, query, sizeof(Query) * a.head_dim);
    }
  }
}

static inline void prefetch_to_write(const char* to, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(to + i, 1);
}

// The keys and values of one head and of rows whose slots follow each other in one page: one head after another, as
// their part of a page stays in the L1 cache.
template <class Pages>
static void store_rows(const RopeArgs& a, int h, int row_begin, int row_end) {
  using Element = typename Pages::Element;
  alignas(64) Element elements[kLanes][kMaxHeadDim];
  float scales[kLanes];
  const int page = a.slots[row_begin] / kPageSize, begin = a.slots[row_begin] % kPageSize;
  char *keys = a.kv.k_at(page, h), *values = a.kv.v_at(page, h);
  const bool overwritten = row_end - row_begin == kPageSize && a.head_dim % kLanes == 0;
  if (a.clears[row_begin] && !overwritten) clear_slots<Pages>(a.kv, page, h, begin, a.head_dim);
  const size_t from_head = (a.num_heads + h) * static_cast<size_t>(a.head_dim);
  const size_t to_values = a.kv.num_kv_heads * static_cast<size_t>(a.head_dim);
  const size_t row_bytes = sizeof(Element) * a.head_dim;
  for (int row = row_begin, count; row < row_end; row += count) {
    const int offset = begin + row - row_begin;
    count = offset % kLanes == 0 && row_end - row >= kLanes ? kLanes : 1;
    for (int i = 0; i < count; ++i) {
      const float* cos = a.rotations + a.positions[row + i] * 2 * a.rotation_stride;
      const float* from = a.qkv + (row + i) * a.qkv_stride + from_head;
      prefetch_head(from + to_values, a.head_dim);
      if (count == kLanes) prefetch_to_write(keys + (offset + i) * row_bytes, row_bytes);
      scales[i] = prepare(a, from, a.k_norm, cos, elements[i]);
    }
    store_keys<Pages>(keys, offset, count, elements, scales, a.head_dim);
    for (int i = 0; i < count; ++i) {
      const float* from = a.qkv + (row + i) * a.qkv_stride + from_head;
      prefetch_head(from + a.head_dim, a.head_dim);  // the next head's key
      // rows of values lie all over their page
      if (count == kLanes && offset == 0) prefetch_to_write(values + 2 * i * row_bytes, 2 * row_bytes);
      scales[i] = prepare(a, from + to_values, nullptr, nullptr, elements[i]);
    }
    store_values<Pages>(values, offset, count, elements, scales, a.head_dim);
  }
}

template <class Pages>
static void rope(const RopeArgs& a, int row_begin, int row_end) {
  for (int begin = row_begin, end; begin < row_end; begin = end) {
    end = begin + 1;
    while (end < row_end && a.slots[end] == a.slots[end - 1] + 1 && a.slots[end] % kPageSize) ++end;
    for (int row = begin; row < end; ++row) rope_queries<Pages>(a, row);
    for (int h = 0; h < a.kv.num_kv_heads; ++h) store_rows<Pages>(a, h, begin, end);
  }
}

}  // namespace ridgeline::RIDGELINE_ISA
