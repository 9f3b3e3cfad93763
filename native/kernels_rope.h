// A row's q, k and v after their product: heads are normalized where a model does so, q and k rotated by position, and
// k and v stored in the sequence's page.
#pragma once
#include <cstring>

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
static inline float convert_head(const float* head, int head_dim, float* to) {
  for (int i = 0; i < head_dim; i += kLanes) store(to + i, load(head + i));
  return 0;
}
static inline float convert_head(const float* head, int head_dim, uint16_t* to) {
  for (int i = 0; i < head_dim; i += kLanes) store_rounded(to + i, load(head + i));
  return 0;
}
static inline float convert_head(const float* head, int head_dim, int8_t* to) {
  float scale;
  int32_t sum;
  quantize_group(head, head_dim, padded_head_dim(head_dim), to, &scale, &sum);
  return scale;
}

static inline void norm_head(float* head, const float* weight, int head_dim, float eps) {
  const int padded = padded_head_dim(head_dim);
  for (int i = head_dim; i < padded; ++i) head[i] = 0.0f;
  norm({head, 0, weight, head, 0, head_dim, padded, eps, Format::kF32}, 0, 1);
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

// Rows of one page come in one call, in order.
template <class Pages>
static void rope(const RopeArgs& a, int row_begin, int row_end) {
  using Query = typename Pages::Query;
  const int half = a.head_dim / 2, group = a.num_heads / a.kv.num_kv_heads;
  const size_t kv_width = static_cast<size_t>(a.kv.num_kv_heads) * a.head_dim;
  alignas(64) float head[kMaxHeadDim] = {};
  alignas(64) Query query[kMaxHeadDim];
  alignas(64) typename Pages::Element converted[kMaxHeadDim];
  const int whole = a.head_dim / kLanes * kLanes;
  // leaves one head in `head`, normalized and rotated
  const auto prepare = [&](const float* from, const float* norm_weight, const float* cos) {
    for (int i = 0; i < whole; i += kLanes) store(head + i, load(from + i));
    for (int i = whole; i < a.head_dim; ++i) head[i] = from[i];
    if (norm_weight) norm_head(head, norm_weight, a.head_dim, a.eps);
    if (cos) rotate_head(head, cos, cos + a.rotation_stride, half);
  };
  for (int row = row_begin; row < row_end; ++row) {
    const float* from = a.qkv + row * a.qkv_stride;
    const float* cos = a.rotations + a.positions[row] * 2 * a.rotation_stride;
    for (int h = 0; h < a.kv.num_kv_heads; ++h) {
      Query* q = static_cast<Query*>(a.q) + h * a.q_head_stride + static_cast<size_t>(row) * group * a.head_dim;
      for (int i = 0; i < group; ++i, from += a.head_dim, q += a.head_dim) {
        prepare(from, a.q_norm, cos);
        convert_head(head, a.head_dim, whole == a.head_dim ? q : query);
        if (whole < a.head_dim) std::memcpy(q, query, sizeof(Query) * a.head_dim);
      }
    }
    const int page = a.slots[row] / kPageSize, offset = a.slots[row] % kPageSize;
    for (int h = 0; h < a.kv.num_kv_heads; ++h, from += a.head_dim) {
      if (a.clears[row]) clear_slots<Pages>(a.kv, page, h, offset, a.head_dim);
      prepare(from, a.k_norm, cos);
      float scale = convert_head(head, a.head_dim, converted);
      store_key<Pages>(a.kv.k_at(page, h), offset, converted, scale, a.head_dim);
      prepare(from + kv_width, nullptr, nullptr);
      scale = convert_head(head, a.head_dim, converted);
      store_value<Pages>(a.kv.v_at(page, h), offset, converted, scale, a.head_dim);
    }
  }
}

}  // namespace ridgeline::RIDGELINE_ISA
