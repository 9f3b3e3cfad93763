// The online softmax (FlashAttention) of up to 32 queries of one KV head, and what attention keeps per query.
//
// Keys enter in blocks of 64 at fixed absolute positions, in ascending order. Per block and query: the maximum of the
// scores, weights 2^((score - maximum) * scale), and everything so far shrinks by 2^((old maximum - maximum) * scale).
// Every 512 keys a new state is begun; states are merged in ascending order. So decode may give the stretches of one
// context to several threads, and has prefill's bits.
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

// 2^x within 3e-7 for -127 < x < 127, 0 below; NaN stays NaN. The polynomial is the minimax one with p(0) = 1.
static inline Vec exp2(Vec x) {
  const Vec magic = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec clamped = max(broadcast(-127.0f), x);
  const Vec n = sub(add(clamped, magic), magic);
  const Vec f = sub(clamped, n);
  Vec p = fma(broadcast(1.326472731e-3f), f, broadcast(9.671512991e-3f));
  p = fma(p, f, broadcast(5.550733581e-2f));
  p = fma(p, f, broadcast(2.402224243e-1f));
  p = fma(p, f, broadcast(6.931470037e-1f));
  return scale_pow2(fma(p, f, broadcast(1.0f)), n);
}

// What turns a product of query and key into the logarithm of a weight to base 2.
static inline float log2_scale(const AttentionArgs& a) { return a.scale * 1.44269504f; }

// What attention knows of some queries after a stretch of keys, in one piece of memory (attention_state_floats).
struct AttentionState {
  float* max;  // [32]
  float* sum;  // [32] of the weights
  float* out;  // [32, padded_dim]: weights @ V
  int padded_dim;

  AttentionState(float* memory, int head_dim)
      : max(memory), sum(max + kMaxQueries), out(sum + kMaxQueries), padded_dim(padded_head_dim(head_dim)) {}

  float* row(int query) const { return out + query * padded_dim; }

  void start(int num_queries) const {
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

  int first_page() const { return begin / kPageSize; }
  int num_pages() const { return (end - begin) / kPageSize; }
};

// A block on its way through the softmax.
struct Scores {
  alignas(64) float scores[kMaxQueries][kBlockKeys];
  alignas(64) float shrink[kMaxQueries];  // what the block does to the output so far
};
template <class Element>  // what weights are rounded to before the product with V
struct Block : Scores {
  alignas(64) Element weights[kMaxQueries][kBlockKeys];
};

static inline void store_weights(float* to, Vec first, Vec second) {
  store(to, first);
  store(to + kLanes, second);
}
static inline void store_weights(uint16_t* to, Vec first, Vec second) { store_rounded(to, first, second); }

static inline void hide_keys(Scores& b, const Sight& sight, Keys keys, int query_begin, int query_end) {
  const auto lane = [](int key) { return key < 0 ? 0 : key > kLanes ? kLanes : key; };
  for (int i = query_begin; i < query_end; ++i)
    for (int k = 0; k < keys.end - keys.begin; k += kLanes) {
      const int begin = lane(sight.first[i] - keys.begin - k), end = lane(sight.end[i] - keys.begin - k);
      if (begin == 0 && end == kLanes) continue;
      store(b.scores[i] + k, keep_lanes(load(b.scores[i] + k), begin, end, -INFINITY));
    }
}

// The scores of kVecs x 16 keys become the weights of up to 16 queries. `sums` has those of a split so far, by key
// modulo 16; they are reduced at its end.
template <int kVecs, class Element>
static inline void weigh_keys(Block<Element>& b, float* maxima, Vec* sums, int query_begin, int query_end, float scale) {
  Vec best[kLanes];
  for (int i = 0; i < kLanes; ++i) best[i] = broadcast(kLowest);
  for (int i = query_begin; i < query_end; ++i)
    for (int v = 0; v < kVecs; ++v) best[i - query_begin] = max(load(b.scores[i] + v * kLanes), best[i - query_begin]);
  const Vec before = load(maxima + query_begin), now = max(max_of_each(best), before);
  store(maxima + query_begin, now);
  store(b.shrink + query_begin, exp2(mul(sub(before, now), broadcast(scale))));
  alignas(64) float shift[kLanes];
  store(shift, mul(now, broadcast(-scale)));
  for (int i = query_begin; i < query_end; ++i) {
    Vec sum = mul(sums[i], broadcast(b.shrink[i]));
    for (int v = 0; v < kVecs; v += 2) {
      const auto weight = [&](const float* scores) {
        return exp2(fma(load(scores), broadcast(scale), broadcast(shift[i - query_begin])));
      };
      const Vec first = weight(b.scores[i] + v * kLanes), second = weight(b.scores[i] + (v + 1) * kLanes);
      store_weights(b.weights[i] + v * kLanes, first, second);
      sum = add(sum, add(first, second));
    }
    sums[i] = sum;
  }
}

template <class Element>
static inline void weigh(Block<Element>& b, const AttentionState& state, Vec* sums, const Sight& sight, Keys keys,
                         int query_begin, int query_end, float scale) {
  static_assert(kPageSize == 2 * kLanes && kBlockPages == 2);
  if (sight.first[query_end - 1] > keys.begin || sight.end[query_begin] < keys.end)
    hide_keys(b, sight, keys, query_begin, query_end);
  if (keys.num_pages() == kBlockPages) {
    weigh_keys<4>(b, state.max, sums, query_begin, query_end, scale);
  } else {
    weigh_keys<2>(b, state.max, sums, query_begin, query_end, scale);
  }
}

static inline void shrink_output(const Scores& b, const AttentionState& state, int num_queries) {
  for (int i = 0; i < num_queries; ++i) {
    if (b.shrink[i] == 1.0f) continue;  // most blocks bring no new maximum
    float* out = state.row(i);
    for (int d = 0; d < state.padded_dim; d += kLanes) store(out + d, mul(load(out + d), broadcast(b.shrink[i])));
  }
}

// total and the state of the keys that follow become one. Merging into a state without keys is a copy, bit for bit.
static inline void merge(const AttentionState& total, const AttentionState& next, int num_queries, float scale) {
  for (int i = 0; i < num_queries; ++i) {
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
