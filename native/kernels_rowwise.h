// Row-wise kernels over Vec: exponential, norm, log-sum-exp.
#pragma once
#include <cmath>

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
    store_rounded(static_cast<uint16_t*>(matrix) + at, y);
  } else {
    store(static_cast<float*>(matrix) + at, y);
  }
}

// 1 / the root of the mean square, in all lanes.
static inline Vec inverse_root_mean_square(const float* in, int width, int padded_width, float eps) {
  Vec sum = zero();
  for (int i = 0; i < padded_width; i += kLanes) {
    const Vec x = load(in + i);
    sum = fma(x, x, sum);
  }
  return broadcast(1.0f / std::sqrt(reduce_add(sum) / static_cast<float>(width) + eps));
}

static void norm(const NormArgs& a, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row) {
    const float* in = a.input + row * a.input_stride;
    const Vec inverse = inverse_root_mean_square(in, a.width, a.padded_width, a.eps);
    for (int i = 0; i < a.padded_width; i += kLanes) {
      __builtin_prefetch(in + a.input_stride + i);  // of the next row
      store_as(a.out_format, a.out, row * a.out_stride + i, mul(mul(load(in + i), inverse), load(a.weight + i)));
    }
  }
}

}  // namespace ridgeline::RIDGELINE_ISA
