// Attention over pages of int8, in integers: what is summed is exact, so every ISA path and every order has its bits.
//
// A query, and a block's weights times the scales of their values, become integers of 15 bits with one fp32 scale, finer
// than bf16 is. Such an integer is two digits of base 256, high * 256 + low, each an int8: two products of bytes give
// its product with the codes of a page. fp32 enters where the sums of the digits meet and are scaled:
//
//   score = fma(high, 256, low) * (key scale * query scale)       over the head dimension
//   out   = fma(fma(high, 256, low), weight scale, out)           over a block of 64 keys
//
// A key or value that is not finite has codes of 0 and the scale NaN, which reaches whoever reads its page. The sum of
// the weights, by which attention divides, is that of the weights before all this.
#pragma once
#include "kernels_attention.h"
#include "kernels_quant.h"
#include "kv_format.h"

namespace ridgeline::RIDGELINE_ISA {

constexpr float kLargestDigits = 127 * 256.0f;  // high and low are within -128..127
constexpr int kDigitRows = 2 * kMaxQueries;     // a query's high digits, then its low ones
constexpr int kDigitTile = 64;                  // digits in a tile's row

// Codes of 16 keys or dimensions, and the scales behind all codes of a page.
static inline const uint8_t* key_codes(const AttentionArgs& a, const AttentionTask& t, int key) {
  return reinterpret_cast<const uint8_t*>(a.kv.k_at(t.block_table[key / kPageSize], t.kv_head)) +
         key % kPageSize * int8_key_dim(a.head_dim);
}
static inline const float* key_scales(const AttentionArgs& a, const AttentionTask& t, int key) {
  return int8_scales(a.kv.k_at(t.block_table[key / kPageSize], t.kv_head), int8_key_dim(a.head_dim)) + key % kPageSize;
}
static inline const uint8_t* value_codes(const AttentionArgs& a, const AttentionTask& t, int key, int dim) {
  return reinterpret_cast<const uint8_t*>(a.kv.v_at(t.block_table[key / kPageSize], t.kv_head)) + dim * kPageSize;
}
static inline const float* value_scales(const AttentionArgs& a, const AttentionTask& t, int key) {
  return int8_scales(a.kv.v_at(t.block_table[key / kPageSize], t.kv_head), padded_head_dim(a.head_dim));
}

// 0 where all are finite, else NaN.
static inline Vec poison_of(Vec x) { return mul(x, zero()); }

// Digits of 64 products x * inverse as integers of at most kLargestDigits, also where x is NaN.
template <class Values>  // the number of 16 values -> Vec
static inline void store_digits_of(int8_t* high, int8_t* low, Vec inverse, const Values& x) {
  const Vec limit = broadcast(kLargestDigits), lowest = sub(zero(), limit);
  Vec products[kDigitTile / kLanes];
  for (int v = 0; v < kDigitTile / kLanes; ++v) products[v] = max(min(mul(x(v), inverse), limit), lowest);
  store_digits(high, low, products);
}

// By what the largest value becomes the largest integer; a largest below kSmallestQuantized leaves zeros.
static inline Vec inverse_of(Vec largest) {
  return zero_where_less(div(broadcast(kLargestDigits), largest), largest, broadcast(kSmallestQuantized));
}

// A task's queries.
struct DigitQueries {
  const AttentionArgs& a;
  const AttentionTask& t;
  const int stride;  // of a row of digits: the head dimension in whole tiles
  float scales[kMaxQueries];
  alignas(64) int8_t digits[kDigitRows * kMaxHeadDim];

  DigitQueries(const AttentionArgs& args, const AttentionTask& task)
      : a(args), t(task), stride((args.head_dim + kDigitTile - 1) / kDigitTile * kDigitTile) {
    const int num_queries = t.query_end - t.query_begin;
    for (int i = 0; i < num_queries; ++i) set_query(i);
    // tiles are whole
    const int rows = (2 * num_queries + kLanes - 1) / kLanes * kLanes;
    std::memset(row(2 * num_queries), 0, static_cast<size_t>(rows - 2 * num_queries) * stride);
  }

  int8_t* row(int i) { return digits + i * stride; }
  const int8_t* row(int i) const { return digits + i * stride; }

 private:
  void set_query(int i) {
    const float* q = static_cast<const float*>(a.q) + t.kv_head * a.q_head_stride +
                     static_cast<size_t>(t.query_begin + i) * a.head_dim;
    Vec largest_of = zero(), poison = zero();
    for (int d = 0; d < a.head_dim; d += kLanes) {
      const Vec x = load_left(q + d, a.head_dim - d);
      largest_of = max(max(x, sub(zero(), x)), largest_of);
      poison = add(poison, poison_of(x));
    }
    const float largest = reduce_max(largest_of);
    scales[i] = largest / kLargestDigits + reduce_add(poison);
    const Vec inverse = inverse_of(broadcast(largest));
    for (int d = 0; d < stride; d += kDigitTile)
      store_digits_of(row(2 * i) + d, row(2 * i + 1) + d, inverse, [&](int v) {
        const int at = d + v * kLanes;
        return load_left(q + at, a.head_dim - at);
      });
  }
};

// The weights of up to 16 queries with a block's keys, times the scales of the values.
struct DigitWeights {
  alignas(64) int8_t digits[2 * kLanes][kBlockKeys];
  alignas(64) float scales[kLanes];

  DigitWeights(const DigitQueries& o, const Block<float>& b, int first, int count, Keys keys) {
    constexpr int kVecs = kBlockKeys / kLanes;
    const int vecs = (keys.end - keys.begin) / kLanes;
    Vec of_values[kVecs], poison = zero();
    for (int v = 0; v < vecs; ++v) {
      const int key = keys.begin + v * kLanes;
      of_values[v] = load(value_scales(o.a, o.t, key) + key % kPageSize);
      poison = add(poison, poison_of(of_values[v]));
    }
    const float not_finite = reduce_add(poison);
    for (int i = 0; i < count; ++i) {
      const auto weight = [&](int v) {
        return v < vecs ? mul(load(b.weights[first + i] + v * kLanes), of_values[v]) : zero();
      };
      Vec largest_of = zero();
      for (int v = 0; v < vecs; ++v) largest_of = max(weight(v), largest_of);
      const float largest = reduce_max(largest_of);
      scales[i] = largest * (1.0f / kLargestDigits) + not_finite;
      store_digits_of(digits[2 * i], digits[2 * i + 1], inverse_of(broadcast(largest)), weight);
    }
  }
};

static inline Vec both_digits(Vec high, Vec low) { return fma(high, broadcast(256.0f), low); }
static inline void store_score(float* to, Vec high, Vec low, Vec key_scales, float query_scale) {
  store(to, mul(both_digits(high, low), mul(key_scales, broadcast(query_scale))));
}
static inline void add_output(float* out, Vec high, Vec low, float weight_scale) {
  store(out, fma(both_digits(high, low), broadcast(weight_scale), load(out)));
}

// By products of unsigned with signed bytes: a code's sign bit is flipped, which adds 128 to it. Where both are signed,
// there is nothing to flip.
struct Int8ByVec {
  using Element = float;
  using Inputs = DigitQueries;

  static void prepare(int) {}
  static void release() {}

  static void score(const DigitQueries& o, Block<float>& b, int num_queries, Keys keys) {
    int32_t extra[kDigitRows];
    for (int i = 0; i < 2 * num_queries; ++i) extra[i] = -kFlip * sum(o.row(i), o.stride);
    for (int key = keys.begin; key < keys.end; key += kLanes) {
      const uint8_t* codes = key_codes(o.a, o.t, key);
      const Vec scales = load(key_scales(o.a, o.t, key));
      for (int i = 0; i < num_queries; ++i) {
        Ints high = broadcast_int(extra[2 * i]), low = broadcast_int(extra[2 * i + 1]);
        add_products(codes, o.row(2 * i), o.row(2 * i + 1), int8_key_dim(o.a.head_dim), high, low);
        store_score(b.scores[i] + key - keys.begin, to_floats(high), to_floats(low), scales, o.scales[i]);
      }
    }
  }

  static void add(const DigitQueries& o, const Block<float>& b, const AttentionState& state, int num_queries,
                  Keys keys) {
    for (int first = 0; first < num_queries; first += kLanes) {
      const int count = num_queries - first < kLanes ? num_queries - first : kLanes;
      const DigitWeights w(o, b, first, count, keys);
      for (int i = 0; i < count; ++i) {
        const int8_t *high_digits = w.digits[2 * i], *low_digits = w.digits[2 * i + 1];
        const int32_t extra_high = -kFlip * sum(high_digits, kBlockKeys);
        const int32_t extra_low = -kFlip * sum(low_digits, kBlockKeys);
        for (int d = 0; d < state.padded_dim; d += kLanes) {
          Ints high = broadcast_int(extra_high), low = broadcast_int(extra_low);
          for (int key = keys.begin; key < keys.end; key += kPageSize) {
            const int at = key - keys.begin;
            add_products(value_codes(o.a, o.t, key, d), high_digits + at, low_digits + at, kPageSize, high, low);
          }
          add_output(state.row(first + i) + d, to_floats(high), to_floats(low), w.scales[i]);
        }
      }
    }
  }

 private:
  static constexpr int kFlip = kSignedDot ? 0 : 128;

  static int32_t sum(const int8_t* digits, int count) {
    int32_t total = 0;
    for (int i = 0; i < count; ++i) total += digits[i];
    return total;
  }

  static inline void add_products(const uint8_t* codes, const int8_t* high_digits, const int8_t* low_digits, int count,
                                  Ints& high, Ints& low) {
    for (int k = 0; k < count; k += 4) {
      const Codes packed = load_codes(codes + k * kLanes), four = kSignedDot ? packed : flip_signs(packed);
      high = dot(four, load_quad(high_digits + k), high);
      low = dot(four, load_quad(low_digits + k), low);
    }
  }
};

[[maybe_unused]] static void attend_int8(const AttentionArgs& a, const AttentionTask& t) { attend<Int8ByVec>(a, t); }

}  // namespace ridgeline::RIDGELINE_ISA
