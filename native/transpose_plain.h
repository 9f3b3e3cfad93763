// Rearranging K and V for their pages, in plain loops: for the ISAs whose shuffles have nothing better to offer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace ridgeline::RIDGELINE_ISA {

// 16 words of each of 16 rows, `stride` bytes apart, as 16 rows of one word of each.
static inline void transpose_words(const void* from, size_t stride, void* to) {
  for (int row = 0; row < 16; ++row)
    for (int i = 0; i < 16; ++i)
      std::memcpy(static_cast<char*>(to) + 4 * (16 * i + row), static_cast<const char*>(from) + row * stride + 4 * i, 4);
}

// A value of each row in turn: 16 values of each of 1 (fp32), 2 (bf16) or 4 (int8) rows, `stride` values apart.
static inline void interleave(const float* row, int, float* to) { std::memcpy(to, row, 16 * sizeof(float)); }
static inline void interleave(const uint16_t* rows, int stride, uint16_t* to) {
  for (int i = 0; i < 16; ++i)
    for (int row = 0; row < 2; ++row) to[2 * i + row] = rows[row * stride + i];
}
static inline void interleave(const int8_t* rows, int stride, int8_t* to) {
  for (int i = 0; i < 16; ++i)
    for (int row = 0; row < 4; ++row) to[4 * i + row] = rows[row * stride + i];
}

}  // namespace ridgeline::RIDGELINE_ISA
