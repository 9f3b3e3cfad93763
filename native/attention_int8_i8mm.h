// Attention over pages of int8 by i8mm's products of 2 x 8 with 8 x 2 bytes: a query's two rows of digits are such a
// pair, and codes are signed as they lie. See kernels_attention_int8.h for the arithmetic.
#pragma once
#include "kernels_attention_int8.h"
#include "matmul_quant_neon.h"

namespace ridgeline::RIDGELINE_ISA {

struct Int8ByPairs {
  using Element = float;
  using Inputs = DigitQueries;

  static void prepare(int) {}
  static void release() {}

  static void score(const DigitQueries& o, Block<float>& b, int num_queries, Keys keys) {
    for_queries(0, num_queries, [&]<int Q>(int first) {
      const int8_t* digits[Q];
      for (int i = 0; i < Q; ++i) digits[i] = o.row(2 * (first + i));
      for (int key = keys.begin; key < keys.end; key += kLanes) {
        PairSums sums[Q] = {};
        // eight at a time: digits behind the head are zero, whatever stands behind its codes
        add_products(key_codes(o.a, o.t, key), digits, o.stride, int8_key_dim(o.a.head_dim), sums);
        const Vec scales = load(key_scales(o.a, o.t, key));
        for (int i = 0; i < Q; ++i)
          store_score(b.scores[first + i] + key - keys.begin, high(sums[i]), low(sums[i]), scales, o.scales[first + i]);
      }
    });
  }

  static void add(const DigitQueries& o, const Block<float>& b, const AttentionState& state, int num_queries,
                  Keys keys) {
    for (int first = 0; first < num_queries; first += kLanes) {
      const int count = num_queries - first < kLanes ? num_queries - first : kLanes;
      const DigitWeights w(o, b, first, count, keys);
      for_queries(0, count, [&]<int Q>(int query) {
        for (int d = 0; d < state.padded_dim; d += kLanes) {
          PairSums sums[Q] = {};
          for (int key = keys.begin; key < keys.end; key += kPageSize) {
            const int8_t* digits[Q];
            for (int i = 0; i < Q; ++i) digits[i] = w.digits[2 * (query + i)] + key - keys.begin;
            add_products(value_codes(o.a, o.t, key, d), digits, kBlockKeys, kPageSize, sums);
          }
          for (int i = 0; i < Q; ++i)
            add_output(state.row(first + query + i) + d, high(sums[i]), low(sums[i]), w.scales[query + i]);
        }
      });
    }
  }

 private:
  static inline Vec high(const PairSums& sums) { return to_floats(sums.first()); }
  static inline Vec low(const PairSums& sums) { return to_floats(sums.second()); }

  // `digits`: the high ones of each query; the low ones stand `stride` behind them.
  template <int Q>
  static inline void add_products(const uint8_t* codes, const int8_t* const (&digits)[Q], int stride, int count,
                                  PairSums (&sums)[Q]) {
    for (int k = 0; k < count; k += 8, codes += 8 * kLanes) {
      int8x16_t inputs[Q];
      for (int i = 0; i < Q; ++i) inputs[i] = eight_of_rows(digits[i] + k, digits[i] + stride + k);
      for (int i = 0; i < 4; ++i) {
        const uint8x16_t first = vld1q_u8(codes + 16 * i), second = vld1q_u8(codes + 4 * kLanes + 16 * i);
        const int8x16_t lower = vreinterpretq_s8_u8(eight_of_two<0>(first, second));
        const int8x16_t upper = vreinterpretq_s8_u8(eight_of_two<1>(first, second));
        for (int q = 0; q < Q; ++q) {
          sums[q].v[2 * i] = vmmlaq_s32(sums[q].v[2 * i], lower, inputs[q]);
          sums[q].v[2 * i + 1] = vmmlaq_s32(sums[q].v[2 * i + 1], upper, inputs[q]);
        }
      }
    }
  }
};

static void attend_int8_by_pairs(const AttentionArgs& a, const AttentionTask& t) { attend<Int8ByPairs>(a, t); }

}  // namespace ridgeline::RIDGELINE_ISA
