// Causal attention over pages with an online softmax (FlashAttention), several queries of one KV head at a time.
//
// A query walks the pages that it sees in ascending order. Per page: 16 scores in one Vec (one chain of fused
// multiply-adds over the head dimension; bf16: AMX's order, see kernels_matmul.h), the running maximum, weights
// exp(score - maximum), and out = out * exp(old maximum - maximum) + weights @ V. bf16 rounds the weights before the
// product with V. Which queries share a batch only decides how often a page is loaded.
#pragma once
#include <limits>

#include "kernels.h"
#include "kernels_rowwise.h"

namespace ridgeline::RIDGELINE_ISA {

struct F32Attention {
  using Element = float;
  static constexpr bool kRoundWeights = false;

  template <int Q>
  static inline void scores(const Element* const (&q)[Q], const Element* keys, int head_dim, Vec (&out)[Q]) {
    for (int i = 0; i < Q; ++i) out[i] = zero();
    for (int d = 0; d < head_dim; ++d) {
      const Vec k = load(keys + d * kPageSize);
      for (int i = 0; i < Q; ++i) out[i] = fma(broadcast(q[i][d]), k, out[i]);
    }
  }

  template <int Q>
  static inline void accumulate(float* const (&out)[Q], const float* const (&weights)[Q], const Element* values,
                                int padded_dim, int key_begin, int key_end) {
    for (int d = 0; d < padded_dim; d += kLanes) {
      Vec sum[Q];
      for (int i = 0; i < Q; ++i) sum[i] = load(out[i] + d);
      for (int key = key_begin; key < key_end; ++key) {
        const Vec v = load(values + key * padded_dim + d);
        for (int i = 0; i < Q; ++i) sum[i] = fma(broadcast(weights[i][key]), v, sum[i]);
      }
      for (int i = 0; i < Q; ++i) store(out[i] + d, sum[i]);
    }
  }
};

struct Bf16Attention {
  using Element = uint16_t;
  static constexpr bool kRoundWeights = true;

  template <int Q>
  static inline void scores(const Element* const (&q)[Q], const Element* keys, int head_dim, Vec (&out)[Q]) {
    for (int i = 0; i < Q; ++i) out[i] = zero();
    for (int tile = 0; tile < head_dim; tile += kBf16Tile) {
      const int tile_end = tile + kBf16Tile < head_dim ? tile + kBf16Tile : head_dim;
      Vec even[Q], odd[Q];
      for (int i = 0; i < Q; ++i) even[i] = odd[i] = zero();
      for (int d = tile; d < tile_end; d += 2) {
        Vec k_even, k_odd;
        load_pairs(keys + d * kPageSize, k_even, k_odd);
        for (int i = 0; i < Q; ++i) {
          Vec q_even, q_odd;
          broadcast_pair(q[i] + d, q_even, q_odd);
          even[i] = fma(q_even, k_even, even[i]);
          odd[i] = fma(q_odd, k_odd, odd[i]);
        }
      }
      for (int i = 0; i < Q; ++i) out[i] = add(out[i], add(even[i], odd[i]));
    }
  }

  template <int Q>
  static inline void accumulate(float* const (&out)[Q], const float* const (&weights)[Q], const Element* values,
                                int padded_dim, int key_begin, int key_end) {
    for (int d = 0; d < padded_dim; d += kLanes) {
      Vec even[Q], odd[Q];
      for (int i = 0; i < Q; ++i) even[i] = odd[i] = zero();
      for (int key = key_begin / 2 * 2; key < key_end; key += 2) {
        Vec v_even, v_odd;
        load_pairs(values + key * padded_dim + 2 * d, v_even, v_odd);
        for (int i = 0; i < Q; ++i) {
          even[i] = fma(broadcast(weights[i][key]), v_even, even[i]);
          odd[i] = fma(broadcast(weights[i][key + 1]), v_odd, odd[i]);
        }
      }
      for (int i = 0; i < Q; ++i) store(out[i] + d, add(load(out[i] + d), add(even[i], odd[i])));
    }
  }
};

struct QueryState {
  alignas(64) float out[kMaxHeadDim];
  alignas(64) float weights[kPageSize];
  float max;
  float sum;
  int first_key;  // keys first_key .. end_key - 1 are seen
  int end_key;
};

// One page's scores enter a query's softmax: its maximum, its sum, its weights; its output so far is rescaled.
template <class Arithmetic>
static inline void enter_softmax(QueryState& s, Vec scores, float scale, int begin, int end, int padded_dim) {
  scores = keep_lanes(mul(scores, broadcast(scale)), begin, end, -std::numeric_limits<float>::infinity());
  const float page_max = reduce_max(scores);
  const float new_max = page_max > s.max ? page_max : s.max;
  const float shrink = exp_scalar(s.max - new_max);
  Vec weights = exp(sub(scores, broadcast(new_max)));
  s.sum = s.sum * shrink + reduce_add(weights);
  s.max = new_max;
  if (Arithmetic::kRoundWeights) weights = round_to_bf16(weights);
  store(s.weights, weights);
  for (int d = 0; d < padded_dim; d += kLanes) store(s.out + d, mul(load(s.out + d), broadcast(shrink)));
}

template <class Arithmetic, int Q>
static void attend_page(const AttentionArgs& a, QueryState* states, const typename Arithmetic::Element* const (&q)[Q],
                        int page, int index, int kv_head, int padded_dim) {
  using Element = typename Arithmetic::Element;
  Vec scores[Q];
  Arithmetic::template scores<Q>(q, reinterpret_cast<const Element*>(a.kv.k_at(page, kv_head)), a.head_dim, scores);
  const auto* values = reinterpret_cast<const Element*>(a.kv.v_at(page, kv_head));
  const int first_key = index * kPageSize;
  int begin[Q], end[Q];
  bool all_see_whole_page = true;
  for (int i = 0; i < Q; ++i) {
    begin[i] = states[i].first_key > first_key ? states[i].first_key - first_key : 0;
    end[i] = states[i].end_key < first_key + kPageSize ? states[i].end_key - first_key : kPageSize;
    if (begin[i] < end[i]) enter_softmax<Arithmetic>(states[i], scores[i], a.scale, begin[i], end[i], padded_dim);
    all_see_whole_page &= begin[i] == 0 && end[i] == kPageSize;
  }
  if (all_see_whole_page) {
    float* out[Q];
    const float* weights[Q];
    for (int i = 0; i < Q; ++i) {
      out[i] = states[i].out;
      weights[i] = states[i].weights;
    }
    Arithmetic::template accumulate<Q>(out, weights, values, padded_dim, 0, kPageSize);
    return;
  }
  for (int i = 0; i < Q; ++i) {
    if (begin[i] >= end[i]) continue;
    float* const out[1] = {states[i].out};
    const float* const weights[1] = {states[i].weights};
    Arithmetic::template accumulate<1>(out, weights, values, padded_dim, begin[i], end[i]);
  }
}

// Divides by the sum of the weights and stores head_dim values from element `at` of a.out on.
static inline void store_output(const AttentionArgs& a, size_t at, QueryState& s, int padded_dim) {
  const Vec inverse = broadcast(1.0f / s.sum);
  alignas(64) uint16_t bits[kMaxHeadDim];
  for (int d = 0; d < padded_dim; d += kLanes) {
    const Vec y = mul(load(s.out + d), inverse);
    store(s.out + d, y);
    store_as(Format::kBf16, bits, d, y);
  }
  if (a.out_format == Format::kBf16) {
    std::memcpy(static_cast<uint16_t*>(a.out) + at, bits, sizeof(uint16_t) * a.head_dim);
  } else {
    std::memcpy(static_cast<float*>(a.out) + at, s.out, sizeof(float) * a.head_dim);
  }
}

// Queries are numbered row by row, and by head within a row.
template <class Arithmetic, int Q>
static void attend_queries(const AttentionArgs& a, const int32_t* block_table, int kv_head, int row_begin, int first) {
  const int group = a.num_heads / a.kv.num_kv_heads;
  const int padded_dim = (a.head_dim + kLanes - 1) / kLanes * kLanes;
  QueryState states[Q];
  const typename Arithmetic::Element* q[Q];
  size_t out[Q];  // element of a.out
  int page_begin = std::numeric_limits<int>::max(), page_end = 0;
  for (int i = 0; i < Q; ++i) {
    const int row = row_begin + (first + i) / group, head = kv_head * group + (first + i) % group;
    q[i] = row_of<typename Arithmetic::Element>(a.q, a.q_stride, row) + head * a.head_dim;
    out[i] = row * a.out_stride + head * a.head_dim;
    QueryState& s = states[i];
    std::memset(s.out, 0, sizeof(float) * padded_dim);
    s.max = -std::numeric_limits<float>::infinity();
    s.sum = 0.0f;
    s.end_key = a.positions[row] + 1;
    s.first_key = a.window > 0 && s.end_key > a.window ? s.end_key - a.window : 0;
    if (s.first_key / kPageSize < page_begin) page_begin = s.first_key / kPageSize;
    if (s.end_key > page_end * kPageSize) page_end = (s.end_key + kPageSize - 1) / kPageSize;
  }
  for (int index = page_begin; index < page_end; ++index)
    attend_page<Arithmetic, Q>(a, states, q, block_table[index], index, kv_head, padded_dim);
  for (int i = 0; i < Q; ++i) store_output(a, out[i], states[i], padded_dim);
}

template <class Arithmetic, int Q>
static void attend_rest(const AttentionArgs& a, const int32_t* block_table, int kv_head, int row_begin, int first,
                        int count) {
  if (count == Q) {
    attend_queries<Arithmetic, Q>(a, block_table, kv_head, row_begin, first);
  } else if constexpr (Q > 1) {
    attend_rest<Arithmetic, Q - 1>(a, block_table, kv_head, row_begin, first, count);
  }
}

template <class Arithmetic>
static void attend(const AttentionArgs& a, const int32_t* block_table, int kv_head, int row_begin, int row_end) {
  const int queries = (row_end - row_begin) * (a.num_heads / a.kv.num_kv_heads);
  for (int first = 0; first < queries; first += kQueries) {
    const int count = queries - first < kQueries ? queries - first : kQueries;
    attend_rest<Arithmetic, kQueries>(a, block_table, kv_head, row_begin, first, count);
  }
}

}  // namespace ridgeline::RIDGELINE_ISA
