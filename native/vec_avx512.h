// Vec on AVX-512: 16 floats in one register. See vec_generic.h for what each function means.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace ridgeline::RIDGELINE_ISA {

struct Vec {
  __m512 v;
};

static inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline void store(float* p, Vec x) { _mm512_storeu_ps(p, x.v); }
static inline Vec broadcast(float x) { return {_mm512_set1_ps(x)}; }
static inline Vec zero() { return {_mm512_setzero_ps()}; }
static inline Vec add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline Vec sub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline Vec mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline Vec div(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
static inline Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
static inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }

static inline Vec zero_where_less(Vec x, Vec a, Vec b) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_NLT_UQ), x.v)};
}

static inline Vec keep_lanes(Vec x, int begin, int end, float other) {
  const __mmask16 keep = static_cast<__mmask16>(((1u << end) - 1u) & ~((1u << begin) - 1u));
  return {_mm512_mask_mov_ps(_mm512_set1_ps(other), keep, x.v)};
}

static inline Vec pow2_from_magic(Vec t) {
  const __m512i bits = _mm512_slli_epi32(_mm512_castps_si512(t.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_set1_epi32(0x3F800000)))};
}

static inline Vec fraction(Vec x) { return {_mm512_reduce_ps(x.v, _MM_FROUND_TO_NEG_INF)}; }
static inline Vec scale_pow2(Vec x, Vec n) { return {_mm512_scalef_ps(x.v, n.v)}; }

static inline void load_pairs(const uint16_t* p, Vec& even, Vec& odd) {
  const __m512i bits = _mm512_loadu_si512(p);
  even = {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16))};
  odd = {_mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))))};
}

static inline Vec round_to_bf16(Vec x) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(lsb, _mm512_set1_epi32(0x7FFF)));
  const __m512i kept = _mm512_and_si512(rounded, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  return {_mm512_castsi512_ps(_mm512_mask_mov_epi32(kept, nan, _mm512_set1_epi32(0x7FC00000)))};
}

static inline void store_rounded(uint16_t* p, Vec x) {
#ifdef __AVX512BF16__
  const auto rounded = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x.v));
#else
  const __m512i upper = _mm512_srli_epi32(_mm512_castps_si512(round_to_bf16(x).v), 16);
  const __m256i rounded = _mm512_cvtepi32_epi16(upper);
#endif
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), rounded);
}
static inline void store_rounded(uint16_t* p, Vec a, Vec b) {
#ifdef __AVX512BF16__
  // in one store, so that loading them as a tile's row need not wait for two
  _mm512_storeu_si512(p, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b.v, a.v)));
#else
  store_rounded(p, a);
  store_rounded(p + 16, b);
#endif
}

static inline float reduce_add(Vec x) {
  __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

static inline float reduce_max(Vec x) {
  __m256 a = _mm256_max_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

static inline Vec load_half(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}

template <int kHalf>
static inline Vec swap_lanes(Vec x) {
  if constexpr (kHalf == 1) return {_mm512_permute_ps(x.v, 0b10110001)};
  if constexpr (kHalf == 2) return {_mm512_permute_ps(x.v, 0b01001110)};
  if constexpr (kHalf == 4) return {_mm512_shuffle_f32x4(x.v, x.v, 0b10110001)};
  if constexpr (kHalf == 8) return {_mm512_shuffle_f32x4(x.v, x.v, 0b01001110)};
}

static inline void transpose_words(const void* from, size_t stride, void* to) {
  __m512i rows[16], pairs[16], fours[16];
  for (int i = 0; i < 16; ++i) rows[i] = _mm512_loadu_si512(static_cast<const char*>(from) + i * stride);
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; ++j) {
      fours[i + 2 * j] = _mm512_unpacklo_epi64(pairs[i + j], pairs[i + 2 + j]);
      fours[i + 2 * j + 1] = _mm512_unpackhi_epi64(pairs[i + j], pairs[i + 2 + j]);
    }
  // fours[4 a + j]: words j, 4 + j, 8 + j, 12 + j of rows 4 a .. 4 a + 3
  for (int j = 0; j < 4; ++j) {
    const __m512i a = _mm512_shuffle_i32x4(fours[j], fours[4 + j], 0x88);
    const __m512i b = _mm512_shuffle_i32x4(fours[j], fours[4 + j], 0xDD);
    const __m512i c = _mm512_shuffle_i32x4(fours[8 + j], fours[12 + j], 0x88);
    const __m512i d = _mm512_shuffle_i32x4(fours[8 + j], fours[12 + j], 0xDD);
    char* at = static_cast<char*>(to) + 64 * j;
    _mm512_storeu_si512(at, _mm512_shuffle_i32x4(a, c, 0x88));
    _mm512_storeu_si512(at + 64 * 8, _mm512_shuffle_i32x4(a, c, 0xDD));
    _mm512_storeu_si512(at + 64 * 4, _mm512_shuffle_i32x4(b, d, 0x88));
    _mm512_storeu_si512(at + 64 * 12, _mm512_shuffle_i32x4(b, d, 0xDD));
  }
}

static inline void interleave(const float* row, int, float* to) { store(to, load(row)); }
static inline void interleave(const uint16_t* rows, int stride, uint16_t* to) {
  const auto row = [&](int i) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows + i * stride)));
  };
  _mm512_storeu_si512(to, _mm512_or_si512(row(0), _mm512_slli_epi32(row(1), 16)));
}
static inline void interleave(const int8_t* rows, int stride, int8_t* to) {
  const auto row = [&](int i) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + i * stride)));
  };
  const __m512i low = _mm512_or_si512(row(0), _mm512_slli_epi32(row(1), 8));
  const __m512i high = _mm512_or_si512(_mm512_slli_epi32(row(2), 16), _mm512_slli_epi32(row(3), 24));
  _mm512_storeu_si512(to, _mm512_or_si512(low, high));
}

static inline void store_codes(int8_t* p, Vec integers) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(integers.v)));
}

static inline void store_digits(int8_t* high, int8_t* low, const Vec (&x)[4]) {
  // packed by quarters, of x[0] x[1] x[2] x[3] in turn
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const auto pair = [](Vec a, Vec b) {
    const __m512i both = _mm512_packs_epi32(_mm512_cvtps_epi32(a.v), _mm512_cvtps_epi32(b.v));
    return _mm512_add_epi16(both, _mm512_set1_epi16(128));
  };
  const auto low_byte = [](__m512i words) { return _mm512_and_si512(words, _mm512_set1_epi16(255)); };
  const __m512i a = pair(x[0], x[1]), b = pair(x[2], x[3]);
  const __m512i upper = _mm512_packs_epi16(_mm512_srai_epi16(a, 8), _mm512_srai_epi16(b, 8));
  const __m512i lower = _mm512_xor_si512(_mm512_packus_epi16(low_byte(a), low_byte(b)), _mm512_set1_epi8(-128));
  _mm512_storeu_si512(high, _mm512_permutexvar_epi32(order, upper));
  _mm512_storeu_si512(low, _mm512_permutexvar_epi32(order, lower));
}

struct Ints {
  __m512i v;
};
static inline Ints broadcast_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
static inline Ints add(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
static inline Ints sixteenth(Ints x) { return {_mm512_srai_epi32(x.v, 4)}; }
static inline Vec to_floats(Ints x) { return {_mm512_cvtepi32_ps(x.v)}; }

struct Codes {
  __m512i v;
};
static inline Codes load_codes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
static inline Codes flip_signs(Codes c) { return {_mm512_xor_si512(c.v, _mm512_set1_epi8(-128))}; }
static inline void split_nibbles(Codes pairs, Codes& low, Codes& high_16) {
  const __m512i nibble = _mm512_set1_epi8(15);
  low = {_mm512_and_si512(pairs.v, nibble)};
  high_16 = {_mm512_andnot_si512(nibble, pairs.v)};
}

static inline __m512i four_bytes(const int8_t* x) {
  int32_t bytes;
  std::memcpy(&bytes, x, 4);
  return _mm512_set1_epi32(bytes);
}
constexpr bool kSignedDot = false;
#ifdef __AVX512VNNI__
struct Quad {
  __m512i v;
};
static inline Quad load_quad(const int8_t* x) { return {four_bytes(x)}; }
static inline Ints dot(Codes w, Quad x, Ints sum) { return {_mm512_dpbusd_epi32(sum.v, w.v, x.v)}; }
#else
// A sum that has to be there before the next term is added: gcc would add up the terms of many steps in an order of its
// own, and keep them all in memory until then.
static inline __m512i in_turn(__m512i sum) {
  asm("" : "+v"(sum));
  return sum;
}

// vpmaddubsw would saturate: the even and the odd values are multiplied as 16-bit numbers instead
struct Quad {
  __m512i even, odd;
};
static inline Quad load_quad(const int8_t* x) {
  const __m512i bytes = four_bytes(x);
  return {_mm512_srai_epi16(_mm512_slli_epi16(bytes, 8), 8), _mm512_srai_epi16(bytes, 8)};
}
static inline Ints dot(Codes w, Quad x, Ints sum) {
  const __m512i even = _mm512_madd_epi16(_mm512_and_si512(w.v, _mm512_set1_epi16(255)), x.even);
  const __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(w.v, 8), x.odd);
  return {in_turn(_mm512_add_epi32(sum.v, _mm512_add_epi32(even, odd)))};
}

#define RIDGELINE_WIDENS  // see kernels_quant_rows.h
static inline void widen_quads(const int8_t* x, int16_t* to) {  // of each four 0 2 1 3
  const __m128i order = _mm_set_epi8(15, 13, 14, 12, 11, 9, 10, 8, 7, 5, 6, 4, 3, 1, 2, 0);
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm256_cvtepi8_epi16(_mm_shuffle_epi8(bytes, order)));
}
static inline Quad load_wide_quad(const int16_t* x) {
  return {four_bytes(reinterpret_cast<const int8_t*>(x)), four_bytes(reinterpret_cast<const int8_t*>(x + 2))};
}
struct Bytes {
  __m512i v;
};
struct SmallSums {
  __m512i v;
};
static inline Bytes load_bytes(const int8_t* x) { return {four_bytes(x)}; }
static inline SmallSums small_sums(Ints) { return {_mm512_setzero_si512()}; }
static inline SmallSums dot_small(Codes w, Bytes x, SmallSums sum) {
  return {in_turn(_mm512_add_epi16(sum.v, _mm512_maddubs_epi16(w.v, x.v)))};
}
static inline Ints widened(SmallSums small, Ints sum) {
  return {_mm512_add_epi32(sum.v, _mm512_madd_epi16(small.v, _mm512_set1_epi16(1)))};
}
#endif

static inline Ints lowest_bytes(Codes x) { return {_mm512_srai_epi32(_mm512_slli_epi32(x.v, 24), 24)}; }
static inline Codes next_bytes(Codes x) { return {_mm512_srli_epi32(x.v, 8)}; }
template <int kFrom, int kCount>
static inline Codes byte_bits(Codes x) {
  return {_mm512_and_si512(_mm512_srli_epi16(x.v, kFrom), _mm512_set1_epi8((1 << kCount) - 1))};
}
template <int kFrom, int kCount>
static inline Codes with_high_bits(Codes low, Codes high) {
  const __m512i in_place = kFrom < 4 ? _mm512_slli_epi16(high.v, kFrom < 4 ? 4 - kFrom : 0)
                                     : _mm512_srli_epi16(high.v, kFrom < 4 ? 0 : kFrom - 4);
  const __m512i mask = _mm512_set1_epi8(static_cast<char>(((1 << kCount) - 1) << 4));
  return {_mm512_ternarylogic_epi32(low.v, in_place, mask, 0xF8)};  // low | (in_place & mask)
}
static inline Ints dot_words(Codes w, const int16_t* x, Ints sum) {
  int32_t even_pair, odd_pair;
  std::memcpy(&even_pair, x, 4);
  std::memcpy(&odd_pair, x + 2, 4);
  const __m512i even = _mm512_and_si512(w.v, _mm512_set1_epi16(255)), odd = _mm512_srli_epi16(w.v, 8);
#ifdef __AVX512VNNI__
  const __m512i first = _mm512_dpwssd_epi32(sum.v, even, _mm512_set1_epi32(even_pair));
  return {_mm512_dpwssd_epi32(first, odd, _mm512_set1_epi32(odd_pair))};
#else
  const __m512i first = _mm512_madd_epi16(even, _mm512_set1_epi32(even_pair));
  const __m512i second = _mm512_madd_epi16(odd, _mm512_set1_epi32(odd_pair));
  return {_mm512_add_epi32(sum.v, _mm512_add_epi32(first, second))};
#endif
}
static inline Ints multiply_add(Ints a, Ints b, Ints sum) {
  return {_mm512_add_epi32(_mm512_mullo_epi32(a.v, b.v), sum.v)};
}

// Register blocks: rows x blocks accumulators must fit in 32 registers beside the operands.
constexpr int kRowsF32 = 6, kBlocksFloat = 4, kRowsBf16 = 6, kBlocksBf16 = 2, kRowsQuant = 4, kBlocksQuant = 1;
#ifdef RIDGELINE_WIDENS
constexpr int kWholeBlocks = 2;
#else
constexpr int kWholeBlocks = 4;
#endif
constexpr int kGroupRows = 6, kGroupBlocks = 2, kWholeRows = 6, kQueries = 8;

}  // namespace ridgeline::RIDGELINE_ISA
