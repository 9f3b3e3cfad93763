// Vec on NEON: 16 floats in four registers. See vec_generic.h for what each function means.
#pragma once
#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace ridgeline::RIDGELINE_ISA {

struct Vec {
  float32x4_t v[4];
};

template <class F>
static inline Vec each_quarter(F f) {
  return {f(0), f(1), f(2), f(3)};
}

static inline Vec load(const float* p) {
  return each_quarter([&](int i) { return vld1q_f32(p + 4 * i); });
}
static inline void store(float* p, Vec x) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, x.v[i]);
}
static inline Vec broadcast(float x) {
  return each_quarter([&](int) { return vdupq_n_f32(x); });
}
static inline Vec zero() { return broadcast(0.0f); }
static inline Vec add(Vec a, Vec b) {
  return each_quarter([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
}
static inline Vec sub(Vec a, Vec b) {
  return each_quarter([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
}
static inline Vec mul(Vec a, Vec b) {
  return each_quarter([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
}
static inline Vec div(Vec a, Vec b) {
  return each_quarter([&](int i) { return vdivq_f32(a.v[i], b.v[i]); });
}
static inline Vec fma(Vec a, Vec b, Vec c) {
  return each_quarter([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
}

// NEON's own minimum and maximum give a NaN where either is one.
static inline float32x4_t min(float32x4_t a, float32x4_t b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
static inline float32x4_t max(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline Vec min(Vec a, Vec b) {
  return each_quarter([&](int i) { return min(a.v[i], b.v[i]); });
}
static inline Vec max(Vec a, Vec b) {
  return each_quarter([&](int i) { return max(a.v[i], b.v[i]); });
}

static inline uint32x4_t bits_of(float32x4_t x) { return vreinterpretq_u32_f32(x); }
static inline float32x4_t float_of(uint32x4_t b) { return vreinterpretq_f32_u32(b); }

static inline Vec zero_where_less(Vec x, Vec a, Vec b) {
  return each_quarter([&](int i) { return float_of(vbicq_u32(bits_of(x.v[i]), vcltq_f32(a.v[i], b.v[i]))); });
}

static inline Vec keep_lanes(Vec x, int begin, int end, float other) {
  const int32_t lanes[4] = {0, 1, 2, 3};
  return each_quarter([&](int i) {
    const int32x4_t lane = vaddq_s32(vld1q_s32(lanes), vdupq_n_s32(4 * i));
    const uint32x4_t kept = vandq_u32(vcgeq_s32(lane, vdupq_n_s32(begin)), vcltq_s32(lane, vdupq_n_s32(end)));
    return vbslq_f32(kept, x.v[i], vdupq_n_f32(other));
  });
}

static inline Vec pow2_from_magic(Vec t) {
  return each_quarter([&](int i) {
    return float_of(vaddq_u32(vshlq_n_u32(bits_of(t.v[i]), 23), vdupq_n_u32(0x3F800000u)));
  });
}

static inline Vec fraction(Vec x) {
  return each_quarter([&](int i) {
    const float32x4_t at_least = max(vdupq_n_f32(-0x1p30f), x.v[i]);
    const float32x4_t floor = vrndmq_f32(at_least), nearest = vsubq_f32(at_least, floor);
    const uint32x4_t above = vcgtq_f32(vaddq_f32(nearest, floor), at_least);  // -1 where it is
    return float_of(vaddq_u32(bits_of(nearest), above));
  });
}

static inline Vec scale_pow2(Vec x, Vec n) {
  return each_quarter([&](int i) {
    const float32x4_t at_least = max(vrndmq_f32(n.v[i]), vdupq_n_f32(-127.0f));
    const int32x4_t exponent = vaddq_s32(vcvtq_s32_f32(at_least), vdupq_n_s32(127));
    return vmulq_f32(x.v[i], vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)));
  });
}

static inline void load_pairs(const uint16_t* p, Vec& even, Vec& odd) {
  for (int i = 0; i < 4; ++i) {
    const uint32x4_t pairs = vreinterpretq_u32_u16(vld1q_u16(p + 8 * i));
    even.v[i] = float_of(vshlq_n_u32(pairs, 16));
    odd.v[i] = float_of(vandq_u32(pairs, vdupq_n_u32(0xFFFF0000u)));
  }
}

static inline Vec round_to_bf16(Vec x) {
  return each_quarter([&](int i) {
    const uint32x4_t bits = bits_of(x.v[i]), lsb = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(lsb, vdupq_n_u32(0x7FFF)));
    const uint32x4_t kept = vandq_u32(rounded, vdupq_n_u32(0xFFFF0000u));
    return float_of(vbslq_u32(vceqq_f32(x.v[i], x.v[i]), kept, vdupq_n_u32(0x7FC00000u)));
  });
}

static inline void store_rounded(uint16_t* p, Vec x) {
  const Vec rounded = round_to_bf16(x);
  for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, vshrn_n_u32(bits_of(rounded.v[i]), 16));
}
static inline void store_rounded(uint16_t* p, Vec a, Vec b) {
  store_rounded(p, a);
  store_rounded(p + 16, b);
}

template <class F>
static inline float reduce(Vec x, F f) {
  const float32x4_t four = f(f(x.v[0], x.v[2]), f(x.v[1], x.v[3]));
  const float32x4_t two = f(four, vextq_f32(four, four, 2));
  return vgetq_lane_f32(f(two, vdupq_laneq_f32(two, 1)), 0);
}
static inline float reduce_add(Vec x) {
  return reduce(x, [](float32x4_t a, float32x4_t b) { return vaddq_f32(a, b); });
}
static inline float reduce_max(Vec x) {
  return reduce(x, [](float32x4_t a, float32x4_t b) { return max(a, b); });
}

static inline Vec load_half(const uint16_t* p) {
  return each_quarter([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
}

template <int kHalf>
static inline Vec swap_lanes(Vec x) {
  if constexpr (kHalf >= 4) return each_quarter([&](int i) { return x.v[i ^ (kHalf / 4)]; });
  return each_quarter([&](int i) { return kHalf == 1 ? vrev64q_f32(x.v[i]) : vextq_f32(x.v[i], x.v[i], 2); });
}

// 16 words of each of 16 rows, `stride` bytes apart, as 16 rows of one word of each: squares of four.
static inline void transpose_words(const void* from, size_t stride, void* to) {
  for (int row = 0; row < 16; row += 4)
    for (int i = 0; i < 16; i += 4) {
      const auto at = [&](int r) {
        return vreinterpretq_u32_u8(vld1q_u8(static_cast<const uint8_t*>(from) + (row + r) * stride + 4 * i));
      };
      const uint32x4x2_t upper = vzipq_u32(at(0), at(2)), lower = vzipq_u32(at(1), at(3));
      const uint32x4x2_t first = vzipq_u32(upper.val[0], lower.val[0]), last = vzipq_u32(upper.val[1], lower.val[1]);
      const uint32x4_t columns[4] = {first.val[0], first.val[1], last.val[0], last.val[1]};
      for (int c = 0; c < 4; ++c)
        vst1q_u8(static_cast<uint8_t*>(to) + 4 * (16 * (i + c) + row), vreinterpretq_u8_u32(columns[c]));
    }
}

// A value of each row in turn: 16 values of each of 1 (fp32), 2 (bf16) or 4 (int8) rows, `stride` values apart.
static inline void interleave(const float* row, int, float* to) { store(to, load(row)); }
static inline void interleave(const uint16_t* rows, int stride, uint16_t* to) {
  for (int i = 0; i < 16; i += 8) vst2q_u16(to + 2 * i, {{vld1q_u16(rows + i), vld1q_u16(rows + stride + i)}});
}
static inline void interleave(const int8_t* rows, int stride, int8_t* to) {
  const auto row = [&](int i) { return vld1q_s8(rows + i * stride); };
  vst4q_s8(to, {{row(0), row(1), row(2), row(3)}});
}

static inline int16x8_t to_words(float32x4_t low, float32x4_t high) {
  return vcombine_s16(vmovn_s32(vcvtnq_s32_f32(low)), vmovn_s32(vcvtnq_s32_f32(high)));
}
static inline void store_codes(int8_t* p, Vec integers) {
  for (int i = 0; i < 2; ++i) vst1_s8(p + 8 * i, vmovn_s16(to_words(integers.v[2 * i], integers.v[2 * i + 1])));
}

// The low byte of the integer is `low` already; what it lacks when it is negative rounds `high` up.
static inline void store_digits(int8_t* high, int8_t* low, const Vec (&x)[4]) {
  for (int i = 0; i < 8; ++i) {
    const int16x8_t integers = to_words(x[i / 2].v[i % 2 * 2], x[i / 2].v[i % 2 * 2 + 1]);
    vst1_s8(high + 8 * i, vrshrn_n_s16(integers, 8));
    vst1_s8(low + 8 * i, vmovn_s16(integers));
  }
}

struct Ints {
  int32x4_t v[4];
};
template <class F>
static inline Ints each_four(F f) {
  return {f(0), f(1), f(2), f(3)};
}
static inline Ints broadcast_int(int32_t x) {
  return each_four([&](int) { return vdupq_n_s32(x); });
}
static inline Ints add(Ints a, Ints b) {
  return each_four([&](int i) { return vaddq_s32(a.v[i], b.v[i]); });
}
static inline Vec to_floats(Ints x) {
  return each_quarter([&](int i) { return vcvtq_f32_s32(x.v[i]); });
}

struct Codes {
  uint8x16_t v[4];
};
template <class F>
static inline Codes each_sixteen(F f) {
  return {f(0), f(1), f(2), f(3)};
}
static inline Codes load_codes(const uint8_t* p) {
  return each_sixteen([&](int i) { return vld1q_u8(p + 16 * i); });
}
static inline Codes flip_signs(Codes c) {
  return each_sixteen([&](int i) { return veorq_u8(c.v[i], vdupq_n_u8(0x80)); });
}
// Bytes can be shifted here: the high nibbles need not stand 16 times too large, and their sums no division.
static inline void split_nibbles(Codes pairs, Codes& low, Codes& high) {
  high = each_sixteen([&](int i) { return vshrq_n_u8(pairs.v[i], 4); });
  low = each_sixteen([&](int i) { return vandq_u8(pairs.v[i], vdupq_n_u8(15)); });
}
static inline Ints sixteenth(Ints x) { return x; }

struct Quad {
  int8x16_t v;
};
static inline Quad load_quad(const int8_t* x) {
  int32_t four_bytes;
  std::memcpy(&four_bytes, x, 4);
  return {vreinterpretq_s8_s32(vdupq_n_s32(four_bytes))};
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
constexpr bool kSignedDot = false;
static inline int32x4_t dot(uint8x16_t w, int8x16_t x, int32x4_t sum) { return vusdotq_s32(sum, w, x); }
#elif defined(__ARM_FEATURE_DOTPROD)
constexpr bool kSignedDot = true;
static inline int32x4_t dot(uint8x16_t w, int8x16_t x, int32x4_t sum) {
  return vdotq_s32(sum, vreinterpretq_s8_u8(w), x);
}
#else
constexpr bool kSignedDot = true;
// Two products fit 16 bits: of a code and the input that it meets, at most one is ever -128.
static inline int32x4_t dot(uint8x16_t w, int8x16_t x, int32x4_t sum) {
  const int8x16_t codes = vreinterpretq_s8_u8(w);
  const int16x8_t low = vmull_s8(vget_low_s8(codes), vget_low_s8(x)), high = vmull_high_s8(codes, x);
  return vpadalq_s16(sum, vpaddq_s16(low, high));
}
#endif
static inline Ints dot(Codes w, Quad x, Ints sum) {
  return each_four([&](int i) { return dot(w.v[i], x.v, sum.v[i]); });
}

static inline Ints lowest_bytes(Codes x) {
  return each_four([&](int i) { return vshrq_n_s32(vshlq_n_s32(vreinterpretq_s32_u8(x.v[i]), 24), 24); });
}
static inline Codes next_bytes(Codes x) {
  return each_sixteen([&](int i) { return vreinterpretq_u8_u32(vshrq_n_u32(vreinterpretq_u32_u8(x.v[i]), 8)); });
}
template <int kFrom>
static inline uint8x16_t shift_down(uint8x16_t x) {
  if constexpr (kFrom == 0) return x;
  else return vshrq_n_u8(x, kFrom);
}
template <int kFrom, int kCount>
static inline Codes byte_bits(Codes x) {
  return each_sixteen([&](int i) {
    const uint8x16_t bits = shift_down<kFrom>(x.v[i]);
    return kFrom + kCount == 8 ? bits : vandq_u8(bits, vdupq_n_u8((1 << kCount) - 1));
  });
}
template <int kFrom, int kCount>
static inline Codes with_high_bits(Codes low, Codes high) {
  const Codes bits = byte_bits<kFrom, kCount>(high);
  return each_sixteen([&](int i) { return vsliq_n_u8(low.v[i], bits.v[i], 4); });
}
static inline Ints dot_words(Codes w, const int16_t* x, Ints sum) {
  int32_t even_pair, odd_pair;
  std::memcpy(&even_pair, x, 4);
  std::memcpy(&odd_pair, x + 2, 4);
  const int16x8_t x_even = vreinterpretq_s16_s32(vdupq_n_s32(even_pair));
  const int16x8_t x_odd = vreinterpretq_s16_s32(vdupq_n_s32(odd_pair));
  return each_four([&](int i) {
    const uint16x8_t words = vreinterpretq_u16_u8(w.v[i]);
    const int16x8_t even = vreinterpretq_s16_u16(vandq_u16(words, vdupq_n_u16(255)));
    const int16x8_t odd = vreinterpretq_s16_u16(vshrq_n_u16(words, 8));
    const int32x4_t low = vmull_s16(vget_low_s16(even), vget_low_s16(x_even)), high = vmull_high_s16(even, x_even);
    return vaddq_s32(sum.v[i], vpaddq_s32(vmlal_s16(low, vget_low_s16(odd), vget_low_s16(x_odd)),
                                          vmlal_high_s16(high, odd, x_odd)));
  });
}
static inline Ints multiply_add(Ints a, Ints b, Ints sum) {
  return each_four([&](int i) { return vmlaq_s32(sum.v[i], a.v[i], b.v[i]); });
}

// Register blocks: rows x blocks accumulators of four registers each must fit in 32 beside the operands.
constexpr int kRowsF32 = 4, kRowsBf16 = 2, kBlocksFloat = 1, kBlocksBf16 = 1, kRowsQuant = 2, kBlocksQuant = 1;
constexpr int kGroupRows = 0, kGroupBlocks = 1, kWholeRows = 0, kWholeBlocks = 1, kQueries = 2;

}  // namespace ridgeline::RIDGELINE_ISA
