// The matrix products' slow obvious twin: plain loops in the order that kernels_matmul.h promises. Tests compare bits.
#pragma once
#include "kernels.h"

namespace ridgeline::reference {

// out[row][output] = input[row] . weights[output], all row-major; bf16: the values are already rounded.
void matmul(const float* input, int rows, const float* weights, int outputs, int inner, Format format, float* out);

}  // namespace ridgeline::reference
