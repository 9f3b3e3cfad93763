// bf16 matrix products by AMX tiles. tdpbf16ps adds in the order that kernels_matmul.h describes, so the bits are those
// of the other ISA paths; one row alone goes by Vec, which reads weights a little faster.
#pragma once
#include "product_amx.h"

namespace ridgeline::RIDGELINE_ISA {

struct Bf16Tiles {
  using Args = MatmulArgs;
  using Sum = float;
  static constexpr int kElementBytes = 2;

  static int inner(const Args& a) { return a.inner; }
  static Format out_format(const Args& a) { return a.out_format; }

  template <int kAccumulator>
  static inline void multiply() {  // a tile's number must be a literal
    if constexpr (kAccumulator == 0) _tile_dpbf16ps(0, 4, 6);
    if constexpr (kAccumulator == 1) _tile_dpbf16ps(1, 4, 7);
    if constexpr (kAccumulator == 2) _tile_dpbf16ps(2, 5, 6);
    if constexpr (kAccumulator == 3) _tile_dpbf16ps(3, 5, 7);
  }

  struct Columns {
    Columns(const Args& a, int block) : bias(load_bias(a, block)) {}

    Vec total(const Args&, int, const float* sums) const { return add(load(sums), bias); }

    Vec bias;
  };
};

static void matmul_by_tiles(const MatmulArgs& a, int row_begin, int row_end, int block_begin, int block_end) {
  const bool alone = row_end - row_begin == 1;
  (alone ? matmul<Bf16Product> : multiply_by_tiles<Bf16Tiles>)(a, row_begin, row_end, block_begin, block_end);
}

}  // namespace ridgeline::RIDGELINE_ISA
