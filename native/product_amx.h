// How matrix products walk over AMX tiles. bf16 and int8 differ in the instruction and in what becomes of a sum, which
// `Product` tells:
//
//   Args, Sum, kElementBytes    the kernel's arguments, a tile's sums (float or int32_t), the size of an operand's element
//   multiply<kAccumulator>()    adds the product of two operand tiles to accumulator 0 .. 3
//   Columns(args, block)        what 16 outputs have in common; total(args, row, sums) is what a row's sums amount to
//
// A tile of inputs is 64 bytes of 16 rows; one of weights is 1 KiB of a packed block, contiguous. Up to 32 rows and two
// blocks (a gate and its value) share four accumulators, and while they add up, the sums before them are scaled and
// stored: that is free as long as it takes few instructions, so whatever a pair of blocks has in common is read once.
//
// A pair of blocks goes through all rows before the next one. It stays in the L1 cache where it fits beside the inputs,
// which are loaded past it (tileloaddt1); of the next pair, every step asks for its share.
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <initializer_list>

#include "kernels_matmul.h"
#include "tiles_amx.h"

namespace ridgeline::RIDGELINE_ISA {

constexpr int kTileBytes = kTileRows * 64;
constexpr int kResidentSteps = 16;  // tiles of each of two blocks that stay in the L1 cache

// Tiles 0..3 accumulate (rows x block: 00 01 10 11), 4 and 5 hold inputs, 6 and 7 weights.
static inline void configure_tiles(int rows) {
  const int upper_rows = std::min(rows, kTileRows), lower_rows = rows - upper_rows;
  TileConfig config;
  for (int tile : {0, 1, 4}) config.set(tile, upper_rows, 64);
  if (lower_rows > 0)
    for (int tile : {2, 3, 5}) config.set(tile, lower_rows, 64);
  for (int tile : {6, 7}) config.set(tile, kTileRows, 64);
  config.load();
}

static inline void prefetch_lines(const void* begin, int bytes) {
  for (int at = 0; at < bytes; at += 64) _mm_prefetch(static_cast<const char*>(begin) + at, _MM_HINT_T0);
}

// Two blocks: neighbours, or a gate and its value. The last one may stand alone, as both.
struct BlockPair {
  int first, second;
};

// What becomes of the sums of one row tile and pair.
template <class Product, Epilogue kEpilogue>
class PairEnd {
 public:
  using Args = typename Product::Args;
  using Sum = typename Product::Sum;

  PairEnd(const Args& a, int row, BlockPair pair)
      : a_(&a), row_(row), pair_(pair), first_(a, pair.first), second_(a, pair.second),
        out_(reinterpret_cast<char*>(a.out) + row * out_bytes() + pair.first * kLanes * value_bytes()) {}

  void prefetch(int r) const {
    __builtin_prefetch(out_ + r * out_bytes(), 1);
    if constexpr (kEpilogue != Epilogue::kSiluMul) __builtin_prefetch(out_ + r * out_bytes() + 64, 1);
  }

  void finish(int r, const Sum* sums) const {
    const Vec first = first_.total(*a_, row_ + r, sums), second = second_.total(*a_, row_ + r, sums + kLanes);
    char* out = out_ + r * out_bytes();
    if constexpr (kEpilogue == Epilogue::kSiluMul) {
      store_as(Product::out_format(*a_), out, 0, silu_mul(first, second));
    } else {
      float* to = reinterpret_cast<float*>(out);
      store(to, kEpilogue == Epilogue::kAdd ? add(load(to), first) : first);
      if (pair_.second == pair_.first) return;
      store(to + kLanes, kEpilogue == Epilogue::kAdd ? add(load(to + kLanes), second) : second);
    }
  }

 private:
  size_t value_bytes() const {
    return kEpilogue == Epilogue::kSiluMul && Product::out_format(*a_) == Format::kBf16 ? 2 : 4;
  }
  size_t out_bytes() const { return a_->out_stride * value_bytes(); }

  const Args* a_;
  int row_;
  BlockPair pair_;
  typename Product::Columns first_, second_;
  char* out_;
};

// Lines of two blocks that are asked for in turn, `share` bytes of each at a step.
struct PairPrefetch {
  const char *first, *second;
  int left, share;

  template <_mm_hint kHint>
  void step() {
    const int until = std::max(left - share, 0);
    for (; left > until; left -= 64, first += 64, second += 64) {
      _mm_prefetch(first, kHint);
      _mm_prefetch(second, kHint);
    }
  }
};

// sums[32][2][16] of the rows at `upper`. `each_step(step)` is called once per tile of the inner length.
template <class Product, bool kTwoRowTiles, bool kStreamWeights, class EachStep>
[[gnu::always_inline]] static inline void sum_tiles(const char* upper, size_t row_bytes, const char* first,
                                                    const char* second, int steps, typename Product::Sum* sums,
                                                    EachStep each_step) {
  const char* lower = upper + kTileRows * row_bytes;
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kTwoRowTiles) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int step = 0; step < steps; ++step, first += kTileBytes, second += kTileBytes, upper += 64, lower += 64) {
    each_step(step);
    if constexpr (kStreamWeights) _tile_stream_loadd(6, first, 64);
    if constexpr (!kStreamWeights) _tile_loadd(6, first, 64);
    _tile_stream_loadd(4, upper, row_bytes);
    Product::template multiply<0>();
    if constexpr (kStreamWeights) _tile_stream_loadd(7, second, 64);
    if constexpr (!kStreamWeights) _tile_loadd(7, second, 64);
    Product::template multiply<1>();
    if constexpr (kTwoRowTiles) {
      _tile_stream_loadd(5, lower, row_bytes);
      Product::template multiply<2>();
      Product::template multiply<3>();
    }
  }
  constexpr size_t kSumBytes = 2 * kLanes * sizeof(*sums);
  _tile_stored(0, sums, kSumBytes);
  _tile_stored(1, sums + kLanes, kSumBytes);
  if constexpr (kTwoRowTiles) {
    _tile_stored(2, sums + kTileRows * 2 * kLanes, kSumBytes);
    _tile_stored(3, sums + kTileRows * 2 * kLanes + kLanes, kSumBytes);
  }
}

// All row tiles of `rows` rows each from row_begin on, by all blocks.
template <class Product, Epilogue kEpilogue, bool kTwoRowTiles, bool kStreamWeights>
static void walk_tiles(const typename Product::Args& args, int row_begin, int row_end, int rows, int block_begin,
                       int block_end) {
  constexpr bool kSiluMul = kEpilogue == Epilogue::kSiluMul;
  constexpr int kStride = kSiluMul ? 1 : 2, kSumRow = 2 * kLanes;
  alignas(64) typename Product::Sum sums[2][2 * kTileRows * kSumRow];
  const typename Product::Args a = args;  // a copy that no store can change
  const size_t row_bytes = a.input_stride * Product::kElementBytes;
  const int block_bytes = Product::inner(a) * kLanes * Product::kElementBytes;
  const int steps = block_bytes / kTileBytes, rows_a_step = (rows + steps - 1) / steps;
  const int row_tiles = (row_end - row_begin) / rows;
  const auto pair_at = [&](int block) {
    return BlockPair{block, kSiluMul ? a.num_blocks + block : std::min(block + 1, block_end - 1)};
  };
  const auto weights = [&](int block) {
    return reinterpret_cast<const char*>(a.weights) + static_cast<size_t>(block) * block_bytes;
  };
  PairEnd<Product, kEpilogue> before(a, row_begin, pair_at(block_begin));
  int tiles_done = 0;
  for (int block = block_begin; block < block_end; block += kStride) {
    const BlockPair pair = pair_at(block), next = pair_at(block + kStride);
    const char *first = weights(pair.first), *second = weights(pair.second);
    // nobody asked for the first pair, and one row tile leaves no time to ask for the next
    const bool one_tile = row_tiles == 1, cold = one_tile || block == block_begin;
    const bool last = block + kStride >= block_end;
    PairPrefetch of_this{first + kPrefetchBytes, second + kPrefetchBytes, cold ? block_bytes : 0, kTileBytes};
    PairPrefetch of_next{weights(next.first), weights(next.second), one_tile || last ? 0 : block_bytes,
                        (kTileRows + row_tiles - 1) / row_tiles * 64};
    for (int row = row_begin; row < row_end; row += rows, ++tiles_done) {
      const PairEnd<Product, kEpilogue> end(a, row, pair);
      const auto* sums_before = sums[(tiles_done + 1) % 2];
      const auto each_step = [&](int step) {
        of_this.template step<_MM_HINT_T0>();
        of_next.template step<_MM_HINT_T1>();
        const int until = std::min((step + 1) * rows_a_step, rows);
        for (int r = step * rows_a_step; r < until; ++r) end.prefetch(r);
        if (tiles_done == 0) return;
        for (int r = step * rows_a_step; r < until; ++r) before.finish(r, sums_before + r * kSumRow);
      };
      sum_tiles<Product, kTwoRowTiles, kStreamWeights>(reinterpret_cast<const char*>(a.input) + row * row_bytes,
                                                       row_bytes, first, second, steps, sums[tiles_done % 2], each_step);
      before = end;
    }
  }
  for (int r = 0; r < rows; ++r) before.finish(r, sums[(tiles_done + 1) % 2] + r * kSumRow);
}

template <class Product, Epilogue kEpilogue>
static void multiply_rows(const typename Product::Args& a, int row_begin, int row_end, int block_begin, int block_end) {
  constexpr int kRows = 2 * kTileRows;
  const bool resident = Product::inner(a) * Product::kElementBytes <= 64 * kResidentSteps;
  const int whole_end = row_begin + (row_end - row_begin) / kRows * kRows, left = row_end - whole_end;
  if (whole_end > row_begin) {
    configure_tiles(kRows);
    (resident ? walk_tiles<Product, kEpilogue, true, false> : walk_tiles<Product, kEpilogue, true, true>)(
        a, row_begin, whole_end, kRows, block_begin, block_end);
  }
  if (left > 0) {
    configure_tiles(left);
    (left > kTileRows ? walk_tiles<Product, kEpilogue, true, true> : walk_tiles<Product, kEpilogue, false, true>)(
        a, whole_end, row_end, left, block_begin, block_end);
  }
  _tile_release();
}

template <class Product>
static void multiply_by_tiles(const typename Product::Args& a, int row_begin, int row_end, int block_begin,
                              int block_end) {
  const auto multiply = a.epilogue == Epilogue::kStore ? multiply_rows<Product, Epilogue::kStore>
                        : a.epilogue == Epilogue::kAdd ? multiply_rows<Product, Epilogue::kAdd>
                                                       : multiply_rows<Product, Epilogue::kSiluMul>;
  multiply(a, row_begin, row_end, block_begin, block_end);
}

}  // namespace ridgeline::RIDGELINE_ISA
