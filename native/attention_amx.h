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

// A task's blocks on their way through tiles and softmax. While a block's scores become weights, tiles compute the next
// block's scores and the previous one's product with V, some rows after each step of tiles: a core does both at once
// when they stand close together. It goes on so from one split to the next: the state of a split that is over is merged
// into the total beside the tiles of the next one.
//
// Tiles 0..3 accumulate (queries x keys or dimensions: 00 01 10 11), 4 and 5 hold queries or weights, 6 and 7 K or V.
template <bool kTwoTiles>
class TilePipeline {
 public:
  // `first` becomes the state of the first split, onto which those of later ones are merged by way of `next`.
  TilePipeline(const AttentionArgs& a, const AttentionTask& t, const Sight& sight, Keys keys,
               const AttentionState& first, const AttentionState& next)
      : o_{a, t},
        num_queries_(t.query_end - t.query_begin),
        keys_(keys),
        first_(first),
        next_(next),
        softmax_(sight, num_queries_, log2_scale(a)) {}

  void run() {
    configure();
    if constexpr (!kTwoTiles)
      for (int d = 0; d < o_.a.head_dim; d += kBf16Tile) prefetch_step(o_.keys(keys_.begin), d);
    softmax_.expect(block(keys_.begin), block_keys(keys_.begin));
    score(block_keys(keys_.begin), [] {});
    store_sums();
    for (int key = keys_.begin; key < keys_.end; key += kBlockKeys) take(key);
    make_room_for_output(block_keys(last_block()));
    merge_rest();
    add(block_keys(last_block()), [] {});
    store_sums();
    softmax_.finish(state_of(last_block()));
    merges_ = !in_first_split(last_block());
    merge_rest();
    _tile_release();
  }

 private:
  // Two by two tiles of a matrix (one by two without lower queries) that the tiles of sums go to, if they hold any.
  struct Sums {
    float* at;
    size_t row_bytes;

    float* tile(int i) const { return at + i / 2 * kTileRows * (row_bytes / sizeof(float)) + i % 2 * kLanes; }
  };

  void configure() const {
    const int upper = num_queries_ < kTileRows ? num_queries_ : kTileRows, lower = num_queries_ - upper;
    TileConfig config;
    for (int tile : {0, 1, 4}) config.set(tile, upper, 64);
    if (lower > 0)
      for (int tile : {2, 3, 5}) config.set(tile, lower, 64);
    for (int tile : {6, 7}) config.set(tile, kTileRows, 64);
    config.load();
  }

  Block<uint16_t>& block(int key) { return blocks_[key / kBlockKeys % 2]; }
  Keys block_keys(int key) const { return key < keys_.end ? block_of(keys_, key) : Keys{key, key}; }
  int last_block() const { return (keys_.end - 1) / kBlockKeys * kBlockKeys; }
  bool begins_split(int key) const { return key == keys_.begin || key % kSplitKeys == 0; }
  bool in_first_split(int key) const { return key / kSplitKeys == keys_.begin / kSplitKeys; }
  const AttentionState& state_of(int key) const { return in_first_split(key) ? first_ : next_; }

  void take(int key) {
    if (begins_split(key) && key > keys_.begin) {
      softmax_.finish(state_of(key - kBlockKeys));
      softmax_.restart();
    }
    const bool shrinks = softmax_.begin() && !begins_split(key);
    const Keys next = block_keys(key + kBlockKeys), none{key, key};
    const Keys before = key > keys_.begin ? block_keys(key - kBlockKeys) : none;
    make_room_for_output(before);
    score_beside_rows(next);
    if (before.num_pages() == 0) store_sums();
    merge_rest();
    if (next.num_pages() > 0) softmax_.expect(block(next.begin), next);
    const int rows = rows_per_step(num_queries_, before);
    add(before, [&] {
      softmax_.weigh(rows);
      if constexpr (kTwoTiles) softmax_.inspect(rows);  // few rows would wait for scores that were stored just now
    });
    softmax_.weigh(num_queries_);
    if (shrinks) {
      store_sums();
      softmax_.shrink_output(state_of(key));
    }
  }

  // The larger part of the rows, since those of the next block are inspected beside the product with V.
  void score_beside_rows(Keys keys) {
    const int rows = rows_per_step(num_queries_ * 3 / 4, keys);
    const auto weigh = [&] { softmax_.weigh(rows); };
    if (!merges_) return score(keys, weigh);
    const int merged = rows_per_step(num_queries_, keys);
    score(keys, [&] {
      weigh();
      merge_rows(merged);
    });
  }

  int rows_per_step(int rows, Keys keys) const {
    const int steps = keys.num_pages() * o_.a.head_dim / kBf16Tile;
    return steps > 0 ? (rows + steps - 1) / steps : 0;
  }

  // The first keys of a split take the place of the output of the split before, which is merged by then.
  void make_room_for_output(Keys keys) {
    if (keys.num_pages() == 0 || !begins_split(keys.begin) || keys.begin == keys_.begin) return;
    merges_ = !in_first_split(keys.begin - kBlockKeys);
  }

  void merge_rows(int count) {
    if (!merges_) return;
    const int end = merged_ + count < num_queries_ ? merged_ + count : num_queries_;
    merge(first_, next_, merged_, end, log2_scale(o_.a));
    merged_ = end;
    if (end < num_queries_) return;
    merges_ = false;
    merged_ = 0;
  }

  void merge_rest() {
    if (!merges_) return;
    if (merged_ == 0) store_sums();  // no step has done it
    merge_rows(num_queries_);
  }

  template <class Between>
  void score(Keys keys, const Between& between) {
    const int head_dim = o_.a.head_dim;
    const uint16_t* queries = o_.query(0);
    for (int key = keys.begin; key < keys.end; key += kPageSize) {
      const uint16_t *keys0 = o_.keys(key), *keys1 = o_.keys(key + kLanes);
      for (int d = 0; d < head_dim; d += kBf16Tile) {
        if constexpr (!kTwoTiles)
          if (key + kPageSize < keys_.end) prefetch_step(o_.keys(key + kPageSize), d);
        step(queries + d, head_dim, keys0 + d * kLanes, keys1 + d * kLanes, [&]<int kTile>() {
          if (d > 0) return;
          store_sum<kTile>();
          clear_sum<kTile>();
        });
        between();
      }
      pending_ = {block(key).scores[0] + key - keys.begin, sizeof(block(key).scores[0])};
    }
  }

  template <class Between>
  void add(Keys keys, const Between& between) {
    if (keys.num_pages() == 0) return;
    const AttentionState& state = state_of(keys.begin);
    const bool is_first = begins_split(keys.begin);
    const uint16_t* weights = block(keys.begin).weights[0];
    for (int d = 0; d < state.padded_dim; d += 2 * kLanes) {
      const Sums out{state.row(0) + d, state.padded_dim * sizeof(float)};
      for (int key = keys.begin; key < keys.end; key += kPageSize) {
        if constexpr (!kTwoTiles) {
          if (d + 2 * kLanes < state.padded_dim) {
            prefetch_step(o_.values(key, 0), d + 2 * kLanes);
          } else if (key + kBlockKeys < keys_.end) {
            prefetch_step(o_.values(key + kBlockKeys, 0), 0);
          }
        }
        step(weights + key - keys.begin, kBlockKeys, o_.values(key, d), o_.values(key, d + kLanes), [&]<int kTile>() {
          if (key > keys.begin) return;
          store_sum<kTile>();
          if (is_first) {
            clear_sum<kTile>();
          } else {
            load_sum<kTile>(out);
          }
        });
        between();
      }
      pending_ = out;
    }
  }

  // The lines of 32 dimensions of a page of K or V, as many as a step reads.
  static inline void prefetch_step(const uint16_t* page, int dim) {
    constexpr int kLine = 64 / sizeof(uint16_t), kIntoL2 = 2;  // which waits for more lines at a time than the L1 cache
    for (int i = 0; i < kBf16Tile * kPageSize; i += kLine) __builtin_prefetch(page + dim * kPageSize + i, 0, kIntoL2);
  }

  // Adds products to the sums. `begin<tile>` may put another sum in its place first; the one before is stored no sooner
  // than that, since a store that waits for its product holds up all that follows.
  template <class Begin>
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

  void store_sums() {
    store_sum<0>();
    store_sum<1>();
    if constexpr (kTwoTiles) {
      store_sum<2>();
      store_sum<3>();
    }
    pending_.at = nullptr;
  }
  // The number of a tile is part of its instruction.
  template <int kTile>
  void store_sum() const {
    if (!pending_.at) return;
    if constexpr (kTile == 0) _tile_stored(0, pending_.tile(0), pending_.row_bytes);
    if constexpr (kTile == 1) _tile_stored(1, pending_.tile(1), pending_.row_bytes);
    if constexpr (kTile == 2) _tile_stored(2, pending_.tile(2), pending_.row_bytes);
    if constexpr (kTile == 3) _tile_stored(3, pending_.tile(3), pending_.row_bytes);
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

  const Operands<uint16_t> o_;
  const int num_queries_;
  const Keys keys_;
  const AttentionState &first_, &next_;
  Softmax<uint16_t> softmax_;
  Block<uint16_t> blocks_[2];
  Sums pending_{nullptr, 0};  // what the tiles of sums are to be stored to
  bool merges_ = false;       // rows of next_ from merged_ on into first_
  int merged_ = 0;
};

static void run_pipeline(const AttentionArgs& a, const AttentionTask& t, const Sight& sight, Keys keys,
                         const AttentionState& first, const AttentionState& next) {
  if (t.query_end - t.query_begin > kTileRows) {
    TilePipeline<true>(a, t, sight, keys, first, next).run();
  } else {
    TilePipeline<false>(a, t, sight, keys, first, next).run();
  }
}

static void attend_by_tiles(const AttentionArgs& a, const AttentionTask& t) {
  if (a.head_dim % kBf16Tile != 0) return attend_bf16(a, t);
  const int num_queries = t.query_end - t.query_begin;
  const Sight sight(a, t.query_begin, num_queries);
  alignas(64) float memory[2][attention_state_floats(kMaxHeadDim)];
  const AttentionState next(memory[1], a.head_dim);
  if (t.states) {
    const AttentionState state(t.states, a.head_dim);
    const Keys keys = keys_of_split(sight, num_queries, t.split);
    if (keys.begin < keys.end) return run_pipeline(a, t, sight, keys, state, next);
    state.clear(num_queries);
  } else {
    const AttentionState total(memory[0], a.head_dim);
    run_pipeline(a, t, sight, keys_of_task(sight, num_queries), total, next);
    store_output(a, t, total);
  }
}

}  // namespace ridgeline::RIDGELINE_ISA
