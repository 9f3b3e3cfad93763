// bf16 attention by AMX tiles. tdpbf16ps adds in the order that kernels_attention.h follows, hence the same bits.
//
// Up to 32 queries, two pages of a block or two tiles of the head dimension share four accumulators; K and V stand in
// the pages as the tiles that they are, and are read past the L1 cache, which they would empty of everything that is
// read again. Head sizes that are no multiple of 32 go by Vec.
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

  static void score(const Operands<uint16_t>& o, Block<uint16_t>& b, int num_queries, Keys keys) {
    for (int key = keys.begin; key < keys.end; key += kPageSize) {
      float* scores = b.scores[0] + key - keys.begin;
      if (num_queries > kTileRows) {
        score_page<true>(o, key, scores);
      } else {
        score_page<false>(o, key, scores);
      }
    }
  }

  static void add(const Operands<uint16_t>& o, const Block<uint16_t>& b, const AttentionState& state, int num_queries,
                  Keys keys) {
    for (int d = 0; d < state.padded_dim; d += 2 * kLanes) {
      if (num_queries > kTileRows) {
        add_dimensions<true>(o, b, state, d, keys);
      } else {
        add_dimensions<false>(o, b, state, d, keys);
      }
    }
  }

 private:
  template <bool kTwoTiles>
  static inline void score_page(const Operands<uint16_t>& o, int key, float* scores) {
    const uint16_t *queries = o.query(0), *keys0 = o.keys(key), *keys1 = o.keys(key + kLanes);
    const size_t query_bytes = o.a.head_dim * sizeof(uint16_t);
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kTwoTiles) {
      _tile_zero(2);
      _tile_zero(3);
    }
    for (int d = 0; d < o.a.head_dim; d += kBf16Tile) {
      _tile_stream_loadd(6, keys0 + d * kLanes, 64);
      _tile_stream_loadd(7, keys1 + d * kLanes, 64);
      _tile_loadd(4, queries + d, query_bytes);
      multiply<kTwoTiles>(queries + kTileRows * o.a.head_dim + d, query_bytes);
    }
    store_sums<kTwoTiles>(scores, kBlockKeys);
  }

  template <bool kTwoTiles>
  static inline void add_dimensions(const Operands<uint16_t>& o, const Block<uint16_t>& b, const AttentionState& state,
                                    int d, Keys keys) {
    constexpr size_t kWeightBytes = sizeof(b.weights[0]);
    const size_t out_bytes = state.padded_dim * sizeof(float);
    _tile_loadd(0, state.row(0) + d, out_bytes);
    _tile_loadd(1, state.row(0) + d + kLanes, out_bytes);
    if constexpr (kTwoTiles) {
      _tile_loadd(2, state.row(kTileRows) + d, out_bytes);
      _tile_loadd(3, state.row(kTileRows) + d + kLanes, out_bytes);
    }
    for (int key = keys.begin; key < keys.end; key += kPageSize) {
      _tile_stream_loadd(6, o.values(key, d), 64);
      _tile_stream_loadd(7, o.values(key, d + kLanes), 64);
      _tile_loadd(4, b.weights[0] + key - keys.begin, kWeightBytes);
      multiply<kTwoTiles>(b.weights[kTileRows] + key - keys.begin, kWeightBytes);
    }
    store_sums<kTwoTiles>(state.row(0) + d, state.padded_dim);
  }

  template <bool kTwoTiles>
  static inline void multiply(const uint16_t* lower, size_t lower_bytes) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kTwoTiles) {
      _tile_loadd(5, lower, lower_bytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }

  template <bool kTwoTiles>
  static inline void store_sums(float* to, int stride) {
    const size_t bytes = stride * sizeof(float);
    _tile_stored(0, to, bytes);
    _tile_stored(1, to + kLanes, bytes);
    if constexpr (kTwoTiles) {
      _tile_stored(2, to + kTileRows * stride, bytes);
      _tile_stored(3, to + kTileRows * stride + kLanes, bytes);
    }
  }
};

static void attend_by_tiles(const AttentionArgs& a, const AttentionTask& t) {
  if (a.head_dim % kBf16Tile != 0) return attend_bf16(a, t);
  attend<ByTiles>(a, t);
}

}  // namespace ridgeline::RIDGELINE_ISA
