// The products of kernels_quant.h cut for many rows: some inputs by some output blocks add up in registers, so that
// weights are unpacked once for all of them. The sums are the same exact integers, so the bits are too.
//
// Where a dot product of bytes is one instruction, inputs are read as they are, and few rows go by kernels_quant.h, which
// waits less for memory. Elsewhere (RIDGELINE_WIDENS) codes of 8 bits are multiplied as 16-bit numbers, to which inputs
// are widened once for all blocks of a call; codes of 4 bits times bytes fit 16 bits, where they add up before they are
// widened. That serves any number of rows.
#pragma once
#include "kernels_quant.h"

namespace ridgeline::RIDGELINE_ISA {

#ifdef RIDGELINE_WIDENS
constexpr bool kWidens = true;
#else
constexpr bool kWidens = false;
// Products of codes below 16, at most 8 on top of each other, and the sum to which they then belong.
using Bytes = Quad;
using SmallSums = Ints;
static inline Bytes load_bytes(const int8_t* x) { return load_quad(x); }
static inline SmallSums small_sums(Ints sum) { return sum; }
static inline SmallSums dot_small(Codes w, Bytes x, SmallSums sum) { return dot(w, x, sum); }
static inline Ints widened(SmallSums small, Ints) { return small; }
#endif

// Inner values whose inputs are widened at a time.
constexpr int kInputChunk = kWidens ? 512 : 1 << 16;

// `R` rows' inputs, of which a chunk stands ready from `begin` on.
template <int R, bool kWidened>
struct RowInputs {
  const int8_t* rows;
  size_t stride;

  void set_chunk(int, int) {}
  Quad quad(int r, int k) const { return load_quad(rows + r * stride + k); }
  Bytes bytes(int r, int k) const { return load_bytes(rows + r * stride + k); }
};

template <int R>
struct RowInputs<R, true> {
  const int8_t* rows;
  size_t stride;
  int begin = 0;
  alignas(64) int16_t words[R][kInputChunk];

  void set_chunk(int from, int end) {
    begin = from;
    for (int r = 0; r < R; ++r)
      for (int k = from; k < end; k += 16) widen_quads(rows + r * stride + k, words[r] + k - from);
  }
  Quad quad(int r, int k) const { return load_wide_quad(words[r] + k - begin); }
};

// kStep inner values at a time, which divide a group.
template <int kBits, int kStep, int R, int B>
struct ManyRows {
  using Args = QuantMatmulArgs;
  static constexpr bool kWidened = kWidens && kBits == 8;

  // Adds the products of inner values begin .. end - 1 to the blocks' totals; `open` keeps the sums of a group that goes
  // on behind them.
  static void add_chunk(const Args& a, int row, const RowInputs<R, kWidened>& x, const int (&blocks)[B], int begin, int end,
                        Vec (*totals)[R], Ints (*open)[R]) {
    const uint8_t* weights[B];
    for (int b = 0; b < B; ++b)
      weights[b] = a.weights + (static_cast<size_t>(blocks[b]) * a.padded_inner + begin) * kLanes * kBits / 8;
    Vec total[R][B];
    for (int r = 0; r < R; ++r)
      for (int b = 0; b < B; ++b) total[r][b] = begin == 0 ? zero() : totals[b][r];
    int group = begin / a.group;
    for (int k = begin; k < end; ++group) {
      const int group_begin = group * a.group, group_end = group_begin + a.group, until = group_end < end ? group_end : end;
      Ints sum[R][B];
      for (int r = 0; r < R; ++r) {
        const Ints offset = broadcast_int(-a.zero * a.input_sums[of_row(a, row + r, group)]);
        for (int b = 0; b < B; ++b) sum[r][b] = k == group_begin ? offset : open[b][r];
      }
      for (; k < until; k += kStep) {
        add_step(x, k, weights, sum);
        for (int b = 0; b < B; ++b) weights[b] += kStep * kLanes * kBits / 8;
      }
      if (until == group_end) {
        add_group(a, row, group, blocks, sum, total);
      } else {
        for (int r = 0; r < R; ++r)
          for (int b = 0; b < B; ++b) open[b][r] = sum[r][b];
      }
    }
    for (int r = 0; r < R; ++r)
      for (int b = 0; b < B; ++b) totals[b][r] = total[r][b];
  }

 private:
  static constexpr int kLineBytes = 4 * kLanes;

  static inline Codes load_line(const uint8_t* at) {
    if constexpr (R <= kRowsQuant) prefetch_codes(at);
    return load_codes(at);
  }

  static inline void add_step(const RowInputs<R, kWidened>& x, int k, const uint8_t* const (&weights)[B],
                              Ints (&sum)[R][B]) {
    if constexpr (kBits == 8) {
      for (int line = 0; line < kStep / 4; ++line) {
        Codes codes[B];
        for (int b = 0; b < B; ++b) codes[b] = load_line(weights[b] + line * kLineBytes);
        for (int r = 0; r < R; ++r) {
          const Quad quad = x.quad(r, k + line * 4);
          for (int b = 0; b < B; ++b) sum[r][b] = dot(codes[b], quad, sum[r][b]);
        }
      }
    } else {
      SmallSums small[R][B];  // at most 8 dot products of codes below 16: they fit 16 bits
      for (int r = 0; r < R; ++r)
        for (int b = 0; b < B; ++b) small[r][b] = small_sums(sum[r][b]);
      for (int line = 0; line < kStep / 8; ++line) {
        Codes low[B], high[B];
        for (int b = 0; b < B; ++b) {
          const Codes pairs = load_line(weights[b] + line * kLineBytes);
          low[b] = byte_bits<0, 4>(pairs);
          high[b] = byte_bits<4, 4>(pairs);
        }
        for (int r = 0; r < R; ++r) {
          const Bytes x_low = x.bytes(r, k + line * 8), x_high = x.bytes(r, k + line * 8 + 4);
          for (int b = 0; b < B; ++b) small[r][b] = dot_small(high[b], x_high, dot_small(low[b], x_low, small[r][b]));
        }
      }
      for (int r = 0; r < R; ++r)
        for (int b = 0; b < B; ++b) sum[r][b] = widened(small[r][b], sum[r][b]);
    }
  }
};

// R rows by up to kSlab blocks (gates, of which each is followed by its value, for kSiluMul): chunk after chunk of the
// inner values, B blocks at a time.
template <int kBits, int kStep, int R, int B>
class RowSlab {
 public:
  static constexpr int kSlab = 4;

  static void multiply(const QuantMatmulArgs& a, int row, int block_begin, int block_end) {
    RowSlab slab;
    slab.inputs_.rows = a.input + row * a.input_stride;
    slab.inputs_.stride = a.input_stride;
    for (int block = block_begin; block < block_end; block += kSlab)
      slab.multiply_slab(a, row, block, block_end - block < kSlab ? block_end - block : kSlab);
  }

 private:
  void multiply_slab(const QuantMatmulArgs& a, int row, int block, int count) {
    const bool silu_mul = a.epilogue == Epilogue::kSiluMul;
    int blocks[2 * kSlab];
    for (int i = 0; i < count; ++i) {
      blocks[silu_mul ? 2 * i : i] = block + i;
      if (silu_mul) blocks[2 * i + 1] = a.num_blocks + block + i;
    }
    const int all = silu_mul ? 2 * count : count;
    for (int begin = 0; begin < a.padded_inner; begin += kInputChunk) {
      const int end = a.padded_inner - begin < kInputChunk ? a.padded_inner : begin + kInputChunk;
      inputs_.set_chunk(begin, end);
      int i = 0;
      for (; i + B <= all; i += B) add_chunk<B>(a, row, blocks + i, begin, end, i);
      for (; i < all; ++i) add_chunk<1>(a, row, blocks + i, begin, end, i);
    }
    for (int i = 0; i < count; ++i)
      for (int r = 0; r < R; ++r) {
        if (silu_mul) {
          finish_silu_mul(a, row + r, block + i, totals_[2 * i][r], totals_[2 * i + 1][r]);
        } else {
          finish_plain(a, row + r, block + i, totals_[i][r]);
        }
      }
  }

  template <int N>
  void add_chunk(const QuantMatmulArgs& a, int row, const int* from, int begin, int end, int first) {
    int blocks[N];
    for (int b = 0; b < N; ++b) blocks[b] = from[b];
    ManyRows<kBits, kStep, R, N>::add_chunk(a, row, inputs_, blocks, begin, end, totals_ + first, open_ + first);
  }

  RowInputs<R, kWidens && kBits == 8> inputs_;
  Vec totals_[2 * kSlab][R];
  Ints open_[2 * kSlab][R];
};

template <int kBits, int kStep, int B, int R>
static void multiply_rows_left(const QuantMatmulArgs& a, int row, int rows, int block_begin, int block_end) {
  if (rows == R) {
    RowSlab<kBits, kStep, R, B>::multiply(a, row, block_begin, block_end);
  } else if constexpr (R > 1) {
    multiply_rows_left<kBits, kStep, B, R - 1>(a, row, rows, block_begin, block_end);
  }
}

// R rows at a time, of which 0 means that kernels_quant.h is faster.
template <int kBits, int kStep, int R, int B>
static void multiply_rows(const QuantMatmulArgs& a, int row_begin, int row_end, int block_begin, int block_end) {
  int row = row_begin;
  if constexpr (R > 0)
    for (; row + R <= row_end; row += R) RowSlab<kBits, kStep, R, B>::multiply(a, row, block_begin, block_end);
  if (row == row_end) return;
  if constexpr (kWidens) {
    multiply_rows_left<kBits, kStep, B, R - 1>(a, row, row_end - row, block_begin, block_end);
  } else {
    matmul_quant_few<kBits>(a, row, row_end, block_begin, block_end);
  }
}

static void matmul_quant(const QuantMatmulArgs& a, int row_begin, int row_end, int block_begin, int block_end) {
  const bool wide_steps = a.group % 32 == 0;
  const auto multiply = a.bits == 4 ? (wide_steps ? multiply_rows<4, 32, kGroupRows, kGroupBlocks>
                                                  : multiply_rows<4, 16, kGroupRows, kGroupBlocks>)
                        : a.num_groups == 1 ? multiply_rows<8, 16, kWholeRows, kWholeBlocks>
                                            : multiply_rows<8, 16, kGroupRows, kGroupBlocks>;
  multiply(a, row_begin, row_end, block_begin, block_end);
}

}  // namespace ridgeline::RIDGELINE_ISA
