// fp16 as scales are stored. `static`, as in bf16.h.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace ridgeline {

static inline float from_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16, exponent = half >> 10 & 31u, fraction = half & 0x3FFu;
  uint32_t bits = sign | (exponent + 112) << 23 | fraction << 13;
  if (exponent == 31) bits = sign | 0x7F800000u | fraction << 13;
  float x;
  std::memcpy(&x, &bits, 4);
  if (exponent == 0) x = std::copysign(static_cast<float>(fraction) * 0x1p-24f, x);
  return x;
}

// Of a number that fp16 holds exactly, or NaN; of others, something else.
static inline uint16_t exact_to_half(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint32_t sign = bits >> 16 & 0x8000u, exponent = bits >> 23 & 255u;
  if (x != x) return 0x7E00;
  if (exponent == 255) return static_cast<uint16_t>(sign | 0x7C00u);
  if (exponent < 113) return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::fabs(x) * 0x1p24f));
  return static_cast<uint16_t>(sign | ((exponent - 112) << 10 & 0x7C00u) | (bits >> 13 & 0x3FFu));
}

}  // namespace ridgeline
