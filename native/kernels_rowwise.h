// Row-wise kernels over Vec: exponential, norm, rotary embedding with the store into pages, log-sum-exp.
#pragma once
#include <cmath>
#include <cstring>

#include "bf16.h"
#include "kernels.h"

namespace ridgeline::RIDGELINE_ISA {

// exp(x) within 2 ulp, 0 below -87.3; NaN stays NaN. exp(x) = 2^n * p(r), n = round(x / ln 2), |r| <= ln(2) / 2; the
// polynomial's coefficients are Cephes' expf's.
static inline Vec exp(Vec x) {
  const Vec magic = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec low = broadcast(-87.33654f);
  const Vec clamped = max(low, min(broadcast(88.37626f), x));
  const Vec t = fma(clamped, broadcast(1.44269504f), magic);
  const Vec n = sub(t, magic);
  Vec r = fma(n, broadcast(-0.693359375f), clamped);
  r = fma(n, broadcast(2.12194440e-4f), r);
  Vec p = broadcast(1.9875691500e-4f);
  p = fma(p, r, broadcast(1.3981999507e-3f));
  p = fma(p, r, broadcast(8.3334519073e-3f));
  p = fma(p, r, broadcast(4.1665795894e-2f));
  p = fma(p, r, broadcast(1.6666665459e-1f));
  p = fma(p, r, broadcast(5.0000001201e-1f));
  p = add(fma(p, mul(r, r), r), broadcast(1.0f));
  return zero_where_less(mul(p, pow2_from_magic(t)), x, low);
}

static float log_sum_exp(const float* x, int count, float max_value) {
  Vec sum = zero();
  for (int i = 0; i < count; i += kLanes) sum = add(sum, exp(sub(load(x + i), broadcast(max_value))));
  return max_value + std::log(reduce_add(sum));
}

// Row `row` of a matrix whose elements are of type T.
template <class T>
static inline T* row_of(void* matrix, size_t stride, int row) {
  return static_cast<T*>(matrix) + row * stride;
}
template <class T>
static inline const T* row_of(const void* matrix, size_t stride, int row) {
  return static_cast<const T*>(matrix) + row * stride;
}

// 16 values at element `at`, rounded when the format is bf16.
static inline void store_as(Format format, void* matrix, size_t at, Vec y) {
  if (format == Format::kBf16) {
    store_bf16(static_cast<uint16_t*>(matrix) + at, round_to_bf16(y));
  } else {
    store(static_cast<float*>(matrix) + at, y);
  }
}

static void norm(const NormArgs& a, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row) {
    const float* in = a.input + row * a.input_stride;
    Vec sum = zero();
    for (int i = 0; i < a.padded_width; i += kLanes) {
      const Vec x = load(in + i);
      sum = fma(x, x, sum);
    }
    const Vec inverse = broadcast(1.0f / std::sqrt(reduce_add(sum) / static_cast<float>(a.width) + a.eps));
    for (int i = 0; i < a.padded_width; i += kLanes) {
      store_as(a.out_format, a.out, row * a.out_stride + i, mul(mul(load(in + i), inverse), load(a.weight + i)));
    }
  }
}

// Head-sized work on a scratch copy padded with zeros to whole vectors.
static inline void norm_head(float* head, const float* weight, int head_dim, float eps) {
  NormArgs a{head, 0, weight, head, 0, head_dim, (head_dim + kLanes - 1) / kLanes * kLanes, eps,
             Format::kF32};
  norm(a, 0, 1);
}

static inline void rotate_head(float* head, const float* cos, const float* sin, int head_dim) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const float a = head[i], b = head[i + half];
    // fused explicitly: what the compiler would contract may differ between ISA paths
    head[i] = __builtin_fmaf(a, cos[i], -(b * sin[i]));
    head[i + half] = __builtin_fmaf(b, cos[i], a * sin[i]);
  }
}

// How one element type lies in pages; `kStep` values of the reduced dimension stand together.
struct PagesF32 {
  using Element = float;
  static constexpr int kStep = 1;
  static Element convert(float x) { return x; }
};
struct PagesBf16 {
  using Element = uint16_t;
  static constexpr int kStep = 2;
  static Element convert(float x) { return to_bf16(x); }
};

template <class Pages>
static inline size_t k_index(int dim, int key) {
  return static_cast<size_t>(dim / Pages::kStep) * kPageSize * Pages::kStep + key * Pages::kStep + dim % Pages::kStep;
}
template <class Pages>
static inline size_t v_index(int dim, int key, int padded_dim) {
  return static_cast<size_t>(key / Pages::kStep) * padded_dim * Pages::kStep + dim * Pages::kStep + key % Pages::kStep;
}

template <class Pages>
static void store_key(const KvLayer& kv, int page, int kv_head, int offset, const float* k, const float* v, int head_dim,
                      int stale_from) {
  using Element = typename Pages::Element;
  auto* keys = reinterpret_cast<Element*>(kv.k_at(page, kv_head));
  auto* values = reinterpret_cast<Element*>(kv.v_at(page, kv_head));
  const int padded_dim = (head_dim + kLanes - 1) / kLanes * kLanes;
  for (int d = 0; d < head_dim; ++d) {
    keys[k_index<Pages>(d, offset)] = Pages::convert(k[d]);
    values[v_index<Pages>(d, offset, padded_dim)] = Pages::convert(v[d]);
    // Clears what another sequence left behind: a masked weight of 0 times a stale NaN is NaN.
    for (int key = stale_from; key < kPageSize; ++key) {
      keys[k_index<Pages>(d, key)] = 0;
      values[v_index<Pages>(d, key, padded_dim)] = 0;
    }
  }
}

template <class Pages>
static void rope(const RopeArgs& a, int row_begin, int row_end) {
  const int half = a.head_dim / 2;
  const int q_width = a.num_heads * a.head_dim, kv_width = a.kv.num_kv_heads * a.head_dim;
  float head[kMaxHeadDim] = {};
  for (int row = row_begin; row < row_end; ++row) {
    const float* qkv = a.qkv + row * a.qkv_stride;
    const float *cos = a.cos + static_cast<size_t>(row) * half, *sin = a.sin + static_cast<size_t>(row) * half;
    for (int h = 0; h < a.num_heads; ++h) {
      std::memcpy(head, qkv + h * a.head_dim, sizeof(float) * a.head_dim);
      if (a.q_norm) norm_head(head, a.q_norm, a.head_dim, a.eps);
      rotate_head(head, cos, sin, a.head_dim);
      auto* q = row_of<typename Pages::Element>(a.q, a.q_stride, row) + h * a.head_dim;
      for (int d = 0; d < a.head_dim; ++d) q[d] = Pages::convert(head[d]);
    }
    const int page = a.slots[row] / kPageSize, offset = a.slots[row] % kPageSize;
    for (int h = 0; h < a.kv.num_kv_heads; ++h) {
      std::memcpy(head, qkv + q_width + h * a.head_dim, sizeof(float) * a.head_dim);
      if (a.k_norm) norm_head(head, a.k_norm, a.head_dim, a.eps);
      rotate_head(head, cos, sin, a.head_dim);
      store_key<Pages>(a.kv, page, h, offset, head, qkv + q_width + kv_width + h * a.head_dim, a.head_dim,
                         a.stale_from[row]);
    }
  }
}

}  // namespace ridgeline::RIDGELINE_ISA
