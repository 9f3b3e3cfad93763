// Vec in plain C++: 16 floats in an array. It defines what the other ISAs' versions compute: every function is one
// correctly rounded operation per lane, so that all ISA paths give the same bits.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "half.h"
#include "transpose_plain.h"

namespace ridgeline::RIDGELINE_ISA {

struct Vec {
  float v[16];
};

template <class F>
static inline Vec each_lane(F f) {
  Vec r;
  for (int i = 0; i < 16; ++i) r.v[i] = f(i);
  return r;
}

static inline uint32_t bits_of(float x) {
  uint32_t b;
  std::memcpy(&b, &x, 4);
  return b;
}
static inline float float_of(uint32_t b) {
  float x;
  std::memcpy(&x, &b, 4);
  return x;
}

static inline Vec load(const float* p) {
  return each_lane([&](int i) { return p[i]; });
}
static inline void store(float* p, Vec x) {
  for (int i = 0; i < 16; ++i) p[i] = x.v[i];
}
static inline Vec broadcast(float x) {
  return each_lane([&](int) { return x; });
}
static inline Vec zero() { return broadcast(0.0f); }
static inline Vec add(Vec a, Vec b) {
  return each_lane([&](int i) { return a.v[i] + b.v[i]; });
}
static inline Vec sub(Vec a, Vec b) {
  return each_lane([&](int i) { return a.v[i] - b.v[i]; });
}
static inline Vec mul(Vec a, Vec b) {
  return each_lane([&](int i) { return a.v[i] * b.v[i]; });
}
static inline Vec div(Vec a, Vec b) {
  return each_lane([&](int i) { return a.v[i] / b.v[i]; });
}
// When a lane is unordered the second operand wins, as in SSE.
static inline Vec min(Vec a, Vec b) {
  return each_lane([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
static inline Vec max(Vec a, Vec b) {
  return each_lane([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
// a * b + c, rounded once.
static inline Vec fma(Vec a, Vec b, Vec c) {
  return each_lane([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}

// x, but +0 in the lanes where a < b; unordered lanes keep x.
static inline Vec zero_where_less(Vec x, Vec a, Vec b) {
  return each_lane([&](int i) { return a.v[i] < b.v[i] ? 0.0f : x.v[i]; });
}

// x in lanes begin <= i < end, `other` elsewhere.
static inline Vec keep_lanes(Vec x, int begin, int end, float other) {
  return each_lane([&](int i) { return i >= begin && i < end ? x.v[i] : other; });
}

// 2^n for t = n + 1.5 * 2^23, n an integer in -126..127: the low bits of such a t hold n.
static inline Vec pow2_from_magic(Vec t) {
  return each_lane([&](int i) { return float_of((bits_of(t.v[i]) << 23) + 0x3F800000u); });
}

// x - floor(x), rounded down as AVX-512 does it, for x > -2^30; what is smaller counts as an integer.
static inline Vec fraction(Vec x) {
  return each_lane([&](int i) {
    const float at_least = x.v[i] < -0x1p30f ? -0x1p30f : x.v[i];
    const float floor = std::floor(at_least), nearest = at_least - floor;
    return nearest + floor > at_least ? float_of(bits_of(nearest) - 1) : nearest;
  });
}

// x * 2^floor(n) for 1 <= x < 2 and n < 127, where 2^-127 and less count as zero; NaN when x is.
static inline Vec scale_pow2(Vec x, Vec n) {
  return each_lane([&](int i) {
    const float exponent = n.v[i] >= -127.0f ? std::floor(n.v[i]) : -127.0f;
    return x.v[i] * float_of((static_cast<uint32_t>(static_cast<int32_t>(exponent)) + 127u) << 23);
  });
}

// 16 pairs of bf16 -> the first and the second of each pair, as fp32.
static inline void load_pairs(const uint16_t* p, Vec& even, Vec& odd) {
  even = each_lane([&](int i) { return float_of(static_cast<uint32_t>(p[2 * i]) << 16); });
  odd = each_lane([&](int i) { return float_of(static_cast<uint32_t>(p[2 * i + 1]) << 16); });
}

// To the nearest bf16 (ties to even), still as fp32; NaN becomes the quiet NaN.
static inline Vec round_to_bf16(Vec x) {
  return each_lane([&](int i) {
    if (x.v[i] != x.v[i]) return float_of(0x7FC00000u);
    const uint32_t b = bits_of(x.v[i]);
    return float_of((b + 0x7FFFu + ((b >> 16) & 1u)) & 0xFFFF0000u);
  });
}

// x rounded to the nearest bf16.
static inline void store_rounded(uint16_t* p, Vec x) {
  const Vec rounded = round_to_bf16(x);
  for (int i = 0; i < 16; ++i) p[i] = static_cast<uint16_t>(bits_of(rounded.v[i]) >> 16);
}
static inline void store_rounded(uint16_t* p, Vec a, Vec b) {
  store_rounded(p, a);
  store_rounded(p + 16, b);
}

// Lanes i and i + 8, then i + 4, i + 2, i + 1: the order that all ISAs share.
template <class F>
static inline float reduce(Vec x, F f) {
  for (int half = 8; half >= 1; half /= 2)
    for (int i = 0; i < half; ++i) x.v[i] = f(x.v[i], x.v[i + half]);
  return x.v[0];
}
static inline float reduce_add(Vec x) {
  return reduce(x, [](float a, float b) { return a + b; });
}
static inline float reduce_max(Vec x) {
  return reduce(x, [](float a, float b) { return a > b ? a : b; });
}

// 16 numbers of fp16.
static inline Vec load_half(const uint16_t* p) {
  return each_lane([&](int i) { return from_half(p[i]); });
}

// Lanes i and i ^ kHalf change places.
template <int kHalf>
static inline Vec swap_lanes(Vec x) {
  return each_lane([&](int i) { return x.v[i ^ kHalf]; });
}

// Integers of -128..127 as bytes.
static inline void store_codes(int8_t* p, Vec integers) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(integers.v[i]);
}

// 64 values rounded to integers (ties to even) as high * 256 + low; |x| <= 127 * 256.
static inline void store_digits(int8_t* high, int8_t* low, const Vec (&x)[4]) {
  for (int i = 0; i < 64; ++i) {
    const int32_t integer = static_cast<int32_t>(x[i / 16].v[i % 16] + 12582912.0f - 12582912.0f);  // 1.5 * 2^23
    high[i] = static_cast<int8_t>((integer + 128) >> 8);
    low[i] = static_cast<int8_t>(integer - high[i] * 256);
  }
}

// 16 int32.
struct Ints {
  int32_t v[16];
};
static inline Ints broadcast_int(int32_t x) {
  Ints r;
  for (int i = 0; i < 16; ++i) r.v[i] = x;
  return r;
}
static inline Ints add(Ints a, Ints b) {
  for (int i = 0; i < 16; ++i) a.v[i] += b.v[i];
  return a;
}
// Of multiples of 16.
static inline Ints sixteenth(Ints x) {
  for (int i = 0; i < 16; ++i) x.v[i] >>= 4;
  return x;
}
static inline Vec to_floats(Ints x) {
  return each_lane([&](int i) { return static_cast<float>(x.v[i]); });
}

// Four unsigned codes for each of 16 outputs.
struct Codes {
  uint8_t v[64];
};
static inline Codes load_codes(const uint8_t* p) {
  Codes r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
static inline Codes flip_signs(Codes signed_codes) {
  for (int i = 0; i < 64; ++i) signed_codes.v[i] ^= 0x80;
  return signed_codes;
}
// The codes in low nibbles, and 16 times those in high ones, which spares a shift.
static inline void split_nibbles(Codes pairs, Codes& low, Codes& high_16) {
  for (int i = 0; i < 64; ++i) {
    low.v[i] = pairs.v[i] & 0x0F;
    high_16.v[i] = pairs.v[i] & 0xF0;
  }
}

// Four inputs, the same for all outputs.
struct Quad {
  int8_t v[4];
};
static inline Quad load_quad(const int8_t* x) {
  Quad r;
  std::memcpy(r.v, x, sizeof r.v);
  return r;
}
// Whether `dot` takes codes as signed bytes; else as unsigned ones.
constexpr bool kSignedDot = false;
// sum + the products of each output's four codes with the four inputs.
static inline Ints dot(Codes w, Quad x, Ints sum) {
  for (int i = 0; i < 64; ++i) sum.v[i / 4] += w.v[i] * x.v[i % 4];
  return sum;
}

// Of each output's four bytes: the lowest as a signed number, and all of them one place further down.
static inline Ints lowest_bytes(Codes x) {
  Ints r;
  for (int i = 0; i < 16; ++i) r.v[i] = static_cast<int8_t>(x.v[4 * i]);
  return r;
}
static inline Codes next_bytes(Codes x) {
  for (int i = 0; i < 64; ++i) x.v[i] = i % 4 < 3 ? x.v[i + 1] : 0;
  return x;
}
// Bits kFrom .. kFrom + kCount - 1 of each byte.
template <int kFrom, int kCount>
static inline Codes byte_bits(Codes x) {
  for (int i = 0; i < 64; ++i) x.v[i] = x.v[i] >> kFrom & ((1 << kCount) - 1);
  return x;
}
// Such bits of `high` above the four of `low`.
template <int kFrom, int kCount>
static inline Codes with_high_bits(Codes low, Codes high) {
  for (int i = 0; i < 64; ++i) low.v[i] |= ((high.v[i] >> kFrom) & ((1 << kCount) - 1)) << 4;
  return low;
}
// sum + the products of each output's four bytes, unsigned, with x[0], x[2], x[1], x[3].
static inline Ints dot_words(Codes w, const int16_t* x, Ints sum) {
  for (int i = 0; i < 64; ++i) sum.v[i / 4] += w.v[i] * x[i % 4 / 2 + i % 2 * 2];
  return sum;
}
// a * b + sum
static inline Ints multiply_add(Ints a, Ints b, Ints sum) {
  for (int i = 0; i < 16; ++i) sum.v[i] += a.v[i] * b.v[i];
  return sum;
}

constexpr int kRowsF32 = 2, kRowsBf16 = 1, kBlocksFloat = 2, kBlocksBf16 = 2, kRowsQuant = 1, kBlocksQuant = 1;
// Of kernels_quant_rows.h: rows by blocks of products in groups, and of whole rows.
constexpr int kGroupRows = 0, kGroupBlocks = 1, kWholeRows = 0, kWholeBlocks = 1, kQueries = 4;

}  // namespace ridgeline::RIDGELINE_ISA
