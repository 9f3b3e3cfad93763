// Products with weights of two levels of scales by AMX tiles, for many rows.
//
// A code times its subscale is an integer of up to 13 bits. It is split in two planes of bytes, upper * 2^s + lower, and
// tiles multiply each plane over the whole super-block: no subgroup is scaled on its own, and the sums are the very
// integers of kernels_two_level.h. A super-block's planes are made once for all row tiles.
#pragma once
#include <immintrin.h>

#include "kernels_two_level.h"
#include "matmul_quant_amx.h"
#include "tiles_amx.h"

namespace ridgeline::RIDGELINE_ISA {

constexpr int kTwoLevelTiles = 16;             // row tiles that use the planes of a super-block
constexpr int kPlaneTiles = kSuperBlock / 64;  // tiles of 64 inner values

// Both planes of a super-block. Their lines alternate, so that no store stands a multiple of 4 KiB from a load.
struct Planes {
  alignas(64) uint8_t lines[kSuperBlock / 4][2][kLineBytes];  // [inner / 4][upper, lower][16 outputs][4]
};

// Where the work on one output block stands.
struct TwoLevelPanel {
  Planes planes[2];  // of a super-block and of the next
  alignas(64) float totals[2][kTwoLevelTiles][kTileRows * kLanes];  // of a block, and of the value's block for kSiluMul
  int row, rows;

  int tiles() const { return (rows + kTileRows - 1) / kTileRows; }
  int rows_of(int tile) const { return rows - tile * kTileRows < kTileRows ? rows - tile * kTileRows : kTileRows; }
};

// Byte `at` of each output's four as two words.
template <int kAt, bool kSigned>
static inline __m512i as_words(__m512i bytes) {
  constexpr int kPlace = kSigned ? 8 : 0;  // where in its word the byte comes to stand
  const auto word = [](int dword) { return (dword * 4 + kAt) << kPlace | 0x80 << (8 - kPlace); };
  const auto both = [&](int dword) { return static_cast<int>(static_cast<unsigned>(word(dword)) * 0x10001u); };
  const __m512i places = _mm512_broadcast_i32x4(_mm_setr_epi32(both(0), both(1), both(2), both(3)));
  const __m512i words = _mm512_shuffle_epi8(bytes, places);
  return kSigned ? _mm512_srai_epi16(words, 8) : words;
}

// A line of codes of 4 and 5 bits times a subscale of 3 + 3 bits: bytes hold either product, so one multiplication of a
// word makes two of them.
struct SplitScale {
  static constexpr int kShift = 3;
  __m512i upper, lower;

  explicit SplitScale(__m512i words)
      : upper(_mm512_srli_epi16(words, kShift)), lower(_mm512_and_si512(words, _mm512_set1_epi16((1 << kShift) - 1))) {}

  void write(__m512i codes, uint8_t (&to)[2][kLineBytes]) const {
    _mm512_store_si512(to[0], _mm512_mullo_epi16(codes, upper));
    _mm512_store_si512(to[1], _mm512_mullo_epi16(codes, lower));
  }
};

// A line of codes of 6 bits times a signed subscale: words, whose upper and lower bytes make the planes.
struct SignedScale {
  static constexpr int kShift = 8;
  __m512i scale;

  explicit SignedScale(__m512i words) : scale(words) {}

  void write(__m512i codes, uint8_t (&to)[2][kLineBytes]) const {
    const __m512i around_zero = _mm512_sub_epi8(codes, _mm512_set1_epi8(32));
    const __m512i even = _mm512_mullo_epi16(_mm512_srai_epi16(_mm512_slli_epi16(around_zero, 8), 8), scale);
    const __m512i odd = _mm512_mullo_epi16(_mm512_srai_epi16(around_zero, 8), scale);
    constexpr __mmask64 kOdd = 0xAAAAAAAAAAAAAAAA;
    _mm512_store_si512(to[0], _mm512_mask_blend_epi8(kOdd, _mm512_srli_epi16(even, 8), odd));
    _mm512_store_si512(to[1], _mm512_mask_blend_epi8(kOdd, even, _mm512_slli_epi16(odd, 8)));
  }
};

template <int kBits>
using ScaleOf = std::conditional_t<kBits == 6, SignedScale, SplitScale>;

template <int kBits>
static void make_planes(const uint8_t* lines, const Subscales<kBits>& subscales, Planes& planes) {
  constexpr TwoLevel kForm{kBits};
  auto* to = planes.lines;
  const auto subgroup = [&]<int At>(__m512i four, std::integral_constant<int, At>) __attribute__((always_inline)) {
    const ScaleOf<kBits> scale(as_words<At, kBits == 6>(four));
    each_line<kBits>(lines, [&](int, Codes low, Codes high) __attribute__((always_inline)) {
      scale.write(low.v, to[0]);
      scale.write(high.v, to[1]);
      to += 2;
    });
    lines += kForm.subgroup_bytes();
  };
  for (const Codes& four : subscales.scales) {
    subgroup(four.v, std::integral_constant<int, 0>{});
    subgroup(four.v, std::integral_constant<int, 1>{});
    subgroup(four.v, std::integral_constant<int, 2>{});
    subgroup(four.v, std::integral_constant<int, 3>{});
  }
}

// Whole row tiles use tiles 4, 0 and 1, the last rows 5, 2 and 3; 6 and 7 hold the planes.
static inline void configure_two_level_tiles(int last_rows) {
  TileConfig config;
  for (int tile : {0, 1, 4, 6, 7}) config.set(tile, kTileRows, 64);
  if (last_rows > 0)
    for (int tile : {2, 3, 5}) config.set(tile, last_rows, 64);
  config.load();
}

// sums[2][16 rows][16 outputs] of a super-block, from the upper and the lower plane.
template <bool kSignedUpper, bool kLastRows>
[[gnu::always_inline]] static inline void sum_planes(const int8_t* x, size_t stride, const Planes& planes,
                                                     int32_t* sums) {
  constexpr int kStride = 2 * kLineBytes;
  if constexpr (kLastRows) {
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_zero(0);
    _tile_zero(1);
  }
  for (int tile = 0; tile < kPlaneTiles; ++tile) {
    _tile_loadd(6, planes.lines[tile * kTileRows][0], kStride);
    _tile_loadd(7, planes.lines[tile * kTileRows][1], kStride);
    if constexpr (kLastRows) {
      _tile_loadd(5, x + tile * 64, stride);
      if constexpr (kSignedUpper) _tile_dpbssd(2, 5, 6);
      if constexpr (!kSignedUpper) _tile_dpbsud(2, 5, 6);
      _tile_dpbsud(3, 5, 7);
    } else {
      _tile_loadd(4, x + tile * 64, stride);
      if constexpr (kSignedUpper) _tile_dpbssd(0, 4, 6);
      if constexpr (!kSignedUpper) _tile_dpbsud(0, 4, 6);
      _tile_dpbsud(1, 4, 7);
    }
  }
  constexpr int kSums = kTileRows * kLanes;
  if constexpr (kLastRows) {
    _tile_stored(2, sums, 64);
    _tile_stored(3, sums + kSums, 64);
  } else {
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + kSums, 64);
  }
}

// Adds one super-block's sums, scaled, to the totals of `rows` rows.
template <int kBits>
static inline void fold_planes(const QuantMatmulArgs& a, int row, int rows, int group, size_t of_block,
                               const Subscales<kBits>& subscales, const int32_t* sums, float* totals) {
  constexpr int kShift = ScaleOf<kBits>::kShift;
  const Vec scales = load_scales(a.scales, a.half_scales, of_block * kLanes);
  Vec minima = zero();
  if constexpr (kBits < 6) minima = load_scales(a.minima, a.half_scales, of_block * kLanes);
  for (int r = 0; r < rows; ++r) {
    const size_t at = of_row(a, row + r, group);
    const __m512i upper = _mm512_load_si512(sums + r * kLanes);
    const __m512i lower = _mm512_load_si512(sums + (kTileRows + r) * kLanes);
    const Ints sum = {_mm512_add_epi32(_mm512_slli_epi32(upper, kShift), lower)};
    const Vec input_scale = broadcast(a.input_scales[at]);
    Vec total = group == 0 ? zero() : load(totals + r * kLanes);
    total = fma(to_floats(sum), mul(input_scale, scales), total);
    if constexpr (kBits < 6) {
      const int16_t* x = a.part_sums[at].of_32;
      const Ints of_minima = dot_words(subscales.minima[1], x + 4, dot_words(subscales.minima[0], x, broadcast_int(0)));
      total = fma(to_floats(of_minima), mul(input_scale, minima), total);
    }
    store(totals + r * kLanes, total);
  }
}

// All super-blocks of one block into totals [row tile][16][16]. The planes of the next one are made while tiles multiply
// those of this: what was just stored would keep them waiting.
template <int kBits>
static void total_super_blocks(const QuantMatmulArgs& a, TwoLevelPanel& panel, int block,
                               float (*totals)[kTileRows * kLanes]) {
  constexpr TwoLevel kForm{kBits};
  alignas(64) int32_t sums[2][2 * kTileRows * kLanes];
  const int tiles = panel.tiles();
  const uint8_t* lines = a.weights + static_cast<size_t>(block) * a.num_groups * kForm.bytes();
  Subscales<kBits> subscales(lines), next = subscales;
  make_planes(lines + kForm.scale_bytes(), subscales, panel.planes[0]);
  for (int group = 0; group < a.num_groups; ++group) {
    const size_t of_block = static_cast<size_t>(block) * a.num_groups + group;
    for (int tile = 0; tile <= tiles; ++tile) {
      if (tile < tiles) {
        const int row = panel.row + tile * kTileRows, rows = panel.rows_of(tile);
        if (group + 1 == a.num_groups && block < a.num_blocks) prefetch_output(a, row, rows, block);
        const int8_t* x = a.input + row * a.input_stride + group * kSuperBlock;
        (rows == kTileRows ? sum_planes<kBits == 6, false> : sum_planes<kBits == 6, true>)(
            x, a.input_stride, panel.planes[group % 2], sums[tile % 2]);
      }
      if (tile == 0 && group + 1 < a.num_groups) {
        lines += kForm.bytes();
        next = Subscales<kBits>(lines);
        make_planes(lines + kForm.scale_bytes(), next, panel.planes[(group + 1) % 2]);
      }
      // the row tile before: its sums have left the tiles by now
      if (tile > 0)
        fold_planes(a, panel.row + (tile - 1) * kTileRows, panel.rows_of(tile - 1), group, of_block, subscales,
                    sums[(tile - 1) % 2], totals[tile - 1]);
    }
    subscales = next;
  }
}

template <int kBits>
static void multiply_two_level(const QuantMatmulArgs& a, TwoLevelPanel& panel, int block_begin, int block_end) {
  const bool silu_mul = a.epilogue == Epilogue::kSiluMul;
  for (int block = block_begin; block < block_end; ++block) {
    total_super_blocks<kBits>(a, panel, block, panel.totals[0]);
    if (silu_mul) total_super_blocks<kBits>(a, panel, a.num_blocks + block, panel.totals[1]);
    finish_block(a, panel.row, panel.rows, block, panel.totals[0][0], panel.totals[1][0]);
  }
}

constexpr int kTwoLevelRowsByVec = 6;  // up to how many rows Vec is faster, as measured

static void matmul_two_level_by_tiles(const QuantMatmulArgs& a, int row_begin, int row_end, int block_begin,
                                      int block_end) {
  if (row_end - row_begin <= kTwoLevelRowsByVec) return matmul_two_level(a, row_begin, row_end, block_begin, block_end);
  const auto multiply = a.bits == 4   ? multiply_two_level<4>
                        : a.bits == 5 ? multiply_two_level<5>
                                      : multiply_two_level<6>;
  TwoLevelPanel panel;
  configure_two_level_tiles((row_end - row_begin) % kTileRows);
  for (int row = row_begin; row < row_end; row += panel.rows) {
    panel.row = row;
    panel.rows = row_end - row < kTwoLevelTiles * kTileRows ? row_end - row : kTwoLevelTiles * kTileRows;
    multiply(a, panel, block_begin, block_end);
  }
  _tile_release();
}

}  // namespace ridgeline::RIDGELINE_ISA
