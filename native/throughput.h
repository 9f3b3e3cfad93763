// How fast this machine multiplies: the ceiling beside every compute-bound figure.
#pragma once
#include <string>

#include "kernels.h"
#include "matrix.h"

namespace ridgeline {

// An empty matrix in a format by name: fp32, bf16, int8, int8-g64, int4-g32, int4-g32-zp, q4_k and so on.
Matrix matrix_of_format(const std::string& format, int outputs, int inner);

// Operations per second (2 per multiply-add) of the best pass within `seconds`: `rows` input rows by the matrix, by
// `num_threads` threads.
double matmul_throughput(const Kernels& kernels, Matrix matrix, int rows, int num_threads, double seconds);

}  // namespace ridgeline
