// Products of 8-bit activations with 8- or 4-bit weights over Vec, and the quantization of activations: the plain forms.
//
// The sum of a group's products is an exact int32, so it is the same in any order; what is rounded is done group after
// group in ascending order:
//
//   s = sum(code * x) - zero * sum(x)
//   total = fma(s, x_scale * w_scale, total)                     from 0
//   total = fma(sum(x) * x_scale, minimum, total)                where there are minima
#pragma once
#include "half.h"
#include "kernels.h"
#include "kernels_matmul.h"

namespace ridgeline::RIDGELINE_ISA {

// sum(code * x) of one row's group with each of a block's 16 outputs.
static inline void dot_group(int bits, int group, const uint8_t* weights, const int8_t* x, int32_t (&sums)[kLanes]) {
  for (int lane = 0; lane < kLanes; ++lane) sums[lane] = 0;
  if (bits == 8) {
    for (int k = 0; k < group; k += 4, weights += 4 * kLanes)
      for (int lane = 0; lane < kLanes; ++lane)
        for (int i = 0; i < 4; ++i) sums[lane] += weights[4 * lane + i] * x[k + i];
    return;
  }
  for (int k = 0; k < group; k += 8, weights += 4 * kLanes)
    for (int lane = 0; lane < kLanes; ++lane)
      for (int i = 0; i < 4; ++i) {
        const int pair = weights[4 * lane + i];
        sums[lane] += (pair & 15) * x[k + i] + (pair >> 4) * x[k + 4 + i];
      }
}

// The scales, or the minima, of 16 outputs.
static inline Vec load_scales(const void* scales, bool half, size_t at) {
  if (!half) return load(static_cast<const float*>(scales) + at);
  float values[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) values[lane] = from_half(static_cast<const uint16_t*>(scales)[at + lane]);
  return load(values);
}

static inline Vec quant_product(const QuantMatmulArgs& a, int row, int block) {
  const size_t group_bytes = static_cast<size_t>(a.group) * kLanes * a.bits / 8;
  const uint8_t* weights = a.weights + static_cast<size_t>(block) * a.num_groups * group_bytes;
  const int8_t* x = a.input + row * a.input_stride;
  Vec total = zero();
  for (int g = 0; g < a.num_groups; ++g) {
    int32_t sums[kLanes];
    dot_group(a.bits, a.group, weights + g * group_bytes, x + static_cast<size_t>(g) * a.group, sums);
    const size_t of_row = static_cast<size_t>(row) * a.num_groups + g;
    const size_t of_block = (static_cast<size_t>(block) * a.num_groups + g) * kLanes;
    float products[kLanes];
    for (int lane = 0; lane < kLanes; ++lane)
      products[lane] = static_cast<float>(sums[lane] - a.zero * a.input_sums[of_row]);
    const float x_scale = a.input_scales[of_row];
    total = fma(load(products), mul(broadcast(x_scale), load_scales(a.scales, a.half_scales, of_block)), total);
    if (a.minima) {
      const Vec x_sum = broadcast(static_cast<float>(a.input_sums[of_row]) * x_scale);
      total = fma(x_sum, load_scales(a.minima, a.half_scales, of_block), total);
    }
  }
  return total;
}

static void matmul_quant(const QuantMatmulArgs& a, int row_begin, int row_end, int block_begin, int block_end) {
  for (int block = block_begin; block < block_end; ++block)
    for (int row = row_begin; row < row_end; ++row) {
      const Vec product = quant_product(a, row, block);
      if (a.epilogue == Epilogue::kSiluMul) {
        finish_silu_mul(a, row, block, product, quant_product(a, row, a.num_blocks + block));
      } else {
        finish_plain(a, row, block, product);
      }
    }
}

// In place, in the natural order of butterflies: neighbours first.
static inline void hadamard(float* x, int length) {
  for (int half = 1; half < length; half *= 2)
    for (int begin = 0; begin < length; begin += 2 * half)
      for (int i = begin; i < begin + half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
  const float scale = 1.0f / std::sqrt(static_cast<float>(length));
  for (int i = 0; i < length; ++i) x[i] *= scale;
}

// `count` values to `group` codes, the rest of them 0.
static inline void quantize_group(const float* x, int count, int group, int8_t* codes, float* scale, int32_t* sum) {
  float largest = 0;
  bool finite = true;
  for (int i = 0; i < count; ++i) {
    largest = std::fabs(x[i]) > largest ? std::fabs(x[i]) : largest;
    finite = finite && x[i] - x[i] == 0;
  }
  *sum = 0;
  std::memset(codes, 0, group);
  *scale = !finite ? __builtin_nanf("") : largest < kSmallestQuantized ? 0.0f : largest / 127.0f;
  if (!finite || largest < kSmallestQuantized) return;
  const float inverse = 127.0f / largest;
  for (int i = 0; i < count; ++i) {
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, ties to even
    const int code = static_cast<int>(x[i] * inverse + magic - magic);
    codes[i] = static_cast<int8_t>(code);
    *sum += code;
  }
}

static void quantize(const QuantizeArgs& a, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row) {
    float* x = a.input + row * a.input_stride;
    if (a.hadamard > 1)
      for (int begin = 0; begin < a.width; begin += a.hadamard) hadamard(x + begin, a.hadamard);
    for (int g = 0; g < a.num_groups; ++g) {
      const int begin = g * a.group, left = a.width - begin, count = left < 0 ? 0 : left < a.group ? left : a.group;
      const size_t of_row = static_cast<size_t>(row) * a.num_groups + g;
      quantize_group(x + begin, count, a.group, a.codes + row * a.codes_stride + begin, a.scales + of_row,
                     a.sums + of_row);
    }
  }
}

}  // namespace ridgeline::RIDGELINE_ISA
