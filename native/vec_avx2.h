// Vec on AVX2 + FMA: 16 floats in two registers. See vec_generic.h for what each function means.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "transpose_plain.h"

namespace ridgeline::RIDGELINE_ISA {

struct Vec {
  __m256 lo, hi;
};

#define RIDGELINE_BOTH(f, a, b) \
  Vec { f((a).lo, (b).lo), f((a).hi, (b).hi) }

static inline Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void store(float* p, Vec x) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
static inline Vec broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
static inline Vec add(Vec a, Vec b) { return RIDGELINE_BOTH(_mm256_add_ps, a, b); }
static inline Vec sub(Vec a, Vec b) { return RIDGELINE_BOTH(_mm256_sub_ps, a, b); }
static inline Vec mul(Vec a, Vec b) { return RIDGELINE_BOTH(_mm256_mul_ps, a, b); }
static inline Vec div(Vec a, Vec b) { return RIDGELINE_BOTH(_mm256_div_ps, a, b); }
static inline Vec min(Vec a, Vec b) { return RIDGELINE_BOTH(_mm256_min_ps, a, b); }
static inline Vec max(Vec a, Vec b) { return RIDGELINE_BOTH(_mm256_max_ps, a, b); }
static inline Vec fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
#undef RIDGELINE_BOTH

static inline Vec zero_where_less(Vec x, Vec a, Vec b) {
  return {_mm256_and_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_NLT_UQ), x.lo),
          _mm256_and_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_NLT_UQ), x.hi)};
}

static inline Vec keep_lanes(Vec x, int begin, int end, float other) {
  const auto half = [&](__m256 v, int first) {
    const __m256i lane = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(first));
    const __m256i outside = _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(begin), lane),
                                            _mm256_cmpgt_epi32(lane, _mm256_set1_epi32(end - 1)));
    return _mm256_blendv_ps(v, _mm256_set1_ps(other), _mm256_castsi256_ps(outside));
  };
  return {half(x.lo, 0), half(x.hi, 8)};
}

static inline Vec pow2_from_magic(Vec t) {
  const auto half = [](__m256 v) {
    const __m256i bits = _mm256_slli_epi32(_mm256_castps_si256(v), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(bits, _mm256_set1_epi32(0x3F800000)));
  };
  return {half(t.lo), half(t.hi)};
}

static inline Vec fraction(Vec x) {
  const auto half = [](__m256 v) {
    const __m256 at_least = _mm256_max_ps(_mm256_set1_ps(-0x1p30f), v);
    const __m256 floor = _mm256_floor_ps(at_least), nearest = _mm256_sub_ps(at_least, floor);
    const __m256 above = _mm256_cmp_ps(_mm256_add_ps(nearest, floor), at_least, _CMP_GT_OQ);  // -1 where it is
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(nearest), _mm256_castps_si256(above)));
  };
  return {half(x.lo), half(x.hi)};
}

static inline Vec scale_pow2(Vec x, Vec n) {
  const auto half = [](__m256 v, __m256 by) {
    const __m256 at_least = _mm256_max_ps(_mm256_set1_ps(-127.0f), _mm256_floor_ps(by));
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(at_least), _mm256_set1_epi32(127));
    return _mm256_mul_ps(v, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
  };
  return {half(x.lo, n.lo), half(x.hi, n.hi)};
}

static inline void load_pairs(const uint16_t* p, Vec& even, Vec& odd) {
  const __m256i lo = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i hi = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16));
  const __m256i high_half = _mm256_set1_epi32(static_cast<int>(0xFFFF0000u));
  even = {_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
  odd = {_mm256_castsi256_ps(_mm256_and_si256(lo, high_half)), _mm256_castsi256_ps(_mm256_and_si256(hi, high_half))};
}

static inline Vec round_to_bf16(Vec x) {
  const auto half = [](__m256 v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(lsb, _mm256_set1_epi32(0x7FFF)));
    const __m256 kept =
        _mm256_castsi256_ps(_mm256_and_si256(rounded, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
    const __m256 quiet_nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000));
    return _mm256_blendv_ps(kept, quiet_nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  };
  return {half(x.lo), half(x.hi)};
}

static inline void store_rounded(uint16_t* p, Vec x) {
  const Vec rounded = round_to_bf16(x);
  const __m256i lo = _mm256_srli_epi32(_mm256_castps_si256(rounded.lo), 16);
  const __m256i hi = _mm256_srli_epi32(_mm256_castps_si256(rounded.hi), 16);
  const __m256i mixed = _mm256_packus_epi32(lo, hi);  // quarters lo0 hi0 lo1 hi1
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(mixed, 0b11011000));
}
static inline void store_rounded(uint16_t* p, Vec a, Vec b) {
  store_rounded(p, a);
  store_rounded(p + 16, b);
}

static inline float reduce_add(Vec x) {
  const __m256 a = _mm256_add_ps(x.lo, x.hi);
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

static inline float reduce_max(Vec x) {
  const __m256 a = _mm256_max_ps(x.lo, x.hi);
  __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

static inline Vec load_half(const uint16_t* p) {
  const auto* halves = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}

template <int kHalf>
static inline Vec swap_lanes(Vec x) {
  if constexpr (kHalf == 1) return {_mm256_permute_ps(x.lo, 0b10110001), _mm256_permute_ps(x.hi, 0b10110001)};
  if constexpr (kHalf == 2) return {_mm256_permute_ps(x.lo, 0b01001110), _mm256_permute_ps(x.hi, 0b01001110)};
  if constexpr (kHalf == 4)
    return {_mm256_permute2f128_ps(x.lo, x.lo, 1), _mm256_permute2f128_ps(x.hi, x.hi, 1)};
  if constexpr (kHalf == 8) return {x.hi, x.lo};
}

// Integers of -128..127.
static inline void store_bytes(int8_t* p, __m256i lo, __m256i hi) {
  // quarters lo0 hi0 lo1 hi1 -> in order
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(lo, hi), 0b11011000);
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

static inline void store_codes(int8_t* p, Vec integers) {
  store_bytes(p, _mm256_cvtps_epi32(integers.lo), _mm256_cvtps_epi32(integers.hi));
}
static inline void store_digits(int8_t* high, int8_t* low, const Vec (&x)[4]) {
  const auto upper = [](__m256i v) { return _mm256_srai_epi32(_mm256_add_epi32(v, _mm256_set1_epi32(128)), 8); };
  const auto lower = [&](__m256i v) { return _mm256_sub_epi32(v, _mm256_slli_epi32(upper(v), 8)); };
  for (int i = 0; i < 4; ++i) {
    const __m256i lo = _mm256_cvtps_epi32(x[i].lo), hi = _mm256_cvtps_epi32(x[i].hi);
    store_bytes(high + 16 * i, upper(lo), upper(hi));
    store_bytes(low + 16 * i, lower(lo), lower(hi));
  }
}

struct Ints {
  __m256i lo, hi;
};
static inline Ints broadcast_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
static inline Ints add(Ints a, Ints b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
static inline Ints sixteenth(Ints x) { return {_mm256_srai_epi32(x.lo, 4), _mm256_srai_epi32(x.hi, 4)}; }
static inline Vec to_floats(Ints x) { return {_mm256_cvtepi32_ps(x.lo), _mm256_cvtepi32_ps(x.hi)}; }

struct Codes {
  __m256i lo, hi;
};
static inline Codes load_codes(const uint8_t* p) {
  const auto* halves = reinterpret_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
}
static inline Codes flip_signs(Codes c) {
  const __m256i signs = _mm256_set1_epi8(-128);
  return {_mm256_xor_si256(c.lo, signs), _mm256_xor_si256(c.hi, signs)};
}
static inline void split_nibbles(Codes pairs, Codes& low, Codes& high_16) {
  const __m256i nibble = _mm256_set1_epi8(15);
  low = {_mm256_and_si256(pairs.lo, nibble), _mm256_and_si256(pairs.hi, nibble)};
  high_16 = {_mm256_andnot_si256(nibble, pairs.lo), _mm256_andnot_si256(nibble, pairs.hi)};
}

constexpr bool kSignedDot = false;
static inline __m256i four_bytes(const void* x) {
  int32_t bytes;
  std::memcpy(&bytes, x, 4);
  return _mm256_set1_epi32(bytes);
}
#ifdef __AVXVNNI__
struct Quad {
  __m256i v;
};
static inline Quad load_quad(const int8_t* x) { return {four_bytes(x)}; }
static inline Ints dot(Codes w, Quad x, Ints sum) {
  return {_mm256_dpbusd_avx_epi32(sum.lo, w.lo, x.v), _mm256_dpbusd_avx_epi32(sum.hi, w.hi, x.v)};
}
#else
// A sum that has to be there before the next term is added: gcc would add up the terms of many steps in an order of its
// own, and keep them all in memory until then.
static inline __m256i in_turn(__m256i sum) {
  asm("" : "+x"(sum));
  return sum;
}

// vpmaddubsw would saturate: the even and the odd values are multiplied as 16-bit numbers instead
struct Quad {
  __m256i even, odd;
};
static inline Quad load_quad(const int8_t* x) {
  const __m256i bytes = four_bytes(x);
  return {_mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8), _mm256_srai_epi16(bytes, 8)};
}
static inline Ints dot(Codes w, Quad x, Ints sum) {
  const auto half = [&](__m256i codes, __m256i before) {
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(255)), x.even);
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(codes, 8), x.odd);
    return in_turn(_mm256_add_epi32(before, _mm256_add_epi32(even, odd)));
  };
  return {half(w.lo, sum.lo), half(w.hi, sum.hi)};
}

#define RIDGELINE_WIDENS  // see kernels_quant_rows.h
static inline void widen_quads(const int8_t* x, int16_t* to) {  // of each four 0 2 1 3
  const __m128i order = _mm_set_epi8(15, 13, 14, 12, 11, 9, 10, 8, 7, 5, 6, 4, 3, 1, 2, 0);
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_cvtepi8_epi16(_mm_shuffle_epi8(bytes, order)));
}
static inline Quad load_wide_quad(const int16_t* x) { return {four_bytes(x), four_bytes(x + 2)}; }
struct Bytes {
  __m256i v;
};
struct SmallSums {
  __m256i lo, hi;
};
static inline Bytes load_bytes(const int8_t* x) { return {four_bytes(x)}; }
static inline SmallSums small_sums(Ints) { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
static inline SmallSums dot_small(Codes w, Bytes x, SmallSums sum) {
  return {in_turn(_mm256_add_epi16(sum.lo, _mm256_maddubs_epi16(w.lo, x.v))),
          in_turn(_mm256_add_epi16(sum.hi, _mm256_maddubs_epi16(w.hi, x.v)))};
}
static inline Ints widened(SmallSums small, Ints sum) {
  const __m256i ones = _mm256_set1_epi16(1);
  return {_mm256_add_epi32(sum.lo, _mm256_madd_epi16(small.lo, ones)),
          _mm256_add_epi32(sum.hi, _mm256_madd_epi16(small.hi, ones))};
}
#endif

static inline Ints lowest_bytes(Codes x) {
  const auto half = [](__m256i v) { return _mm256_srai_epi32(_mm256_slli_epi32(v, 24), 24); };
  return {half(x.lo), half(x.hi)};
}
static inline Codes next_bytes(Codes x) { return {_mm256_srli_epi32(x.lo, 8), _mm256_srli_epi32(x.hi, 8)}; }
template <int kFrom, int kCount>
static inline Codes byte_bits(Codes x) {
  const auto half = [](__m256i v) {
    return _mm256_and_si256(_mm256_srli_epi16(v, kFrom), _mm256_set1_epi8((1 << kCount) - 1));
  };
  return {half(x.lo), half(x.hi)};
}
template <int kFrom, int kCount>
static inline Codes with_high_bits(Codes low, Codes high) {
  const auto half = [](__m256i a, __m256i b) {
    const __m256i in_place = kFrom < 4 ? _mm256_slli_epi16(b, kFrom < 4 ? 4 - kFrom : 0)
                                       : _mm256_srli_epi16(b, kFrom < 4 ? 0 : kFrom - 4);
    return _mm256_or_si256(a, _mm256_and_si256(in_place, _mm256_set1_epi8(((1 << kCount) - 1) << 4)));
  };
  return {half(low.lo, high.lo), half(low.hi, high.hi)};
}
static inline Ints dot_words(Codes w, const int16_t* x, Ints sum) {
  int32_t even_pair, odd_pair;
  std::memcpy(&even_pair, x, 4);
  std::memcpy(&odd_pair, x + 2, 4);
  const auto half = [&](__m256i bytes, __m256i before) {
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(bytes, _mm256_set1_epi16(255)), _mm256_set1_epi32(even_pair));
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(bytes, 8), _mm256_set1_epi32(odd_pair));
    return _mm256_add_epi32(before, _mm256_add_epi32(even, odd));
  };
  return {half(w.lo, sum.lo), half(w.hi, sum.hi)};
}
static inline Ints multiply_add(Ints a, Ints b, Ints sum) {
  return {_mm256_add_epi32(_mm256_mullo_epi32(a.lo, b.lo), sum.lo),
          _mm256_add_epi32(_mm256_mullo_epi32(a.hi, b.hi), sum.hi)};
}

// Sixteen registers hold half as many pairs of registers.
constexpr int kRowsF32 = 2, kBlocksFloat = 2, kRowsBf16 = 3, kBlocksBf16 = 1, kRowsQuant = 2, kBlocksQuant = 1;
#ifdef RIDGELINE_WIDENS
constexpr int kGroupRows = 4, kWholeRows = 4;
#else
constexpr int kGroupRows = 0, kWholeRows = 6;  // beside the totals of groups, registers have no room for more sums
#endif
constexpr int kGroupBlocks = 1, kWholeBlocks = 1, kQueries = 3;

}  // namespace ridgeline::RIDGELINE_ISA
