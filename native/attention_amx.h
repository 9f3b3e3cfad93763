// bf16 attention by AMX tiles. tdpbf16ps adds in the order that kernels_attention.h follows, hence the same bits.
//
// Up to 32 queries, two pages of a block or two tiles of the head dimension share four accumulators; K and V stand in
// the pages as the tiles that they are, and are read past the L1 cache, which they would empty of everything that is
// read again. Up to 16 queries, as in decode, do so little with a page that memory binds: they ask for what comes next.
// Head sizes that are no multiple of 32 go by Vec.
#pragma once
#include <immintrin.h>

#include <initializer_list>

#include "kernels_attention.h"
#include "tiles_amx.h"

namespace ridgeline::RIDGELINE_ISA {

// Tiles 0..3 accumulate (queries x keys or dimensions: 00 01 10 11), 4 and 5 hold queries or weights, 6 and 7 K or V.
struct ByTiles {
  using Element = uint16_t;
  using Inputs = Operands<uint16_t>;

  static void prepare(int num_queries) {
    const int upper = num_queries < kTileRows ? num_queries : kTileRows, lower = num_queries - upper;
    TileConfig config;
    for (int tile : {0, 1, 4}) config.set(tile, upper, 64);
    if (lower > 0)
      for (int tile : {2, 3, 5}) config.set(tile, lower, 64);
    for (int tile : {6, 7}) config.set(tile, kTileRows, 64);
    config.load();
  }
  static void release() { _tile_release(); }

  static void attend_keys(const Inputs& o, Softmax<uint16_t>& softmax, const AttentionState& state, int num_queries,
                          Keys split) {
    if (num_queries > kTileRows) {
      attend_keys<true>(o, softmax, state, num_queries, split);
    } else {
      attend_keys<false>(o, softmax, state, num_queries, split);
    }
  }

 private:
  // Two by two tiles of a matrix (one by two without lower queries) that the tiles of sums go to.
  struct Sums {
    float* at;
    size_t row_bytes;

    float* tile(int i) const { return at + i / 2 * kTileRows * (row_bytes / sizeof(float)) + i % 2 * kLanes; }
  };

  // While a block's scores become weights, tiles compute the next block's scores and the previous one's product with V,
  // some rows after each step of tiles: a core does both at once when they stand close together.
  template <bool kTwoTiles>
  static void attend_keys(const Inputs& o, Softmax<uint16_t>& softmax, const AttentionState& state, int num_queries,
                          Keys split) {
    if (split.begin >= split.end) return;
    Block<uint16_t> blocks[2];
    Sums pending;
    const auto expect_nothing = [&](Block<uint16_t>& next) { pending = {next.scores[0], sizeof(next.scores[0])}; };
    expect_nothing(blocks[1]);
    if constexpr (!kTwoTiles)
      for (int d = 0; d < o.a.head_dim; d += kBf16Tile) prefetch_step(o.keys(split.begin), d);
    score<kTwoTiles>(o, blocks[0], block_of(split, split.begin), split.end, pending, [] {});
    store_sums<kTwoTiles>(pending);
    expect_nothing(blocks[1]);
    for (int key = split.begin, i = 0; key < split.end; key += kBlockKeys, i = 1 - i) {
      Block<uint16_t>&block = blocks[i], &other = blocks[1 - i];
      const Keys none{0, 0}, next = key + kBlockKeys < split.end ? block_of(split, key + kBlockKeys) : none;
      const Keys before = key > split.begin ? block_of(split, key - kBlockKeys) : none;
      const bool rose = softmax.begin(block, block_of(split, key));
      const int steps = (next.num_pages() + before.num_pages()) * o.a.head_dim / kBf16Tile;
      const int rows = steps > 0 ? (num_queries + steps - 1) / steps : 0;
      const auto between = [&] { softmax.weigh(rows); };
      score<kTwoTiles>(o, other, next, split.end, pending, between);
      add<kTwoTiles>(o, other, state, before, split.end, pending, between);
      softmax.weigh(num_queries);
      if (rose || key == split.begin) {
        store_sums<kTwoTiles>(pending);
        expect_nothing(block);
        if (rose) softmax.shrink_output();
      }
      if (key + kBlockKeys >= split.end)
        add<kTwoTiles>(o, block, state, block_of(split, key), split.end, pending, [] {});
    }
    store_sums<kTwoTiles>(pending);
  }

  template <bool kTwoTiles, class Between>
  static inline void score(const Inputs& o, Block<uint16_t>& b, Keys keys, int split_end, Sums& pending,
                           const Between& between) {
    const int head_dim = o.a.head_dim;
    const uint16_t* queries = o.query(0);
    for (int key = keys.begin; key < keys.end; key += kPageSize) {
      const uint16_t *keys0 = o.keys(key), *keys1 = o.keys(key + kLanes);
      for (int d = 0; d < head_dim; d += kBf16Tile) {
        if constexpr (!kTwoTiles)
          if (key + kPageSize < split_end) prefetch_step(o.keys(key + kPageSize), d);
        step<kTwoTiles>(queries + d, head_dim, keys0 + d * kLanes, keys1 + d * kLanes, [&]<int kTile>() {
          if (d > 0) return;
          store_sum<kTile>(pending);
          clear_sum<kTile>();
        });
        between();
      }
      pending = {b.scores[0] + key - keys.begin, sizeof(b.scores[0])};
    }
  }

  template <bool kTwoTiles, class Between>
  static inline void add(const Inputs& o, const Block<uint16_t>& b, const AttentionState& state, Keys keys,
                         int split_end, Sums& pending, const Between& between) {
    if (keys.begin == keys.end) return;
    for (int d = 0; d < state.padded_dim; d += 2 * kLanes) {
      const Sums out{state.row(0) + d, state.padded_dim * sizeof(float)};
      for (int key = keys.begin; key < keys.end; key += kPageSize) {
        if constexpr (!kTwoTiles) {
          if (d + 2 * kLanes < state.padded_dim) {
            prefetch_step(o.values(key, 0), d + 2 * kLanes);
          } else if (key + kBlockKeys < split_end) {
            prefetch_step(o.values(key + kBlockKeys, 0), 0);
          }
        }
        step<kTwoTiles>(b.weights[0] + key - keys.begin, kBlockKeys, o.values(key, d), o.values(key, d + kLanes),
                        [&]<int kTile>() {
                          if (key > keys.begin) return;
                          store_sum<kTile>(pending);
                          load_sum<kTile>(out);
                        });
        between();
      }
      pending = out;
    }
  }

  // The lines of 32 dimensions of a page of K or V, as many as a step reads.
  static inline void prefetch_step(const uint16_t* page, int dim) {
    constexpr int kLine = 64 / sizeof(uint16_t), kIntoL2 = 2;  // which waits for more lines at a time than the L1 cache
    for (int i = 0; i < kBf16Tile * kPageSize; i += kLine) __builtin_prefetch(page + dim * kPageSize + i, 0, kIntoL2);
  }

  // Adds products to the sums. `begin<tile>` may put another sum in its place first; the one before is stored no sooner
  // than that, since a store that waits for its product holds up all that follows.
  template <bool kTwoTiles, class Begin>
  static inline void step(const uint16_t* rows, int stride, const uint16_t* columns0, const uint16_t* columns1,
                          const Begin& begin) {
    asm volatile("" : : : "memory");  // gcc 12's _tile_loadd does not say that it reads memory
    const size_t row_bytes = stride * sizeof(uint16_t);
    _tile_stream_loadd(6, columns0, 64);
    _tile_stream_loadd(7, columns1, 64);
    _tile_loadd(4, rows, row_bytes);
    begin.template operator()<0>();
    _tile_dpbf16ps(0, 4, 6);
    begin.template operator()<1>();
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kTwoTiles) {
      _tile_loadd(5, rows + kTileRows * stride, row_bytes);
      begin.template operator()<2>();
      _tile_dpbf16ps(2, 5, 6);
      begin.template operator()<3>();
      _tile_dpbf16ps(3, 5, 7);
    }
  }

  template <bool kTwoTiles>
  static inline void store_sums(const Sums& to) {
    store_sum<0>(to);
    store_sum<1>(to);
    if constexpr (kTwoTiles) {
      store_sum<2>(to);
      store_sum<3>(to);
    }
  }
  // The number of a tile is part of its instruction.
  template <int kTile>
  static inline void store_sum(const Sums& to) {
    if constexpr (kTile == 0) _tile_stored(0, to.tile(0), to.row_bytes);
    if constexpr (kTile == 1) _tile_stored(1, to.tile(1), to.row_bytes);
    if constexpr (kTile == 2) _tile_stored(2, to.tile(2), to.row_bytes);
    if constexpr (kTile == 3) _tile_stored(3, to.tile(3), to.row_bytes);
  }
  template <int kTile>
  static inline void load_sum(const Sums& from) {
    if constexpr (kTile == 0) _tile_loadd(0, from.tile(0), from.row_bytes);
    if constexpr (kTile == 1) _tile_loadd(1, from.tile(1), from.row_bytes);
    if constexpr (kTile == 2) _tile_loadd(2, from.tile(2), from.row_bytes);
    if constexpr (kTile == 3) _tile_loadd(3, from.tile(3), from.row_bytes);
  }
  template <int kTile>
  static inline void clear_sum() {
    if constexpr (kTile == 0) _tile_zero(0);
    if constexpr (kTile == 1) _tile_zero(1);
    if constexpr (kTile == 2) _tile_zero(2);
    if constexpr (kTile == 3) _tile_zero(3);
  }
};

static void attend_by_tiles(const AttentionArgs& a, const AttentionTask& t) {
  if (a.head_dim % kBf16Tile != 0) return attend_bf16(a, t);
  attend<ByTiles>(a, t);
}

}  // namespace ridgeline::RIDGELINE_ISA
