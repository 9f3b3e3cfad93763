// How fast this machine multiplies: the ceiling beside every compute-bound figure.
#pragma once
#include "kernels.h"

namespace ridgeline {

// Floating-point operations per second (2 per multiply-add) of the best pass within `seconds`: `rows` input rows by a
// matrix [outputs, inner] of `format`, by `num_threads` threads.
double matmul_throughput(const Kernels& kernels, Format format, int rows, int inner, int outputs, int num_threads,
                         double seconds);

}  // namespace ridgeline
