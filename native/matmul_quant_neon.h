// Quantized matrix products of several rows at once on NEON, by dot products or by i8mm's products of 2 x 8 unsigned
// with 8 x 2 signed bytes, twice as many in an instruction. The sums of a group are exact, and what is rounded after
// them is kernels_quant.h's, so the bits are those of the other ISA paths. A single row goes by kernels_quant.h.
#pragma once
#include "kernels_quant_rows.h"

namespace ridgeline::RIDGELINE_ISA {

// `Sums` of R rows have: kFlip, what their codes lack as signed bytes; add(weights, x, k), the products of inner values
// k .. k + 15 of rows x; row(r), a row's sums.
template <template <int, int> class Sums, int kBits>
struct SeveralRows {
  using Args = QuantMatmulArgs;
  static constexpr int kRows = 4, kBlocks = 1;

  template <int R, int B>
  static inline void run(const Args& a, int row, const int (&blocks)[B], Vec (&total)[R][B]) {
    for (int b = 0; b < B; ++b) {
      Vec of_block[R][1];
      run_block(a, row, {blocks[b]}, of_block);
      for (int r = 0; r < R; ++r) total[r][b] = of_block[r][0];
    }
  }

 private:
  template <int R>
  static inline void run_block(const Args& a, int row, const int (&block)[1], Vec (&total)[R][1]) {
    constexpr int kStep = 16;
    const uint8_t* weights = a.weights + static_cast<size_t>(block[0]) * a.padded_inner * kLanes * kBits / 8;
    const int8_t* x[R];
    for (int r = 0; r < R; ++r) x[r] = a.input + (row + r) * a.input_stride;
    for (int r = 0; r < R; ++r) total[r][0] = zero();
    for (int group = 0, k = 0; group < a.num_groups; ++group) {
      Sums<kBits, R> sums = {};
      for (const int end = k + a.group; k < end; k += kStep, weights += kStep * kLanes * kBits / 8) {
        for (int line = 0; line < kStep * kBits / 32; ++line) prefetch_codes(weights + line * 4 * kLanes);
        sums.add(weights, x, k);
      }
      Ints sum[R][1];
      for (int r = 0; r < R; ++r) {
        const int of_zero = Sums<kBits, R>::kFlip - a.zero;
        sum[r][0] = add(sums.row(r), broadcast_int(of_zero * a.input_sums[of_row(a, row + r, group)]));
      }
      add_group(a, row, group, block, sum, total);
    }
  }
};

#if !defined(__ARM_FEATURE_MATMUL_INT8)
// By dot products with four inner values of a row, which stand in a lane of its register.
template <int kBits, int R>
struct LaneSums {
  static constexpr int kFlip = kBits == 8 ? 128 : 0;
  Ints v[R];

  Ints row(int r) const { return v[r]; }

  inline void add(const uint8_t* weights, const int8_t* const (&x)[R], int k) {
    int8x16_t inputs[R];
    for (int r = 0; r < R; ++r) inputs[r] = vld1q_s8(x[r] + k);
    for (int i = 0; i < 4; ++i) {
      if constexpr (kBits == 8) {
        const auto codes = [&](int line) {
          return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(weights + line * 4 * kLanes + 16 * i), vdupq_n_u8(0x80)));
        };
        add_lanes(i, codes(0), codes(1), codes(2), codes(3), inputs);
      } else {
        const uint8x16_t first = vld1q_u8(weights + 16 * i), second = vld1q_u8(weights + 4 * kLanes + 16 * i);
        add_lanes(i, low(first), high(first), low(second), high(second), inputs);
      }
    }
  }

 private:
  static inline int8x16_t low(uint8x16_t pairs) { return vreinterpretq_s8_u8(vandq_u8(pairs, vdupq_n_u8(15))); }
  static inline int8x16_t high(uint8x16_t pairs) { return vreinterpretq_s8_u8(vshrq_n_u8(pairs, 4)); }

  inline void add_lanes(int i, int8x16_t a, int8x16_t b, int8x16_t c, int8x16_t d, const int8x16_t (&inputs)[R]) {
    for (int r = 0; r < R; ++r) {
      v[r].v[i] = vdotq_laneq_s32(v[r].v[i], a, inputs[r], 0);
      v[r].v[i] = vdotq_laneq_s32(v[r].v[i], b, inputs[r], 1);
      v[r].v[i] = vdotq_laneq_s32(v[r].v[i], c, inputs[r], 2);
      v[r].v[i] = vdotq_laneq_s32(v[r].v[i], d, inputs[r], 3);
    }
  }
};

template <int kBits>
using SeveralQuantRows = SeveralRows<LaneSums, kBits>;
#else
// The sums of 16 outputs with a pair of rows: [o0 r0, o0 r1, o1 r0, o1 r1] of two outputs in each.
struct PairSums {
  int32x4_t v[8];

  Ints first() const {
    return each_four([&](int i) { return vuzp1q_s32(v[2 * i], v[2 * i + 1]); });
  }
  Ints second() const {
    return each_four([&](int i) { return vuzp2q_s32(v[2 * i], v[2 * i + 1]); });
  }
};

// Four inner values of outputs 0 .. 3, and the four inner values that follow, as eight of outputs 0 and 1, or 2 and 3.
template <int kUpper>
static inline uint8x16_t eight_of_two(uint8x16_t first, uint8x16_t second) {
  const uint32x4_t a = vreinterpretq_u32_u8(first), b = vreinterpretq_u32_u8(second);
  return vreinterpretq_u8_u32(kUpper ? vzip2q_u32(a, b) : vzip1q_u32(a, b));
}

// Eight values of a row above eight of another.
static inline int8x16_t eight_of_rows(const int8_t* upper, const int8_t* lower) {
  return vcombine_s8(vld1_s8(upper), vld1_s8(lower));
}

// An odd row stands beside itself.
template <int kBits, int R>
struct SumsOfPairs {
  static constexpr int kFlip = 0, kPairs = (R + 1) / 2;
  PairSums pairs[kPairs];

  Ints row(int r) const { return r % 2 ? pairs[r / 2].second() : pairs[r / 2].first(); }

  inline void add(const uint8_t* weights, const int8_t* const (&x)[R], int k) {
    for (int half = 0; half < 2; ++half, k += 8, weights += 8 * kLanes * kBits / 8) {
      int8x16_t inputs[kPairs];
      for (int p = 0; p < kPairs; ++p) {
        const int upper = 2 * p, lower = upper + 1 < R ? upper + 1 : upper;
        inputs[p] = eight_of_rows(x[upper] + k, x[lower] + k);
      }
      for (int i = 0; i < 4; ++i) {
        const uint8x16_t codes = vld1q_u8(weights + 16 * i);
        const uint8x16_t first = kBits == 8 ? codes : vandq_u8(codes, vdupq_n_u8(15));
        const uint8x16_t second = kBits == 8 ? vld1q_u8(weights + 4 * kLanes + 16 * i) : vshrq_n_u8(codes, 4);
        const uint8x16_t lower = eight_of_two<0>(first, second), upper = eight_of_two<1>(first, second);
        for (int p = 0; p < kPairs; ++p) {
          pairs[p].v[2 * i] = vusmmlaq_s32(pairs[p].v[2 * i], lower, inputs[p]);
          pairs[p].v[2 * i + 1] = vusmmlaq_s32(pairs[p].v[2 * i + 1], upper, inputs[p]);
        }
      }
    }
  }
};

template <int kBits>
using SeveralQuantRows = SeveralRows<SumsOfPairs, kBits>;
#endif

static void matmul_quant_rows(const QuantMatmulArgs& a, int row_begin, int row_end, int block_begin, int block_end) {
  const bool single = row_end - row_begin == 1;
  const auto product = single        ? matmul_quant
                       : a.bits == 8 ? matmul<SeveralQuantRows<8>>
                                     : matmul<SeveralQuantRows<4>>;
  product(a, row_begin, row_end, block_begin, block_end);
}

}  // namespace ridgeline::RIDGELINE_ISA
