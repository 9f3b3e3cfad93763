// Causal attention over pages with an online softmax (FlashAttention), several queries of one KV head at a time.
//
// A query walks the pages that it sees in ascending order. Per page: 16 scores in one Vec (one chain of fused
// multiply-adds over the head dimension; bf16: AMX's order, see kernels_matmul.h), the running maximum, weights
// exp(score - maximum), and out = out * exp(old maximum - maximum) + weights @ V. bf16 rounds the weights before the
// product with V. Keys that a query does not see have weight 0; the product runs over the whole page, which is why
// unwritten slots hold zeros. Which queries share a batch only decides how often a page is loaded.
#pragma once
#include <cstring>
#include <limits>

#include "kernels.h"
#include "kernels_rowwise.h"

namespace ridgeline::RIDGELINE_ISA {

struct F32Attention {
  using Element = float;
  static constexpr bool kRoundWeights = false;
  static float widen(float x) { return x; }

  template <int Q>
  static inline void scores(const float (*q)[kMaxHeadDim], const Element* keys, int head_dim, Vec (&out)[Q]) {
    for (int i = 0; i < Q; ++i) out[i] = zero();
    for (int d = 0; d < head_dim; ++d) {
      const Vec k = load(keys + d * kPageSize);
      for (int i = 0; i < Q; ++i) out[i] = fma(broadcast(q[i][d]), k, out[i]);
    }
  }

  template <int Q>
  static inline void accumulate(float* const (&out)[Q], const float* const (&weights)[Q], const Element* values,
                                int padded_dim) {
    for (int d = 0; d < padded_dim; d += kLanes) {
      Vec sum[Q];
      for (int i = 0; i < Q; ++i) sum[i] = load(out[i] + d);
      for (int key = 0; key < kPageSize; ++key) {
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
  static float widen(uint16_t bits) { return from_bf16(bits); }

  template <int Q>
  static inline void scores(const float (*q)[kMaxHeadDim], const Element* keys, int head_dim, Vec (&out)[Q]) {
    for (int i = 0; i < Q; ++i) out[i] = zero();
    for (int tile = 0; tile < head_dim; tile += kBf16Tile) {
      const int tile_end = tile + kBf16Tile < head_dim ? tile + kBf16Tile : head_dim;
      Vec even[Q], odd[Q];
      for (int i = 0; i < Q; ++i) even[i] = odd[i] = zero();
      for (int d = tile; d < tile_end; d += 2) {
        Vec k_even, k_odd;
        load_pairs(keys + d * kPageSize, k_even, k_odd);
        for (int i = 0; i < Q; ++i) {
          even[i] = fma(broadcast(q[i][d]), k_even, even[i]);
          odd[i] = fma(broadcast(q[i][d + 1]), k_odd, odd[i]);
        }
      }
      for (int i = 0; i < Q; ++i) out[i] = add(out[i], add(even[i], odd[i]));
    }
  }

  template <int Q>
  static inline void accumulate(float* const (&out)[Q], const float* const (&weights)[Q], const Element* values,
                                int padded_dim) {
    for (int d = 0; d < padded_dim; d += kLanes) {
      Vec even[Q], odd[Q];
      for (int i = 0; i < Q; ++i) even[i] = odd[i] = zero();
      for (int key = 0; key < kPageSize; key += 2) {
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

constexpr int kMaxQueries = kLanes;  // in a batch: a Vec holds one number of each

// The online softmax of up to 16 queries.
struct Softmax {
  alignas(64) float max[kMaxQueries];
  alignas(64) float sum[kMaxQueries];     // of the weights so far
  alignas(64) float shrink[kMaxQueries];  // what the latest page does to earlier output
  int first_key[kMaxQueries];             // keys first_key .. end_key - 1 are seen
  int end_key[kMaxQueries];

  void start(int query, int position, int window) {
    max[query] = -std::numeric_limits<float>::infinity();
    sum[query] = 0.0f;
    end_key[query] = position + 1;
    first_key[query] = window > 0 && end_key[query] > window ? end_key[query] - window : 0;
  }

  bool sees(int query, int page_index) const {
    return first_key[query] < (page_index + 1) * kPageSize && end_key[query] > page_index * kPageSize;
  }
};

// One page's raw scores enter: scores[i] becomes the weights of query i, and s.shrink tells by what its output so far
// has to be multiplied. Queries that do not see the page keep everything and get no weights.
static inline void enter_page(Softmax& s, int num_queries, int page_index, float scale, Vec* scores) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  const int page_begin = page_index * kPageSize;
  alignas(64) float page_max[kMaxQueries], new_max[kMaxQueries];
  store(page_max, broadcast(kNever));
  for (int i = 0; i < num_queries; ++i) {
    const int begin = s.first_key[i] - page_begin, end = s.end_key[i] - page_begin;
    if (begin >= kPageSize || end <= 0) continue;
    scores[i] = mul(scores[i], broadcast(scale));
    if (begin > 0 || end < kPageSize)
      scores[i] = keep_lanes(scores[i], begin > 0 ? begin : 0, end < kPageSize ? end : kPageSize, kNever);
    page_max[i] = reduce_max(scores[i]);
  }
  store(new_max, max(load(page_max), load(s.max)));
  store(s.shrink, exp(sub(load(s.max), load(new_max))));
  for (int i = 0; i < num_queries; ++i) {
    if (!s.sees(i, page_index)) {
      s.shrink[i] = 1.0f;
      continue;
    }
    scores[i] = exp(sub(scores[i], broadcast(new_max[i])));
    s.max[i] = new_max[i];
    s.sum[i] = s.sum[i] * s.shrink[i] + reduce_add(scores[i]);
  }
}

static inline void shrink_output(float* out, float shrink, int padded_dim) {
  if (shrink == 1.0f) return;  // most pages bring no new maximum
  for (int d = 0; d < padded_dim; d += kLanes) store(out + d, mul(load(out + d), broadcast(shrink)));
}

// Divides by the sum of the weights and stores head_dim values from element `at` of a.out on.
static inline void store_output(const AttentionArgs& a, size_t at, float* out, float sum, int padded_dim) {
  const Vec inverse = broadcast(1.0f / sum);
  alignas(64) uint16_t bits[kMaxHeadDim];
  for (int d = 0; d < padded_dim; d += kLanes) {
    const Vec y = mul(load(out + d), inverse);
    store(out + d, y);
    store_as(Format::kBf16, bits, d, y);
  }
  if (a.out_format == Format::kBf16) {
    std::memcpy(static_cast<uint16_t*>(a.out) + at, bits, sizeof(uint16_t) * a.head_dim);
  } else {
    std::memcpy(static_cast<float*>(a.out) + at, out, sizeof(float) * a.head_dim);
  }
}

// Pages lie anywhere: asks for the next one while this one is worked on.
static inline void prefetch_page(const KvLayer& kv, int page, int kv_head) {
  const char *k = kv.k_at(page, kv_head), *v = kv.v_at(page, kv_head);
  for (size_t line = 0; line < kv.k_head_bytes; line += 64) __builtin_prefetch(k + line);
  for (size_t line = 0; line < kv.v_head_bytes; line += 64) __builtin_prefetch(v + line);
}

template <class Arithmetic, int Q>
struct QueryBatch {
  Softmax softmax;
  alignas(64) float out[Q][kMaxHeadDim];
  alignas(64) float weights[Q][kPageSize];
  alignas(64) float q[Q][kMaxHeadDim];
};

template <class Arithmetic, int Q>
static void attend_page(const AttentionArgs& a, QueryBatch<Arithmetic, Q>& batch, int page, int page_index, int kv_head,
                        int padded_dim) {
  using Element = typename Arithmetic::Element;
  Vec scores[Q];
  Arithmetic::template scores<Q>(batch.q, reinterpret_cast<const Element*>(a.kv.k_at(page, kv_head)), a.head_dim,
                                 scores);
  enter_page(batch.softmax, Q, page_index, a.scale, scores);
  const auto* values = reinterpret_cast<const Element*>(a.kv.v_at(page, kv_head));
  float* out[Q];
  const float* weights[Q];
  int num_seeing = 0;
  for (int i = 0; i < Q; ++i) {
    if (!batch.softmax.sees(i, page_index)) continue;
    shrink_output(batch.out[i], batch.softmax.shrink[i], padded_dim);
    store(batch.weights[i], Arithmetic::kRoundWeights ? round_to_bf16(scores[i]) : scores[i]);
    out[num_seeing] = batch.out[i];
    weights[num_seeing++] = batch.weights[i];
  }
  if (num_seeing == Q) return Arithmetic::template accumulate<Q>(out, weights, values, padded_dim);
  for (int i = 0; i < num_seeing; ++i) {
    float* const one_out[1] = {out[i]};
    const float* const one_weights[1] = {weights[i]};
    Arithmetic::template accumulate<1>(one_out, one_weights, values, padded_dim);
  }
}

// Queries are numbered row by row, and by head within a row.
template <class Arithmetic, int Q>
static void attend_queries(const AttentionArgs& a, const int32_t* block_table, int kv_head, int row_begin, int first) {
  const int group = a.num_heads / a.kv.num_kv_heads;
  const int padded_dim = (a.head_dim + kLanes - 1) / kLanes * kLanes;
  QueryBatch<Arithmetic, Q> batch;
  size_t out[Q];  // element of a.out
  int page_begin = std::numeric_limits<int>::max(), page_end = 0;
  for (int i = 0; i < Q; ++i) {
    const int row = row_begin + (first + i) / group, head = kv_head * group + (first + i) % group;
    const auto* q = row_of<typename Arithmetic::Element>(a.q, a.q_stride, row) + head * a.head_dim;
    for (int d = 0; d < a.head_dim; ++d) batch.q[i][d] = Arithmetic::widen(q[d]);
    out[i] = row * a.out_stride + head * a.head_dim;
    std::memset(batch.out[i], 0, sizeof(float) * padded_dim);
    batch.softmax.start(i, a.positions[row], a.window);
    const int first_page = batch.softmax.first_key[i] / kPageSize;
    const int last_page = (batch.softmax.end_key[i] - 1) / kPageSize;
    if (first_page < page_begin) page_begin = first_page;
    if (last_page >= page_end) page_end = last_page + 1;
  }
  for (int index = page_begin; index < page_end; ++index) {
    if (index + 1 < page_end) prefetch_page(a.kv, block_table[index + 1], kv_head);
    attend_page<Arithmetic, Q>(a, batch, block_table[index], index, kv_head, padded_dim);
  }
  for (int i = 0; i < Q; ++i) store_output(a, out[i], batch.out[i], batch.softmax.sum[i], padded_dim);
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
