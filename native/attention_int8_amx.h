// Attention over pages of int8 by AMX tiles: kernels_attention_int8.h's sums of digits, 16 queries at a time.
//
// A query's two rows of digits are two rows of a tile, so that a tile of codes serves both. A whole tile of V takes the
// keys of two pages, put together once for all queries of a block; few queries read V where it stands, in half tiles.
// Head sizes that are no multiple of 64 go by Vec.
#pragma once
#include <immintrin.h>

#include "kernels_attention_int8.h"
#include "tiles_amx.h"

namespace ridgeline::RIDGELINE_ISA {

// Tiles 0..3 accumulate (digits x keys or dimensions: 00 01 10 11), 4 and 5 hold digits, 6 and 7 K or V. Few queries:
// 0 and 1 accumulate, 4 holds digits, 6 and 7 K; 5 holds digits of a page's keys, 2 and 3 its V.
struct Int8ByTiles {
  using Element = float;
  using Inputs = DigitQueries;

  static void prepare(int num_queries) {
    TileConfig config;
    if (is_few(num_queries)) {
      for (int tile : {0, 1, 4}) config.set(tile, 2 * num_queries, 64);
      config.set(5, 2 * num_queries, kPageSize);
      for (int tile : {2, 3}) config.set(tile, kPageSize / 4, 64);
    } else {
      for (int tile : {0, 1, 2, 3, 4, 5}) config.set(tile, kTileRows, 64);
    }
    for (int tile : {6, 7}) config.set(tile, kTileRows, 64);
    config.load();
  }
  static void release() { _tile_release(); }

  static void score(const DigitQueries& o, Block<float>& b, int num_queries, Keys keys) {
    for (int key = keys.begin; key < keys.end; key += kPageSize)
      for (int first = 0; first < num_queries; first += kLanes) {
        Sums sums;
        const int count = multiply(sums, o.row(2 * first), o.stride, num_queries - first, key_codes(o.a, o.t, key),
                                   key_codes(o.a, o.t, key + kLanes), o.stride / kDigitTile);
        for (int v = 0; v < kPageSize; v += kLanes) {
          const Vec scales = load(key_scales(o.a, o.t, key + v));
          for (int i = 0; i < count; ++i)
            store_score(b.scores[first + i] + key - keys.begin + v, sum_of(sums[2 * i] + v), sum_of(sums[2 * i + 1] + v),
                        scales, o.scales[first + i]);
        }
      }
  }

  static void add(const DigitQueries& o, const Block<float>& b, const AttentionState& state, int num_queries,
                  Keys keys) {
    if (is_few(num_queries)) return add_to_few(o, b, state, num_queries, keys);
    alignas(64) uint8_t values[kMaxHeadDim * kBlockKeys];
    gather_values(o, keys, values);
    for (int first = 0; first < num_queries; first += kLanes) {
      const DigitWeights w(o, b, first, num_queries - first < kLanes ? num_queries - first : kLanes, keys);
      for (int d = 0; d < state.padded_dim; d += 2 * kLanes) {
        Sums sums;
        const uint8_t* codes = values + d * kBlockKeys;
        const int count = multiply(sums, w.digits[0], kBlockKeys, num_queries - first, codes,
                                   codes + kLanes * kBlockKeys, 1);
        add_sums(sums, w, state, first, count, d);
      }
    }
  }

 private:
  using Sums = int32_t[2 * kTileRows][2 * kLanes];  // of a row of digits and a key or dimension

  static bool is_few(int num_queries) { return 2 * num_queries <= kTileRows; }

  static void add_to_few(const DigitQueries& o, const Block<float>& b, const AttentionState& state, int num_queries,
                         Keys keys) {
    const DigitWeights w(o, b, 0, num_queries, keys);
    for (int d = 0; d < state.padded_dim; d += 2 * kLanes) {
      Sums sums;
      _tile_zero(0);
      _tile_zero(1);
      for (int key = keys.begin; key < keys.end; key += kPageSize) {
        _tile_loadd(2, value_codes(o.a, o.t, key, d), 64);
        _tile_loadd(3, value_codes(o.a, o.t, key, d + kLanes), 64);
        _tile_loadd(5, w.digits[0] + key - keys.begin, kBlockKeys);
        _tile_dpbssd(0, 5, 2);
        _tile_dpbssd(1, 5, 3);
      }
      _tile_stored(0, sums[0], sizeof(sums[0]));
      _tile_stored(1, sums[0] + kLanes, sizeof(sums[0]));
      add_sums(sums, w, state, 0, num_queries, d);
    }
  }

  static inline Vec sum_of(const int32_t* sums) { return {_mm512_cvtepi32_ps(_mm512_loadu_si512(sums))}; }

  static inline void add_sums(const Sums& sums, const DigitWeights& w, const AttentionState& state, int first, int count,
                              int d) {
    for (int i = 0; i < count; ++i)
      for (int v = 0; v < 2 * kLanes; v += kLanes)
        add_output(state.row(first + i) + d + v, sum_of(sums[2 * i] + v), sum_of(sums[2 * i + 1] + v), w.scales[i]);
  }

  // Digits of up to 16 queries times two columns of `tiles` tiles of codes; returns how many queries there are.
  static inline int multiply(Sums& sums, const int8_t* digits, int stride, int queries_left, const uint8_t* codes0,
                             const uint8_t* codes1, int tiles) {
    if (2 * queries_left > kTileRows) {
      multiply_tiles<true>(sums, digits, stride, codes0, codes1, tiles);
    } else {
      multiply_tiles<false>(sums, digits, stride, codes0, codes1, tiles);
    }
    return queries_left < kLanes ? queries_left : kLanes;
  }

  template <bool kTwoTiles>
  static inline void multiply_tiles(Sums& sums, const int8_t* digits, int stride, const uint8_t* codes0,
                                    const uint8_t* codes1, int tiles) {
    constexpr int kCodes = kTileRows * kDigitTile;
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kTwoTiles) {
      _tile_zero(2);
      _tile_zero(3);
    }
    for (int tile = 0; tile < tiles; ++tile, codes0 += kCodes, codes1 += kCodes, digits += kDigitTile) {
      _tile_stream_loadd(6, codes0, 64);
      _tile_stream_loadd(7, codes1, 64);
      _tile_loadd(4, digits, stride);
      _tile_dpbssd(0, 4, 6);
      _tile_dpbssd(1, 4, 7);
      if constexpr (kTwoTiles) {
        _tile_loadd(5, digits + kTileRows * stride, stride);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
      }
    }
    constexpr size_t kBytes = sizeof(sums[0]);
    _tile_stored(0, sums[0], kBytes);
    _tile_stored(1, sums[0] + kLanes, kBytes);
    if constexpr (kTwoTiles) {
      _tile_stored(2, sums[kTileRows], kBytes);
      _tile_stored(3, sums[kTileRows] + kLanes, kBytes);
    }
  }

  // [16 dimensions each][keys of both pages / 4][16][4]
  static inline void gather_values(const DigitQueries& o, Keys keys, uint8_t* to) {
    constexpr int kPageCodes = kLanes * kPageSize;
    for (int d = 0; d < o.a.head_dim; d += kLanes)
      for (int key = keys.begin; key < keys.begin + kBlockKeys; key += kPageSize, to += kPageCodes) {
        if (key < keys.end) {
          std::memcpy(to, value_codes(o.a, o.t, key, d), kPageCodes);
        } else {
          std::memset(to, 0, kPageCodes);
        }
      }
  }
};

static void attend_int8_by_tiles(const AttentionArgs& a, const AttentionTask& t) {
  if (a.head_dim % kDigitTile != 0) return attend_int8(a, t);
  attend<Int8ByTiles>(a, t);
}

}  // namespace ridgeline::RIDGELINE_ISA
