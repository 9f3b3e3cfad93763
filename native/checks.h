// Small things that building and running an executor share.
#pragma once
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include "kernels.h"

namespace ridgeline {

inline int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }
inline int ceil_div(int n, int d) { return (n + d - 1) / d; }

inline size_t element_bytes(Format format) { return format == Format::kBf16 ? 2 : 4; }

// Elements from one row to the next: an odd number of cache lines. The rows of a tile, an even number apart, would share
// few sets of the L1 cache and push each other out.
inline size_t row_stride(int width, size_t element) {
  constexpr size_t kLineBytes = 64;
  const size_t lines = (width * element + kLineBytes - 1) / kLineBytes;
  return (lines | 1) * kLineBytes / element;
}

// std::invalid_argument, with the numbers, unless what a caller gave is right.
inline void require(bool ok, const std::string& what) {
  if (!ok) throw std::invalid_argument(what);
}

inline void require_in_range(std::span<const int32_t> values, int low, int high, const char* name) {
  for (size_t i = 0; i < values.size(); ++i)
    require(values[i] >= low && values[i] < high,
            std::string(name) + "[" + std::to_string(i) + "] = " + std::to_string(values[i]) + " is outside " +
                std::to_string(low) + ".." + std::to_string(high - 1));
}

}  // namespace ridgeline
