// Quantized matrix products by i8mm's products of 2 x 8 unsigned with 8 x 2 signed bytes: twice as many in an
// instruction as a dot product has. The sums of a group are exact, and what is rounded after them is kernels_quant.h's,
// so the bits are those of the other ISA paths. A single row goes by dot products.
#pragma once
#include "kernels_quant.h"

namespace ridgeline::RIDGELINE_ISA {

// The sums of 16 outputs with a pair of rows: [o0 r0, o0 r1, o1 r0, o1 r1] of two outputs in each.
struct PairSums {
  int32x4_t v[8];

  // Of the first row or of the second.
  template <int kRow>
  Ints row() const {
    return each_four([&](int i) {
      return kRow == 0 ? vuzp1q_s32(v[2 * i], v[2 * i + 1]) : vuzp2q_s32(v[2 * i], v[2 * i + 1]);
    });
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

template <int kBits>
struct PairProduct {
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
    constexpr int kPairs = (R + 1) / 2;
    const uint8_t* weights = a.weights + static_cast<size_t>(block[0]) * a.padded_inner * kLanes * kBits / 8;
    const int8_t* x[2 * kPairs];  // an odd row stands beside itself
    for (int i = 0; i < 2 * kPairs; ++i) x[i] = a.input + (row + (i < R ? i : R - 1)) * a.input_stride;
    for (int r = 0; r < R; ++r) total[r][0] = zero();
    for (int group = 0; group < a.num_groups; ++group) {
      PairSums sums[kPairs] = {};
      for (int k = 0; k < a.group; k += 8, weights += 8 * kLanes * kBits / 8) {
        int8x16_t inputs[kPairs];
        for (int p = 0; p < kPairs; ++p) inputs[p] = eight_of_rows(x[2 * p], x[2 * p + 1]);
        for (int i = 0; i < 2 * kPairs; ++i) x[i] += 8;
        add_eight(weights, inputs, sums);
      }
      Ints sum[R][1];
      for (int r = 0; r < R; ++r) {
        const Ints offset = broadcast_int(-a.zero * a.input_sums[of_row(a, row + r, group)]);
        sum[r][0] = add(r % 2 ? sums[r / 2].template row<1>() : sums[r / 2].template row<0>(), offset);
      }
      add_group(a, row, group, block, sum, total);
    }
  }

  // The products of eight inner values.
  template <int kPairs>
  static inline void add_eight(const uint8_t* weights, const int8x16_t (&inputs)[kPairs], PairSums (&sums)[kPairs]) {
    prefetch_codes(weights);
    if constexpr (kBits == 8) prefetch_codes(weights + 4 * kLanes);
    for (int i = 0; i < 4; ++i) {
      const uint8x16_t codes = vld1q_u8(weights + 16 * i);
      const uint8x16_t first = kBits == 8 ? codes : vandq_u8(codes, vdupq_n_u8(15));
      const uint8x16_t second = kBits == 8 ? vld1q_u8(weights + 4 * kLanes + 16 * i) : vshrq_n_u8(codes, 4);
      const uint8x16_t lower = eight_of_two<0>(first, second), upper = eight_of_two<1>(first, second);
      for (int p = 0; p < kPairs; ++p) {
        sums[p].v[2 * i] = vusmmlaq_s32(sums[p].v[2 * i], lower, inputs[p]);
        sums[p].v[2 * i + 1] = vusmmlaq_s32(sums[p].v[2 * i + 1], upper, inputs[p]);
      }
    }
  }
};

static void matmul_quant_by_pairs(const QuantMatmulArgs& a, int row_begin, int row_end, int block_begin,
                                  int block_end) {
  if (row_end - row_begin == 1) return matmul_quant(a, row_begin, row_end, block_begin, block_end);
  (a.bits == 8 ? matmul<PairProduct<8>> : matmul<PairProduct<4>>)(a, row_begin, row_end, block_begin, block_end);
}

}  // namespace ridgeline::RIDGELINE_ISA
