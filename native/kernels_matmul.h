// Matrix products over Vec. Rows and output blocks are tiled for registers only; an output's own arithmetic is:
//
//   f32:  one chain of fused multiply-adds from 0, in ascending inner order.
//   bf16: the order of AMX's tdpbf16ps. For each tile of 32 inner values two chains from 0, over the even and over the
//         odd ones, in ascending order; then sum += even + odd. Denormals count as zero (the pool's threads set that).
//
// so that tiles, single rows and the scalar reference agree bit for bit.
#pragma once
#include <cstring>

#include "kernels.h"
#include "kernels_rowwise.h"

namespace ridgeline::RIDGELINE_ISA {

// A single row is bound by reading its weights: they are asked for this far ahead, across the ends of blocks, where the
// hardware's own prefetching starts anew.
constexpr int kPrefetchBytes = 4096;

struct F32Product {
  using Args = MatmulArgs;
  static constexpr int kRows = kRowsF32, kBlocks = kBlocksFloat;

  template <int R, int B>
  static inline void run(const MatmulArgs& a, int row, const int (&blocks)[B], Vec (&sum)[R][B]) {
    const float* in[R];
    const float* w[B];
    for (int r = 0; r < R; ++r) in[r] = row_of<float>(a.input, a.input_stride, row + r);
    for (int b = 0; b < B; ++b)
      w[b] = static_cast<const float*>(a.weights) + static_cast<size_t>(blocks[b]) * a.inner * kLanes;
    for (int r = 0; r < R; ++r)
      for (int b = 0; b < B; ++b) sum[r][b] = zero();
    for (int k = 0; k < a.inner; ++k) {
      Vec weight[B];
      for (int b = 0; b < B; ++b) {
        const float* at = w[b] + static_cast<size_t>(k) * kLanes;
        if constexpr (R == 1) __builtin_prefetch(reinterpret_cast<const char*>(at) + kPrefetchBytes);
        weight[b] = load(at);
      }
      for (int r = 0; r < R; ++r) {
        const Vec x = broadcast(in[r][k]);
        for (int b = 0; b < B; ++b) sum[r][b] = fma(x, weight[b], sum[r][b]);
      }
    }
  }
};

// `count` values.
static inline void to_floats(const float* from, int count, float* to) { std::memcpy(to, from, sizeof(float) * count); }
static inline void to_floats(const uint16_t* from, int count, float* to) {
  for (int i = 0; i < count; ++i) {
    const uint32_t bits = static_cast<uint32_t>(from[i]) << 16;
    std::memcpy(to + i, &bits, sizeof bits);
  }
}

struct Bf16Product {
  using Args = MatmulArgs;
  static constexpr int kRows = kRowsBf16, kBlocks = kBlocksBf16;

  template <int R, int B>
  static inline void run(const MatmulArgs& a, int row, const int (&blocks)[B], Vec (&sum)[R][B]) {
    const uint16_t* in[R];
    const uint16_t* w[B];
    for (int r = 0; r < R; ++r) in[r] = row_of<uint16_t>(a.input, a.input_stride, row + r);
    for (int b = 0; b < B; ++b)
      w[b] = static_cast<const uint16_t*>(a.weights) + static_cast<size_t>(blocks[b]) * a.inner * kLanes;
    for (int r = 0; r < R; ++r)
      for (int b = 0; b < B; ++b) sum[r][b] = zero();
    for (int tile = 0; tile < a.inner; tile += kBf16Tile) {
      Vec even[R][B], odd[R][B];
      for (int r = 0; r < R; ++r)
        for (int b = 0; b < B; ++b) even[r][b] = odd[r][b] = zero();
      float x[R][kBf16Tile];  // as fp32, which a load broadcasts
      for (int r = 0; r < R; ++r) to_floats(in[r] + tile, kBf16Tile, x[r]);
      for (int k = 0; k < kBf16Tile; k += 2) {
        Vec weight_even[B], weight_odd[B];
        for (int b = 0; b < B; ++b) {
          const uint16_t* at = w[b] + static_cast<size_t>(tile + k) * kLanes;
          if constexpr (R == 1) __builtin_prefetch(reinterpret_cast<const char*>(at) + kPrefetchBytes);
          load_pairs(at, weight_even[b], weight_odd[b]);
        }
        for (int r = 0; r < R; ++r) {
          const Vec x_even = broadcast(x[r][k]), x_odd = broadcast(x[r][k + 1]);
          for (int b = 0; b < B; ++b) {
            even[r][b] = fma(x_even, weight_even[b], even[r][b]);
            odd[r][b] = fma(x_odd, weight_odd[b], odd[r][b]);
          }
        }
      }
      for (int r = 0; r < R; ++r)
        for (int b = 0; b < B; ++b) sum[r][b] = add(sum[r][b], add(even[r][b], odd[r][b]));
    }
  }
};

template <class Args>
static inline Vec with_bias(const Args& a, int block, Vec product) {
  return a.bias ? add(product, load(a.bias + block * kLanes)) : product;
}

// The bias of 16 outputs, or what changes nothing when it is added.
template <class Args>
static inline Vec load_bias(const Args& a, int block) {
  return a.bias ? load(a.bias + block * kLanes) : broadcast(-0.0f);
}

// The epilogues, on one row's product with one block (a gate block and its value block).
template <class Args>
static inline void finish_plain(const Args& a, int row, int block, Vec product) {
  float* out = row_of<float>(a.out, a.out_stride, row) + block * kLanes;
  const Vec y = with_bias(a, block, product);
  store(out, a.epilogue == Epilogue::kAdd ? add(load(out), y) : y);
}
static inline Vec silu_mul(Vec gate, Vec value) {
  return mul(div(gate, add(broadcast(1.0f), exp(sub(zero(), gate)))), value);
}
template <class Args>
static inline Vec silu_mul(const Args& a, int block, Vec gate_product, Vec value_product) {
  return silu_mul(with_bias(a, block, gate_product), with_bias(a, a.num_blocks + block, value_product));
}
static inline void finish_silu_mul(const MatmulArgs& a, int row, int block, Vec gate_product, Vec value_product) {
  store_as(a.out_format, a.out, row * a.out_stride + block * kLanes, silu_mul(a, block, gate_product, value_product));
}
static inline void finish_silu_mul(const QuantMatmulArgs& a, int row, int block, Vec gate_product, Vec value_product) {
  store(a.out + row * a.out_stride + block * kLanes, silu_mul(a, block, gate_product, value_product));
}

template <class Product, int R, int B>
static void plain_tile(const typename Product::Args& a, int row, int block) {
  int blocks[B];
  for (int b = 0; b < B; ++b) blocks[b] = block + b;
  Vec sum[R][B];
  Product::template run<R, B>(a, row, blocks, sum);
  for (int r = 0; r < R; ++r)
    for (int b = 0; b < B; ++b) finish_plain(a, row + r, blocks[b], sum[r][b]);
}

// B gate blocks and their B value blocks.
template <class Product, int R, int B>
static void silu_mul_tile(const typename Product::Args& a, int row, int block) {
  int blocks[2 * B];
  for (int b = 0; b < B; ++b) {
    blocks[b] = block + b;
    blocks[B + b] = a.num_blocks + block + b;
  }
  Vec sum[R][2 * B];
  Product::template run<R, 2 * B>(a, row, blocks, sum);
  for (int r = 0; r < R; ++r)
    for (int b = 0; b < B; ++b) finish_silu_mul(a, row + r, blocks[b], sum[r][b], sum[r][B + b]);
}

template <class Product, int R>
static void block_row(const typename Product::Args& a, int row, int block_begin, int block_end) {
  constexpr int kBlocks = Product::kBlocks;
  int block = block_begin;
  if (a.epilogue == Epilogue::kSiluMul) {
    constexpr int B = kBlocks > 1 ? kBlocks / 2 : 1;
    for (; block + B <= block_end; block += B) silu_mul_tile<Product, R, B>(a, row, block);
    for (; block < block_end; ++block) silu_mul_tile<Product, R, 1>(a, row, block);
    return;
  }
  for (; block + kBlocks <= block_end; block += kBlocks) plain_tile<Product, R, kBlocks>(a, row, block);
  for (; block < block_end; ++block) plain_tile<Product, R, 1>(a, row, block);
}

// Calls block_row with the compile-time row count that equals `rows`.
template <class Product, int R = Product::kRows>
static void block_rows(const typename Product::Args& a, int row, int rows, int block_begin, int block_end) {
  if (rows == R) {
    block_row<Product, R>(a, row, block_begin, block_end);
  } else if constexpr (R > 1) {
    block_rows<Product, R - 1>(a, row, rows, block_begin, block_end);
  }
}

template <class Product>
static void matmul(const typename Product::Args& a, int row_begin, int row_end, int block_begin, int block_end) {
  for (int row = row_begin; row < row_end; row += Product::kRows) {
    const int rows = row_end - row < Product::kRows ? row_end - row : Product::kRows;
    block_rows<Product>(a, row, rows, block_begin, block_end);
  }
}

}  // namespace ridgeline::RIDGELINE_ISA
