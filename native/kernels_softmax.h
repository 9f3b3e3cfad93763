// The online softmax (FlashAttention) of up to 32 queries of one KV head, and what attention keeps per query.
//
// Keys enter in blocks of 64 at fixed absolute positions, in ascending order. Per block and query: weights are
// 2^((score - maximum) * scale). When a score exceeds the maximum by far, the block's largest becomes the maximum
// first, and everything so far shrinks by 2^((old maximum - maximum) * scale). Every 512 keys a new state is begun;
// states are merged in ascending order. So decode may give the stretches of one context to several threads, and has
// prefill's bits.
//
// A key that a query does not see has weight 0 and changes nothing, which is why queries of any positions can share a
// block, and why a block may end where no query sees further.
#pragma once
#include <cstring>

#include "kernels.h"
#include "kernels_rowwise.h"

namespace ridgeline::RIDGELINE_ISA {

constexpr int kBlockKeys = 64;
constexpr int kBlockPages = kBlockKeys / kPageSize;
constexpr float kLowest = -1e30f;  // the maximum of no scores: finite, so that differences of two are numbers
static_assert(kSplitKeys % kBlockKeys == 0 && kBlockKeys % kPageSize == 0);

// A query's maximum rises when a score would weigh more than 2^8 relative to it, so that what is summed up already
// shrinks a few times and not in every second block.
constexpr float kHeadroom = 8.0f;

// 2^x within 2e-7, 0 below -126; NaN stays NaN. The polynomial is the minimax one on 0..1 with p(0) = 1.
static inline Vec exp2(Vec x) {
  const Vec f = fraction(x);
  Vec p = fma(broadcast(1.867126274e-3f), f, broadcast(9.017038335e-3f));
  p = fma(p, f, broadcast(5.579990744e-2f));
  p = fma(p, f, broadcast(2.401644517e-1f));
  p = fma(p, f, broadcast(6.931513117e-1f));
  return scale_pow2(fma(p, f, broadcast(1.0f)), x);
}

// What turns a product of query and key into the logarithm of a weight to base 2.
static inline float log2_scale(const AttentionArgs& a) { return a.scale * 1.44269504f; }

// What attention knows of some queries after a stretch of keys, in one piece of memory (attention_state_floats).
struct AttentionState {
  float* max;  // [32], what weights are relative to
  float* sum;  // [32] of the weights
  float* out;  // [32, padded_dim]: weights @ V
  int padded_dim;

  AttentionState(float* memory, int head_dim)
      : max(memory), sum(max + kMaxQueries), out(sum + kMaxQueries), padded_dim(padded_head_dim(head_dim)) {}

  float* row(int query) const { return out + query * padded_dim; }

  // As after no keys.
  void clear(int num_queries) const {
    for (int i = 0; i < num_queries; ++i) max[i] = kLowest;
    std::memset(sum, 0, sizeof(float) * num_queries);
    std::memset(out, 0, sizeof(float) * num_queries * padded_dim);
  }
};

// Which keys each query sees: first .. end - 1.
struct Sight {
  int first[kMaxQueries];
  int end[kMaxQueries];

  Sight(const AttentionArgs& a, int query_begin, int num_queries) {
    const int group = a.num_heads / a.kv.num_kv_heads;
    for (int i = 0; i < num_queries; ++i) {
      end[i] = a.positions[(query_begin + i) / group] + 1;
      first[i] = a.window > 0 && end[i] > a.window ? end[i] - a.window : 0;
    }
  }
};

// Keys begin .. end - 1: one or two whole pages.
struct Keys {
  int begin, end;

  int num_pages() const { return (end - begin) / kPageSize; }
};

// A block on its way through the softmax.
struct Scores {
  alignas(64) float scores[kMaxQueries][kBlockKeys];
};
template <class Element>  // what weights are rounded to before the product with V
struct Block : Scores {
  alignas(64) Element weights[kMaxQueries][kBlockKeys];
};

static inline void store_weights(float* to, Vec first, Vec second) {
  store(to, first);
  store(to + kLanes, second);
}
struct Bf16AsFloat {
  float value;
};
static inline void store_weights(Bf16AsFloat* to, Vec first, Vec second) {
  store(&to->value, round_to_bf16(first));
  store(&to->value + kLanes, round_to_bf16(second));
}
static inline void store_weights(uint16_t* to, Vec first, Vec second) { store_rounded(to, first, second); }

// Of one query's scores.
static inline void hide_keys(float* scores, int first, int end, Keys keys) {
  const auto lane = [](int key) { return key < 0 ? 0 : key > kLanes ? kLanes : key; };
  for (int k = 0; k < keys.end - keys.begin; k += kLanes) {
    const int from = keys.begin + k;
    store(scores + k, keep_lanes(load(scores + k), lane(first - from), lane(end - from), -INFINITY));
  }
}

// A split's softmax: a block is expected, inspected, begun, and then its rows become weights. Rows are inspected and
// weighed some at a time: those of the next block are inspected between those of this one.
template <class Element>
class Softmax {
 public:
  Softmax(const Sight& sight, int num_queries, float scale) : sight_(sight), num_queries_(num_queries), scale_(scale) {
    restart();
  }

  // For another split.
  void restart() {
    is_first_ = true;
    for (int i = 0; i < num_queries_; ++i) {
      max_[i] = limits_[i] = kLowest;
      shifts_[i] = 0.0f;
      sums_[i] = zero();
    }
  }

  // The block to inspect next, once it has its scores.
  void expect(Block<Element>& block, Keys keys) {
    expected_ = &block;
    expected_keys_ = keys;
    hides_ = sight_.first[num_queries_ - 1] > keys.begin || sight_.end[0] < keys.end;
    excess_ = zero();
    inspected_ = 0;
  }

  // Of the expected block, the next `count` rows at most: whether a score exceeds its query's limit.
  void inspect(int count) {
    const int end = inspected_ + count < num_queries_ ? inspected_ + count : num_queries_;
    for (; inspected_ < end; ++inspected_) {
      const int i = inspected_;
      if (hides_) hide_keys(expected_->scores[i], sight_.first[i], sight_.end[i], expected_keys_);
      excess_ = max(sub(best_scores(i), broadcast(limits_[i])), excess_);
    }
  }

  // Goes on to the expected block. Whether a maximum rose: shrink_output is due when the keys before have been added to
  // the output.
  bool begin() {
    inspect(num_queries_);
    block_ = expected_;
    num_vecs_ = (expected_keys_.end - expected_keys_.begin) / kLanes;
    weighed_ = 0;
    const bool rises = is_first_ || reduce_max(excess_) > 0.0f;
    if (rises)
      for (int i = 0; i < num_queries_; ++i) raise(i);
    is_first_ = false;
    return rises;
  }

  // The next `count` rows at most. A sum's lanes are keys modulo 16; they are reduced at the split's end.
  void weigh(int count) {
    const int end = weighed_ + count < num_queries_ ? weighed_ + count : num_queries_;
    for (; weighed_ < end; ++weighed_) {
      const int i = weighed_;
      const float* scores = block_->scores[i];
      Vec sum = sums_[i];
      for (int v = 0; v < num_vecs_; v += 2) {
        const auto weight = [&](int at) {
          return exp2(fma(load(scores + at * kLanes), broadcast(scale_), broadcast(shifts_[i])));
        };
        const Vec first = weight(v), second = weight(v + 1);
        store_weights(block_->weights[i] + v * kLanes, first, second);
        sum = add(sum, add(first, second));
      }
      sums_[i] = sum;
    }
  }

  void shrink_output(const AttentionState& state) const {
    for (int i = 0; i < num_queries_; ++i) {
      if (shrinks_[i] == 1.0f) continue;
      float* out = state.row(i);
      for (int d = 0; d < state.padded_dim; d += kLanes) store(out + d, mul(load(out + d), broadcast(shrinks_[i])));
    }
  }

  void finish(const AttentionState& state) const {
    for (int i = 0; i < num_queries_; ++i) {
      state.max[i] = max_[i];
      state.sum[i] = reduce_add(sums_[i]);
    }
  }

 private:
  // Of a row of the expected block; a NaN is no score here, it makes its weight NaN.
  Vec best_scores(int row) const {
    const float* scores = expected_->scores[row];
    Vec best[2] = {broadcast(kLowest), broadcast(kLowest)};  // two chains: 16 keys of a page each
    for (int k = 0; k < expected_keys_.end - expected_keys_.begin; k += kPageSize)
      for (int half = 0; half < 2; ++half) best[half] = max(load(scores + k + half * kLanes), best[half]);
    return max(best[0], best[1]);
  }

  void raise(int i) {
    const float best = reduce_max(best_scores(i));
    shrinks_[i] = 1.0f;
    if (!(best - limits_[i] > 0.0f)) return;
    if (!is_first_) {
      const Vec shrink = exp2(broadcast((max_[i] - best) * scale_));
      alignas(64) float lanes[kLanes];
      store(lanes, shrink);
      shrinks_[i] = lanes[0];
      sums_[i] = mul(sums_[i], shrink);
    }
    max_[i] = best;
    limits_[i] = best + kHeadroom / scale_;
    shifts_[i] = -best * scale_;
  }

  const Sight& sight_;
  const int num_queries_;
  const float scale_;
  bool is_first_;  // the next block of its split
  Block<Element>* expected_ = nullptr;
  Keys expected_keys_{0, 0};
  bool hides_ = false;
  Vec excess_;
  int inspected_ = 0;
  Block<Element>* block_ = nullptr;
  int num_vecs_ = 0;
  int weighed_ = 0;
  float max_[kMaxQueries];          // what weights are relative to
  float limits_[kMaxQueries];       // of a score, before its query's maximum rises
  float shifts_[kMaxQueries];       // -maximum * scale
  float shrinks_[kMaxQueries];      // what the block does to the output so far
  Vec sums_[kMaxQueries];
};

// total and the state of the keys that follow become one, for queries begin .. end - 1. Merging into a state without
// keys is a copy, bit for bit.
static inline void merge(const AttentionState& total, const AttentionState& next, int begin, int end, float scale) {
  for (int i = begin; i < end; ++i) {
    const float now = next.max[i] > total.max[i] ? next.max[i] : total.max[i];
    const Vec keep = exp2(broadcast((total.max[i] - now) * scale));
    const Vec take = exp2(broadcast((next.max[i] - now) * scale));
    alignas(64) float sum[kLanes];
    store(sum, fma(broadcast(next.sum[i]), take, mul(broadcast(total.sum[i]), keep)));
    total.max[i] = now;
    total.sum[i] = sum[0];
    float *out = total.row(i), *other = next.row(i);
    for (int d = 0; d < total.padded_dim; d += kLanes)
      store(out + d, fma(load(other + d), take, mul(load(out + d), keep)));
  }
}

// Divides by the sums of the weights and stores head_dim values per query, a query head beside the other in a row.
static inline void store_output(const AttentionArgs& a, const AttentionTask& t, const AttentionState& state) {
  const int group = a.num_heads / a.kv.num_kv_heads;
  alignas(64) uint16_t bits[kMaxHeadDim];
  for (int query = t.query_begin; query < t.query_end; ++query) {
    float* out = state.row(query - t.query_begin);
    const Vec inverse = broadcast(1.0f / state.sum[query - t.query_begin]);
    for (int d = 0; d < state.padded_dim; d += kLanes) {
      const Vec y = mul(load(out + d), inverse);
      store(out + d, y);
      store_rounded(bits + d, y);
    }
    const size_t at = query / group * a.out_stride + (t.kv_head * group + query % group) * a.head_dim;
    if (a.out_format == Format::kBf16) {
      std::memcpy(static_cast<uint16_t*>(a.out) + at, bits, sizeof(uint16_t) * a.head_dim);
    } else {
      std::memcpy(static_cast<float*>(a.out) + at, out, sizeof(float) * a.head_dim);
    }
  }
}

}  // namespace ridgeline::RIDGELINE_ISA
