// bf16: the upper half of an fp32 number. `static`, so that each ISA's source file has its own copy: an inline function
// that the linker merges could bring one path's instructions into another.
#pragma once
#include <cstdint>
#include <cstring>

namespace ridgeline {

// The nearest bf16, ties to even; NaN becomes the quiet NaN.
static inline uint16_t to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if (x != x) return 0x7FC0;
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

static inline float from_bf16(uint16_t bf16) {
  const uint32_t bits = static_cast<uint32_t>(bf16) << 16;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

}  // namespace ridgeline
