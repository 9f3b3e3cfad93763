// bf16 matrix products by AMX tiles. tdpbf16ps adds in the order that kernels_matmul.h describes, so the bits are those
// of the other ISA paths; one row alone goes by Vec, which reads weights a little faster.
//
// A tile of weights is a packed block's [16 pairs of inner values][16 outputs][2]: 1 KiB, contiguous. Up to 32 rows and
// two blocks (a gate and its value) share four accumulators.
#pragma once
#include <immintrin.h>

#include <initializer_list>

#include "kernels_matmul.h"
#include "tiles_amx.h"

namespace ridgeline::RIDGELINE_ISA {

constexpr int kTileElements = kTileRows * kBf16Tile;  // of bf16
constexpr int kPrefetchTiles = 4;                     // how far ahead weights are asked for

// Tiles 0..3 accumulate (rows x block: 00 01 10 11), 4 and 5 hold inputs, 6 and 7 weights.
static inline void configure_tiles(int upper_rows, int lower_rows) {
  TileConfig config;
  for (int tile : {0, 1, 4}) config.set(tile, upper_rows, 64);
  if (lower_rows > 0)
    for (int tile : {2, 3, 5}) config.set(tile, lower_rows, 64);
  for (int tile : {6, 7}) config.set(tile, kTileRows, 64);
  config.load();
}

static inline void prefetch_tile(const uint16_t* weights) {
  for (int line = 0; line < kTileRows; ++line)
    _mm_prefetch(reinterpret_cast<const char*>(weights + line * kBf16Tile), _MM_HINT_T0);
}

// Asks for the lines of the output that rows from `row` on will write, each step of a product for its share of them:
// waiting for them at the end takes a third of the time.
template <class Args>
static inline void prefetch_output(const Args& a, size_t value_bytes, int row, int rows, int step, int steps, int block0,
                                   int block1) {
  for (int r = row + step; r < row + rows; r += steps) {
    const char* out = reinterpret_cast<const char*>(a.out) + r * a.out_stride * value_bytes;
    __builtin_prefetch(out + block0 * kLanes * value_bytes, 1);
    if (a.epilogue != Epilogue::kSiluMul) __builtin_prefetch(out + block1 * kLanes * value_bytes, 1);
  }
}

// Products of rows row .. row + rows - 1 with two blocks: sums[32][2][16].
template <bool kTwoRowTiles>
static inline void multiply_tiles(const MatmulArgs& a, int row, int rows, int block0, int block1, float* sums) {
  const auto* weights = static_cast<const uint16_t*>(a.weights);
  const uint16_t* w0 = weights + static_cast<size_t>(block0) * a.inner * kLanes;
  const uint16_t* w1 = weights + static_cast<size_t>(block1) * a.inner * kLanes;
  const uint16_t* upper = row_of<uint16_t>(a.input, a.input_stride, row);
  const uint16_t* lower = upper + kTileRows * a.input_stride;
  const size_t input_bytes = a.input_stride * sizeof(uint16_t);
  const size_t value_bytes = a.epilogue == Epilogue::kSiluMul && a.out_format == Format::kBf16 ? 2 : 4;
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kTwoRowTiles) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int k = 0; k < a.inner; k += kBf16Tile, w0 += kTileElements, w1 += kTileElements) {
    prefetch_tile(w0 + kPrefetchTiles * kTileElements);
    prefetch_tile(w1 + kPrefetchTiles * kTileElements);
    prefetch_output(a, value_bytes, row, rows, k / kBf16Tile, a.inner / kBf16Tile, block0, block1);
    _tile_loadd(6, w0, 64);
    _tile_loadd(7, w1, 64);
    _tile_loadd(4, upper + k, input_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kTwoRowTiles) {
      _tile_loadd(5, lower + k, input_bytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  constexpr size_t kSumBytes = 2 * kLanes * sizeof(float);
  _tile_stored(0, sums, kSumBytes);
  _tile_stored(1, sums + kLanes, kSumBytes);
  if constexpr (kTwoRowTiles) {
    _tile_stored(2, sums + kTileRows * 2 * kLanes, kSumBytes);
    _tile_stored(3, sums + kTileRows * 2 * kLanes + kLanes, kSumBytes);
  }
}

static void multiply_rows(const MatmulArgs& a, int row, int rows, int block_begin, int block_end) {
  alignas(64) float sums[2 * kTileRows * 2 * kLanes];
  const bool silu_mul = a.epilogue == Epilogue::kSiluMul;
  for (int block = block_begin; block < block_end; block += silu_mul ? 1 : 2) {
    const bool pair = silu_mul || block + 1 < block_end;
    const int second = silu_mul ? a.num_blocks + block : pair ? block + 1 : block;
    if (rows > kTileRows) {
      multiply_tiles<true>(a, row, rows, block, second, sums);
    } else {
      multiply_tiles<false>(a, row, rows, block, second, sums);
    }
    for (int r = 0; r < rows; ++r) {
      const float* sum = sums + r * 2 * kLanes;
      if (silu_mul) {
        finish_silu_mul(a, row + r, block, load(sum), load(sum + kLanes));
        continue;
      }
      finish_plain(a, row + r, block, load(sum));
      if (pair) finish_plain(a, row + r, block + 1, load(sum + kLanes));
    }
  }
}

static void matmul_by_tiles(const MatmulArgs& a, int row_begin, int row_end, int block_begin, int block_end) {
  if (row_end - row_begin == 1) return matmul<Bf16Product>(a, row_begin, row_end, block_begin, block_end);
  int configured = 0;
  for (int row = row_begin; row < row_end; row += 2 * kTileRows) {
    const int rows = row_end - row < 2 * kTileRows ? row_end - row : 2 * kTileRows;
    if (rows != configured) {
      configure_tiles(rows < kTileRows ? rows : kTileRows, rows > kTileRows ? rows - kTileRows : 0);
      configured = rows;
    }
    multiply_rows(a, row, rows, block_begin, block_end);
  }
  _tile_release();
}

}  // namespace ridgeline::RIDGELINE_ISA
