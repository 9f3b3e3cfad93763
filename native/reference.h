// The matrix products' slow obvious twin: plain loops in the order that the kernels promise. Tests compare bits.
#pragma once
#include "kernels.h"

namespace ridgeline::reference {

// out[row][output] = input[row] . weights[output], all row-major; bf16: the values are already rounded.
void matmul(const float* input, int rows, const float* weights, int outputs, int inner, Format format, float* out);

// A quantized matrix and its input, row-major; the last group of a row may be shorter. `zero` is the code of 0.
struct QuantizedProduct {
  const int8_t* input;         // [rows, inner]
  const float* input_scales;   // [rows, groups]
  const uint8_t* codes;        // [outputs, inner]
  const float* scales;         // [outputs, groups]
  const float* minima;         // [outputs, groups] or null
  int rows, outputs, inner, group, zero;
  const int8_t* subscales = nullptr;   // of two levels: [outputs, inner / subgroup]
  const uint8_t* subminima = nullptr;  // the same, or null
  int subgroup = 0;
};

// out[row][output], in the order that kernels_quant.h promises.
void matmul_quant(const QuantizedProduct& p, float* out);

// The same of two levels of scales, in the order that kernels_two_level.h promises.
void matmul_two_level(const QuantizedProduct& p, float* out);

}  // namespace ridgeline::reference
