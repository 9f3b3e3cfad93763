// Quantized matrix products by AMX tiles: signed inputs times unsigned codes. The sums of a group are exact, and what is
// rounded after them is kernels_quant.h's, so the bits are those of the other ISA paths. Few rows go by Vec, which waits
// less for memory.
//
// A tile of weights is [16 groups of 4 inner values][16 outputs][4]: 1 KiB of a packed block of 8 bits, contiguous.
#pragma once
#include <immintrin.h>

#include "kernels_quant_rows.h"
#include "product_amx.h"
#include "tiles_amx.h"

namespace ridgeline::RIDGELINE_ISA {

constexpr int kCodesPerTile = 64;  // inner length of a whole tile

// 8 bits, one group: the accumulators stay in tiles over the whole inner length.
struct Int8Tiles {
  using Args = QuantMatmulArgs;
  using Sum = int32_t;
  static constexpr int kElementBytes = 1;

  static int inner(const Args& a) { return a.padded_inner; }
  static Format out_format(const Args&) { return Format::kF32; }

  template <int kAccumulator>
  static inline void multiply() {
    if constexpr (kAccumulator == 0) _tile_dpbsud(0, 4, 6);
    if constexpr (kAccumulator == 1) _tile_dpbsud(1, 4, 7);
    if constexpr (kAccumulator == 2) _tile_dpbsud(2, 5, 6);
    if constexpr (kAccumulator == 3) _tile_dpbsud(3, 5, 7);
  }

  // kernels_quant.h's add_group, for one group without minima
  struct Columns {
    Columns(const Args& a, int block)
        : scales(load_scales(a.scales, a.half_scales, static_cast<size_t>(block) * kLanes)), bias(load_bias(a, block)) {}

    Vec total(const Args& a, int row, const int32_t* sums) const {
      const __m512i offset = _mm512_set1_epi32(a.zero * a.input_sums[row]);
      const Ints sum = {_mm512_sub_epi32(_mm512_load_si512(sums), offset)};
      return add(fma(to_floats(sum), mul(broadcast(a.input_scales[row]), scales), zero()), bias);
    }

    Vec scales, bias;
  };
};

// --- Groups: a group's sums leave the tile for 16 x 16 totals, which stand in registers. Beside tiles the CPU multiplies
// floats at half its rate, so as little as possible is left to do there. Codes of 4 bits are unpacked once for all row
// tiles, to signed bytes of code - zero; tiles take those of 8 bits as they are, and zero * sum(x) is subtracted after.

constexpr int kChunk = 512;         // inner values of a block that are unpacked at a time: 8 KiB that stay in the L1 cache
constexpr int kPanelTiles = 16;     // row tiles that use them
constexpr int kSumBuffers = 4;      // with two, a tile's store waits for loads of what is still there
constexpr int kPanelGroups = 1024;  // groups of all row tiles whose scales stand ready

// All inlined: a call that stayed one would keep what it changes in memory.
template <int N, class F>
[[gnu::always_inline]] static inline void unrolled(F f) {
  [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    (f(std::integral_constant<int, I>{}), ...);
  }(std::make_integer_sequence<int, N>{});
}

// What belongs to 16 rows' group, side by side; zero for rows that are not there.
struct alignas(64) RowGroup {
  float scales[kTileRows];
  float sums[kTileRows];       // sum of the codes * scale
  int32_t offsets[kTileRows];  // zero * sum of the codes
};

// Rows whose products are computed together, whole row tiles or one with fewer rows, and where the work on an output
// block stands.
struct RowPanel {
  int row, rows;
  RowGroup groups[kPanelGroups];                     // [row tile][group]
  float totals[2][kPanelTiles][kTileRows * kLanes];  // of a block, and of the value's block for kSiluMul
  alignas(64) uint8_t codes[kChunk * kLanes];        // signed: [inner / 4][16 outputs][4]

  int tiles() const { return (rows + kTileRows - 1) / kTileRows; }
  int tile_rows() const { return rows < kTileRows ? rows : kTileRows; }
};

static void gather_row_groups(const QuantMatmulArgs& a, RowPanel& panel) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i rows_apart = _mm512_mullo_epi32(lane, _mm512_set1_epi32(a.num_groups));
  const __m512i zero_code = _mm512_set1_epi32(a.zero);
  for (int tile = 0; tile < panel.tiles(); ++tile) {
    const __mmask16 there = static_cast<__mmask16>((1 << panel.tile_rows()) - 1);
    const size_t from = of_row(a, panel.row + tile * kTileRows, 0);
    for (int g = 0; g < a.num_groups; ++g) {
      const __m512 scales =
          _mm512_mask_i32gather_ps(_mm512_setzero_ps(), there, rows_apart, a.input_scales + from + g, 4);
      const __m512i sums =
          _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), there, rows_apart, a.input_sums + from + g, 4);
      RowGroup& to = panel.groups[tile * a.num_groups + g];
      _mm512_store_ps(to.scales, scales);
      _mm512_store_ps(to.sums, _mm512_mul_ps(_mm512_cvtepi32_ps(sums), scales));
      _mm512_store_si512(to.offsets, _mm512_mullo_epi32(sums, zero_code));
    }
  }
}

static inline int tile_depth(int group) { return group % 64 == 0 ? 64 : group % 32 == 0 ? 32 : 16; }

// Even and odd groups take turns, each with tiles of its own: 0 and 1 accumulate, 4 and 5 hold inputs, 6 and 7 weights.
static inline void configure_group_tiles(int rows, int depth) {
  TileConfig config;
  for (int tile : {0, 1}) config.set(tile, rows, 64);
  for (int tile : {4, 5}) config.set(tile, rows, depth);
  for (int tile : {6, 7}) config.set(tile, depth / 4, 64);
  config.load();
}

// The sums of one group: up to 16 rows by 16 outputs. A tile's number must be a literal.
template <bool kSigned, int kDepth, bool kOdd>
[[gnu::always_inline]] static inline void sum_group(const QuantMatmulArgs& a, const int8_t* x, const uint8_t* codes,
                                                    int32_t* sums) {
  if constexpr (kOdd) _tile_zero(1);
  if constexpr (!kOdd) _tile_zero(0);
  for (int k = 0; k < a.group; k += kDepth) {
    if constexpr (kOdd) {
      _tile_loadd(7, codes + k * kLanes, 64);
      _tile_loadd(5, x + k, a.input_stride);
      if constexpr (kSigned) _tile_dpbssd(1, 5, 7);
      if constexpr (!kSigned) _tile_dpbsud(1, 5, 7);
    } else {
      _tile_loadd(6, codes + k * kLanes, 64);
      _tile_loadd(4, x + k, a.input_stride);
      if constexpr (kSigned) _tile_dpbssd(0, 4, 6);
      if constexpr (!kSigned) _tile_dpbsud(0, 4, 6);
    }
  }
  if constexpr (kOdd) _tile_stored(1, sums, 64);
  if constexpr (!kOdd) _tile_stored(0, sums, 64);
}

template <bool kSigned>
[[gnu::always_inline]] static inline void add_row_group(const QuantMatmulArgs& a, const RowGroup& rows, size_t of_block,
                                                        const int32_t* sums, Vec (&total)[kTileRows]) {
  const Vec scales = load_scales(a.scales, a.half_scales, of_block);
  unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
    __m512i sum = _mm512_load_si512(sums + r * kLanes);
    if constexpr (!kSigned) sum = _mm512_sub_epi32(sum, _mm512_set1_epi32(rows.offsets[r]));
    total[r] = fma(to_floats({sum}), mul(broadcast(rows.scales[r]), scales), total[r]);
  });
  if (!a.minima) return;
  const Vec minima = load_scales(a.minima, a.half_scales, of_block);
  unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
    total[r] = fma(broadcast(rows.sums[r]), minima, total[r]);
  });
}

// code - zero of `inner` values of a block of 4 bits.
static inline void unpack(const uint8_t* pairs, int inner, int zero_code, uint8_t* codes) {
  const __m512i offset = _mm512_set1_epi8(static_cast<char>(zero_code)), nibble = _mm512_set1_epi8(15);
  for (int k = 0; k < inner; k += 8, pairs += 4 * kLanes, codes += 8 * kLanes) {
    const __m512i both = _mm512_loadu_si512(pairs);
    const __m512i low = _mm512_and_si512(both, nibble), high = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
    _mm512_store_si512(codes, _mm512_sub_epi8(low, offset));
    _mm512_store_si512(codes + 4 * kLanes, _mm512_sub_epi8(high, offset));
  }
}

// Adds groups begin .. end - 1 of a block to the totals of one row tile. The first row tile asks for weights ahead, and
// unpacks those of 4 bits, from `packed` to `signed_codes`, a group before it multiplies them: vectors have room for that
// while tiles work.
template <bool kSigned, int kDepth>
static void add_groups(const QuantMatmulArgs& a, const int8_t* x, const RowGroup* rows, int block, int begin, int end,
                       const uint8_t* packed, uint8_t* signed_codes, bool is_first, float* totals) {
  alignas(64) int32_t sums[kSumBuffers][kTileRows * kLanes];
  const size_t of_block = static_cast<size_t>(block) * a.num_groups * kLanes;
  Vec total[kTileRows];
  unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) {
    total[r] = begin == 0 ? zero() : load(totals + r * kLanes);
  });
  const auto add = [&](int g) __attribute__((always_inline)) {
    add_row_group<kSigned>(a, rows[g], of_block + g * kLanes, sums[g % kSumBuffers], total);
  };
  const int code_bytes = a.group * kLanes, packed_bytes = code_bytes * a.bits / 8;
  const uint8_t* codes = kSigned ? signed_codes : packed;
  if (kSigned && is_first) unpack(packed, a.group, a.zero, signed_codes);
  for (int g = begin; g < end; ++g, codes += code_bytes) {
    if (is_first) {
      prefetch_lines(packed + kPrefetchBytes, packed_bytes);
      packed += packed_bytes;
      signed_codes += code_bytes;
      if (kSigned && g + 1 < end) unpack(packed, a.group, a.zero, signed_codes);
    }
    int32_t* sum = sums[g % kSumBuffers];
    if (g % 2) {
      sum_group<kSigned, kDepth, true>(a, x + g * a.group, codes, sum);
    } else {
      sum_group<kSigned, kDepth, false>(a, x + g * a.group, codes, sum);
    }
    if (g > begin) add(g - 1);  // its sums have left the tile by now
  }
  add(end - 1);
  unrolled<kTileRows>([&](auto r) __attribute__((always_inline)) { store(totals + r * kLanes, total[r]); });
}

// Asks for the lines that a block's totals of some rows will be written to.
static inline void prefetch_output(const QuantMatmulArgs& a, int row, int rows, int block) {
  for (int r = row; r < row + rows; ++r) __builtin_prefetch(a.out + r * a.out_stride + block * kLanes, 1);
}

// Writes a block of `rows` rows from its totals [row tile][16][16]; `value_totals` are those of the value's block, for
// kSiluMul alone.
static inline void finish_block(const QuantMatmulArgs& a, int row, int rows, int block, const float* totals,
                                const float* value_totals) {
  for (int r = 0; r < rows; ++r) {
    const Vec product = load(totals + r * kLanes);
    if (a.epilogue == Epilogue::kSiluMul) {
      finish_silu_mul(a, row + r, block, product, load(value_totals + r * kLanes));
    } else {
      finish_plain(a, row + r, block, product);
    }
  }
}

// All groups of one block into totals [row tile][16][16].
template <bool kSigned, int kDepth>
static void total_block(const QuantMatmulArgs& a, RowPanel& panel, int block, float (*totals)[kTileRows * kLanes]) {
  const int group_bytes = a.group * kLanes * a.bits / 8, chunk = kSigned ? kChunk / a.group : a.num_groups;
  const uint8_t* packed = a.weights + static_cast<size_t>(block) * a.num_groups * group_bytes;
  for (int begin = 0, end; begin < a.num_groups; begin = end, packed += chunk * group_bytes) {
    end = begin + chunk < a.num_groups ? begin + chunk : a.num_groups;
    for (int tile = 0; tile < panel.tiles(); ++tile) {
      const int row = panel.row + tile * kTileRows, rows = panel.tile_rows();
      if (end == a.num_groups && block < a.num_blocks) prefetch_output(a, row, rows, block);
      add_groups<kSigned, kDepth>(a, a.input + row * a.input_stride, panel.groups + tile * a.num_groups, block, begin, end,
                                  packed, panel.codes, tile == 0, totals[tile]);
    }
  }
}

template <int kDepth>
static auto total_block_of(const QuantMatmulArgs& a) {
  return a.bits == 4 ? total_block<true, kDepth> : total_block<false, kDepth>;
}

static void multiply_groups(const QuantMatmulArgs& a, RowPanel& panel, int block_begin, int block_end) {
  const bool silu_mul = a.epilogue == Epilogue::kSiluMul;
  const int depth = tile_depth(a.group);
  const auto total = depth == 64 ? total_block_of<64>(a) : depth == 32 ? total_block_of<32>(a) : total_block_of<16>(a);
  gather_row_groups(a, panel);
  for (int block = block_begin; block < block_end; ++block) {
    total(a, panel, block, panel.totals[0]);
    if (silu_mul) total(a, panel, a.num_blocks + block, panel.totals[1]);
    finish_block(a, panel.row, panel.rows, block, panel.totals[0][0], panel.totals[1][0]);
  }
}

static void multiply_in_groups(const QuantMatmulArgs& a, int row_begin, int row_end, int block_begin, int block_end) {
  RowPanel panel;
  const int tiles = kPanelGroups / a.num_groups < kPanelTiles ? kPanelGroups / a.num_groups : kPanelTiles;
  for (int row = row_begin; row < row_end; row += panel.rows) {
    const int left = row_end - row, whole_tiles = left / kTileRows < tiles ? left / kTileRows : tiles;
    panel.row = row;
    panel.rows = whole_tiles ? whole_tiles * kTileRows : left;
    configure_group_tiles(panel.tile_rows(), tile_depth(a.group));
    multiply_groups(a, panel, block_begin, block_end);
  }
  _tile_release();
}

// Up to how many rows Vec is faster, as measured.
static inline int rows_by_vec(const QuantMatmulArgs& a) {
  if (a.num_groups == 1) return 4;
  return a.bits == 8 && a.group >= kCodesPerTile ? 5 : 8;
}

static void matmul_quant_by_tiles(const QuantMatmulArgs& a, int row_begin, int row_end, int block_begin, int block_end) {
  const bool whole = a.bits == 8 && a.num_groups == 1 && !a.minima;
  const bool fits = whole || (a.num_groups <= kPanelGroups && a.group <= kChunk);
  if (row_end - row_begin <= rows_by_vec(a) || !fits) return matmul_quant(a, row_begin, row_end, block_begin, block_end);
  (whole ? multiply_by_tiles<Int8Tiles> : multiply_in_groups)(a, row_begin, row_end, block_begin, block_end);
}

}  // namespace ridgeline::RIDGELINE_ISA
