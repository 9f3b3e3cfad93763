#include "reference.h"

#include <algorithm>
#include <cmath>

namespace ridgeline::reference {

namespace {

float dot_f32(const float* a, const float* b, int inner) {
  float sum = 0;
  for (int k = 0; k < inner; ++k) sum = std::fma(a[k], b[k], sum);
  return sum;
}

float dot_bf16(const float* a, const float* b, int inner) {
  float sum = 0;
  for (int tile = 0; tile < inner; tile += kBf16Tile) {
    const int end = std::min(tile + kBf16Tile, inner);
    float even = 0, odd = 0;
    for (int k = tile; k < end; k += 2) even = std::fma(a[k], b[k], even);
    for (int k = tile + 1; k < end; k += 2) odd = std::fma(a[k], b[k], odd);
    sum = sum + (even + odd);
  }
  return sum;
}

}  // namespace

void matmul(const float* input, int rows, const float* weights, int outputs, int inner, Format format, float* out) {
  for (int row = 0; row < rows; ++row)
    for (int n = 0; n < outputs; ++n) {
      const float *a = input + static_cast<size_t>(row) * inner, *b = weights + static_cast<size_t>(n) * inner;
      out[static_cast<size_t>(row) * outputs + n] =
          format == Format::kBf16 ? dot_bf16(a, b, inner) : dot_f32(a, b, inner);
    }
}

}  // namespace ridgeline::reference
