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

void matmul_quant(const QuantizedProduct& p, float* out) {
  const int groups = (p.inner + p.group - 1) / p.group;
  for (int row = 0; row < p.rows; ++row)
    for (int n = 0; n < p.outputs; ++n) {
      float total = 0;
      for (int g = 0; g < groups; ++g) {
        int64_t products = 0, sum = 0;
        for (int k = g * p.group; k < std::min(p.inner, (g + 1) * p.group); ++k) {
          const int x = p.input[static_cast<size_t>(row) * p.inner + k];
          products += x * (p.codes[static_cast<size_t>(n) * p.inner + k] - p.zero);
          sum += x;
        }
        const size_t of_row = static_cast<size_t>(row) * groups + g, of_output = static_cast<size_t>(n) * groups + g;
        total = std::fma(static_cast<float>(products), p.input_scales[of_row] * p.scales[of_output], total);
        if (p.minima) total = std::fma(static_cast<float>(sum) * p.input_scales[of_row], p.minima[of_output], total);
      }
      out[static_cast<size_t>(row) * p.outputs + n] = total;
    }
}

void matmul_two_level(const QuantizedProduct& p, float* out) {
  const int groups = p.inner / p.group;
  for (int row = 0; row < p.rows; ++row)
    for (int n = 0; n < p.outputs; ++n) {
      const int8_t* x = p.input + static_cast<size_t>(row) * p.inner;
      const uint8_t* codes = p.codes + static_cast<size_t>(n) * p.inner;
      float total = 0;
      for (int g = 0; g < groups; ++g) {
        int64_t products = 0, minima = 0;
        for (int k = g * p.group; k < (g + 1) * p.group; ++k) {
          const size_t subgroup = static_cast<size_t>(n) * (p.inner / p.subgroup) + k / p.subgroup;
          products += p.subscales[subgroup] * x[k] * (codes[k] - p.zero);
          if (p.subminima) minima += p.subminima[subgroup] * x[k];
        }
        const size_t of_row = static_cast<size_t>(row) * groups + g, of_output = static_cast<size_t>(n) * groups + g;
        total = std::fma(static_cast<float>(products), p.input_scales[of_row] * p.scales[of_output], total);
        if (p.minima) total = std::fma(static_cast<float>(minima), p.input_scales[of_row] * p.minima[of_output], total);
      }
      out[static_cast<size_t>(row) * p.outputs + n] = total;
    }
}

}  // namespace ridgeline::reference
