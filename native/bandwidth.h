// How fast this machine reads a working set of a given size: the denominator of every decode limit.
#pragma once
#include <cstddef>

namespace ridgeline {

// Bytes per second of the best pass within `seconds`, by `num_threads` threads that read disjoint parts of `bytes`.
double read_bandwidth(size_t bytes, int num_threads, double seconds);

}  // namespace ridgeline
