// bf16 attention of many rows by AMX tiles: the rows of one page of positions, a query head at a time. Same softmax and
// same order of sums as kernels_attention.h, hence the same bits; few rows, odd head sizes and sliding
// windows go by Vec.
//
// A page of K is head_dim / 32 tiles of [16 pairs][16 keys][2]; a page of V is read as tiles of [8 pairs of keys][16][2].
#pragma once
#include <immintrin.h>

#include "kernels_attention.h"
#include "tiles_amx.h"

namespace ridgeline::RIDGELINE_ISA {

constexpr int kMinTileRows = 4;  // below, tiles are mostly empty

struct TileHead {
  Softmax softmax;
  alignas(64) float out[kTileRows][kMaxHeadDim];
  const uint16_t* q;
};

// Tiles: 0 accumulates, 4 holds queries, 5 weights, 6 keys, 7 values.
static inline void configure_attention_tiles(int rows) {
  TileConfig config;
  config.set(0, rows, 64);
  config.set(4, rows, 64);
  config.set(5, rows, 32);
  config.set(6, kTileRows, 64);
  config.set(7, kPageSize / 2, 64);
  config.load();
}

static inline void tile_page(const AttentionArgs& a, TileHead& h, int rows, int page, int page_index, int kv_head) {
  const auto* keys = reinterpret_cast<const uint16_t*>(a.kv.k_at(page, kv_head));
  const auto* values = reinterpret_cast<const uint16_t*>(a.kv.v_at(page, kv_head));
  alignas(64) float raw[kTileRows][kPageSize];
  _tile_zero(0);
  for (int d = 0; d < a.head_dim; d += kBf16Tile) {
    _tile_loadd(4, h.q + d, a.q_stride * sizeof(uint16_t));
    _tile_loadd(6, keys + d * kPageSize, 64);
    _tile_dpbf16ps(0, 4, 6);
  }
  _tile_stored(0, raw, 64);

  Vec scores[kTileRows];
  for (int r = 0; r < rows; ++r) scores[r] = load(raw[r]);
  enter_page(h.softmax, rows, page_index, a.scale, scores);
  alignas(64) uint16_t weights[kTileRows][kPageSize];
  for (int r = 0; r < rows; ++r) {
    store_bf16(weights[r], round_to_bf16(scores[r]));
    shrink_output(h.out[r], h.softmax.shrink[r], a.head_dim);
  }
  _tile_loadd(5, weights, 32);
  for (int d = 0; d < a.head_dim; d += kLanes) {
    _tile_loadd(0, &h.out[0][d], sizeof(h.out[0]));
    _tile_loadd(7, values + 2 * d, a.head_dim * 2 * sizeof(uint16_t));
    _tile_dpbf16ps(0, 5, 7);
    _tile_stored(0, &h.out[0][d], sizeof(h.out[0]));
  }
}

static void attend_head_by_tiles(const AttentionArgs& a, const int32_t* block_table, int kv_head, int head,
                                 int row_begin, int rows) {
  TileHead h;
  h.q = row_of<uint16_t>(a.q, a.q_stride, row_begin) + head * a.head_dim;
  for (int r = 0; r < rows; ++r) {
    h.softmax.start(r, a.positions[row_begin + r], a.window);
    std::memset(h.out[r], 0, sizeof(float) * a.head_dim);
  }
  const int page_end = (h.softmax.end_key[rows - 1] - 1) / kPageSize + 1;
  for (int index = 0; index < page_end; ++index) {
    if (index + 1 < page_end) prefetch_page(a.kv, block_table[index + 1], kv_head);
    tile_page(a, h, rows, block_table[index], index, kv_head);
  }
  for (int r = 0; r < rows; ++r)
    store_output(a, (row_begin + r) * a.out_stride + head * a.head_dim, h.out[r], h.softmax.sum[r], a.head_dim);
}

static void attend_by_tiles(const AttentionArgs& a, const int32_t* block_table, int kv_head, int row_begin,
                            int row_end) {
  const int rows = row_end - row_begin;
  const bool one_page = a.positions[row_begin] / kPageSize == a.positions[row_end - 1] / kPageSize;
  if (rows < kMinTileRows || !one_page || a.head_dim % kBf16Tile != 0 || a.window > 0)
    return attend<Bf16Attention>(a, block_table, kv_head, row_begin, row_end);
  configure_attention_tiles(rows);
  const int group = a.num_heads / a.kv.num_kv_heads;
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head)
    attend_head_by_tiles(a, block_table, kv_head, head, row_begin, rows);
  _tile_release();
}

}  // namespace ridgeline::RIDGELINE_ISA
