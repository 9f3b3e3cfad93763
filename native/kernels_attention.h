// Causal attention over pages, several queries of one KV head at a time; the softmax is kernels_softmax.h's.
//
// Arithmetic of a query: each score is one chain of fused multiply-adds over the head dimension, and weights @ V one
// chain over the keys of a page after another's (bf16: both in AMX's order, see kernels_matmul.h, with weights rounded
// to bf16). Products run over whole pages, which is why unwritten slots hold zeros. Which queries share a block only
// decides how often a page is loaded.
#pragma once
#include "kernels_matmul.h"
#include "kernels_softmax.h"

namespace ridgeline::RIDGELINE_ISA {

// A Path has: Element of pages, Weight of a block; scores(queries, 16 keys); accumulate(weights of a page, V, output).
struct F32Attention {
  using Element = float;
  using Weight = float;

  template <int Q>
  static inline void scores(const float* const (&q)[Q], const float* keys, int head_dim, Vec (&out)[Q]) {
    for (int i = 0; i < Q; ++i) out[i] = zero();
    for (int d = 0; d < head_dim; ++d) {
      const Vec k = load(keys + d * kLanes);
      for (int i = 0; i < Q; ++i) out[i] = fma(broadcast(q[i][d]), k, out[i]);
    }
  }

  template <int Q>
  static inline void accumulate(const float* const (&weights)[Q], const float* values, Vec (&out)[Q]) {
    for (int key = 0; key < kPageSize; ++key) {
      const Vec v = load(values + key * kLanes);
      for (int i = 0; i < Q; ++i) out[i] = fma(broadcast(weights[i][key]), v, out[i]);
    }
  }
};

// Queries and weights are bf16 values held as fp32, which a load broadcasts.
struct Bf16Attention {
  using Element = uint16_t;
  using Weight = Bf16AsFloat;

  template <int Q>
  static inline void scores(const float* const (&q)[Q], const uint16_t* keys, int head_dim, Vec (&out)[Q]) {
    for (int i = 0; i < Q; ++i) out[i] = zero();
    for (int tile = 0; tile < head_dim; tile += kBf16Tile)
      add_tile<Q>(q, keys, tile, tile + kBf16Tile < head_dim ? tile + kBf16Tile : head_dim, out);
  }

  template <int Q>
  static inline void accumulate(const float* const (&weights)[Q], const uint16_t* values, Vec (&out)[Q]) {
    add_tile<Q>(weights, values, 0, kPageSize, out);
  }

 private:
  template <int Q>
  static inline void add_tile(const float* const (&in)[Q], const uint16_t* packed, int begin, int end, Vec (&out)[Q]) {
    Vec even[Q], odd[Q];
    for (int i = 0; i < Q; ++i) even[i] = odd[i] = zero();
    for (int k = begin; k < end; k += 2) {
      Vec packed_even, packed_odd;
      load_pairs(packed + k * kLanes, packed_even, packed_odd);
      for (int i = 0; i < Q; ++i) {
        even[i] = fma(broadcast(in[i][k]), packed_even, even[i]);
        odd[i] = fma(broadcast(in[i][k + 1]), packed_odd, odd[i]);
      }
    }
    for (int i = 0; i < Q; ++i) out[i] = add(out[i], add(even[i], odd[i]));
  }
};

// The queries of a task by number, and its keys and values by page.
template <class Element>
struct Operands {
  const AttentionArgs& a;
  const AttentionTask& t;

  const Element* query(int i) const {
    return static_cast<const Element*>(a.q) + t.kv_head * a.q_head_stride +
           static_cast<size_t>(t.query_begin + i) * a.head_dim;
  }
  const Element* keys(int key) const {  // and the 15 after it
    return reinterpret_cast<const Element*>(a.kv.k_at(t.block_table[key / kPageSize], t.kv_head)) +
           key % kPageSize * a.head_dim;
  }
  const Element* values(int key, int dim) const {  // of its page, and 16 dimensions
    return reinterpret_cast<const Element*>(a.kv.v_at(t.block_table[key / kPageSize], t.kv_head)) + dim * kPageSize;
  }
};

// The same with queries in fp32.
template <class Path>
struct VecInputs : Operands<typename Path::Element> {
  alignas(64) float queries[kMaxQueries * kMaxHeadDim];

  VecInputs(const AttentionArgs& args, const AttentionTask& task) : Operands<typename Path::Element>{args, task} {
    for (int i = 0; i < task.query_end - task.query_begin; ++i)
      to_floats(this->query(i), args.head_dim, queries + i * args.head_dim);
  }
  const float* floats(int i) const { return queries + i * this->a.head_dim; }
};

// Queries first .. first + Q - 1 with the pages of a block: scores, or weights @ V onto the output.
template <class Path, int Q>
static inline void score_block(const VecInputs<Path>& o, Block<typename Path::Weight>& b, int first, Keys keys) {
  const float* q[Q];
  for (int i = 0; i < Q; ++i) q[i] = o.floats(first + i);
  for (int key = keys.begin; key < keys.end; key += kLanes) {
    Vec scores[Q];
    Path::template scores<Q>(q, o.keys(key), o.a.head_dim, scores);
    for (int i = 0; i < Q; ++i) store(b.scores[first + i] + key - keys.begin, scores[i]);
  }
}
template <class Path, int Q>
static inline void add_values(const VecInputs<Path>& o, const Block<typename Path::Weight>& b, const AttentionState& state,
                              int first, Keys keys) {
  for (int d = 0; d < state.padded_dim; d += kLanes) {
    Vec out[Q];
    for (int i = 0; i < Q; ++i) out[i] = load(state.row(first + i) + d);
    for (int key = keys.begin; key < keys.end; key += kPageSize) {
      const float* weights[Q];
      for (int i = 0; i < Q; ++i) weights[i] = reinterpret_cast<const float*>(b.weights[first + i]) + key - keys.begin;
      Path::template accumulate<Q>(weights, o.values(key, d), out);
    }
    for (int i = 0; i < Q; ++i) store(state.row(first + i) + d, out[i]);
  }
}

// Calls f.run<Q>(first) for the task's queries, kQueries at a time.
template <int Q = kQueries, class F>
static inline void for_queries(int first, int end, const F& f) {
  for (; end - first >= Q; first += Q) f.template operator()<Q>(first);
  if constexpr (Q > 1) for_queries<Q - 1>(first, end, f);
}

// The keys, in whole pages, that some query sees: all of them, and those of a split.
static inline Keys keys_of_task(const Sight& sight, int num_queries) {
  const int pages = (sight.end[num_queries - 1] + kPageSize - 1) / kPageSize;
  return {sight.first[0] / kBlockKeys * kBlockKeys, pages * kPageSize};
}
static inline Keys keys_of_split(const Sight& sight, int num_queries, int split) {
  const Keys all = keys_of_task(sight, num_queries);
  const int begin = split * kSplitKeys, end = begin + kSplitKeys;
  return {all.begin > begin ? all.begin : begin, all.end < end ? all.end : end};
}
static inline Keys block_of(Keys split, int key) {
  return {key, key + kBlockKeys < split.end ? key + kBlockKeys : split.end};
}

// By is what differs between kinds of arithmetic: Inputs is what a task reads; score and add take a block.
template <class By>
static inline void attend_blocks(const typename By::Inputs& o, Softmax<typename By::Element>& softmax,
                                 const AttentionState& state, int num_queries, Keys split) {
  Block<typename By::Element> block;
  for (int key = split.begin; key < split.end; key += kBlockKeys) {
    const Keys keys = block_of(split, key);
    By::score(o, block, num_queries, keys);
    softmax.expect(block, keys);
    if (softmax.begin()) softmax.shrink_output(state);
    softmax.weigh(num_queries);
    By::add(o, block, state, num_queries, keys);
  }
}

template <class Path>
struct ByVec {
  using Element = typename Path::Weight;
  using Inputs = VecInputs<Path>;

  static void prepare(int) {}
  static void release() {}
  static void score(const Inputs& o, Block<Element>& b, int num_queries, Keys keys) {
    for_queries(0, num_queries, [&]<int Q>(int first) { score_block<Path, Q>(o, b, first, keys); });
  }
  static void add(const Inputs& o, const Block<Element>& b, const AttentionState& state, int num_queries, Keys keys) {
    for_queries(0, num_queries, [&]<int Q>(int first) { add_values<Path, Q>(o, b, state, first, keys); });
  }
};

template <class By>
static void attend_split(const AttentionArgs& a, const AttentionTask& t, const typename By::Inputs& inputs,
                         const Sight& sight, int split, const AttentionState& state) {
  const int num_queries = t.query_end - t.query_begin;
  Softmax<typename By::Element> softmax(sight, num_queries, log2_scale(a));
  state.clear(num_queries);
  attend_blocks<By>(inputs, softmax, state, num_queries, keys_of_split(sight, num_queries, split));
  softmax.finish(state);
}

template <class By>
static void attend(const AttentionArgs& a, const AttentionTask& t) {
  const int num_queries = t.query_end - t.query_begin;
  const Sight sight(a, t.query_begin, num_queries);
  const typename By::Inputs inputs{a, t};
  By::prepare(num_queries);
  if (t.states) {
    attend_split<By>(a, t, inputs, sight, t.split, AttentionState(t.states, a.head_dim));
    return By::release();
  }
  alignas(64) float memory[2][attention_state_floats(kMaxHeadDim)];
  const AttentionState total(memory[0], a.head_dim), next(memory[1], a.head_dim);
  int split = sight.first[0] / kSplitKeys;
  attend_split<By>(a, t, inputs, sight, split, total);
  for (++split; split * kSplitKeys < sight.end[num_queries - 1]; ++split) {
    attend_split<By>(a, t, inputs, sight, split, next);
    merge(total, next, 0, num_queries, log2_scale(a));
  }
  By::release();
  store_output(a, t, total);
}

static void attend_f32(const AttentionArgs& a, const AttentionTask& t) { attend<ByVec<F32Attention>>(a, t); }
static void attend_bf16(const AttentionArgs& a, const AttentionTask& t) { attend<ByVec<Bf16Attention>>(a, t); }

static void merge_splits(const AttentionArgs& a, const AttentionTask& t) {
  const size_t floats = attention_state_floats(a.head_dim);
  const AttentionState total(t.states, a.head_dim);
  for (int i = 1; i < t.num_splits; ++i)
    merge(total, AttentionState(t.states + i * floats, a.head_dim), 0, t.query_end - t.query_begin, log2_scale(a));
  store_output(a, t, total);
}

}  // namespace ridgeline::RIDGELINE_ISA
