// What the sampler reads whole rows of logits for. Sums are of eight chains, so that every ISA path has the same bits.
#pragma once
#include <cmath>

#include "kernels.h"

namespace ridgeline::RIDGELINE_ISA {

static void block_maxima(const float* x, int count, float* maxima) {
  for (int begin = 0; begin < count; begin += kTopIds) {
    Vec largest = broadcast(-INFINITY);
    for (int i = begin; i < count && i < begin + kTopIds; i += kLanes)
      largest = max(largest, min(load(x + i), broadcast(INFINITY)));  // min gives its second where one is a NaN
    *maxima++ = reduce_max(largest);
  }
}

// The terms of 2^f's Taylor series from kTerm on, over f^kTerm: 12 are as good as a double for |f| <= 1/2.
template <int kTerm = 0>
static inline double pow2_series(double f) {
  constexpr double kCoefficient = [] {
    double c = 1;
    for (int k = 1; k <= kTerm; ++k) c *= 0.69314718055994530942 / k;  // ln 2
    return c;
  }();
  if constexpr (kTerm == 12) {
    return kCoefficient;
  } else {
    return __builtin_fma(f, pow2_series<kTerm + 1>(f), kCoefficient);
  }
}

// 2^t for t <= 0, within 2 ulp; 0 below -1022.
static inline double pow2(double t) {
  constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
  const double with_magic = t + kMagic;
  const uint64_t exponent = (__builtin_bit_cast(uint64_t, with_magic) << 52) + (uint64_t{1023} << 52);
  const double power = pow2_series(t - (with_magic - kMagic)) * __builtin_bit_cast(double, exponent);
  return t < -1022.0 ? 0.0 : power;
}

static double weigh(const float* x, int count, float max, double scale, double* weights) {
  for (int i = 0; i < count; ++i) weights[i] = pow2((static_cast<double>(x[i]) - max) * scale);
  double sums[8] = {};
  for (int i = 0; i < count; i += 8)
    for (int j = 0; j < 8; ++j) sums[j] += weights[i + j];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

}  // namespace ridgeline::RIDGELINE_ISA
