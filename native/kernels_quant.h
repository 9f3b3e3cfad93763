// Products of 8-bit activations with 8- or 4-bit weights over Vec, and the quantization of activations.
//
// The sum of a group's products is an exact int32, so it is the same in any order; what is rounded is done group after
// group in ascending order:
//
//   s = sum(code * x) - zero * sum(x)
//   total = fma(s, x_scale * w_scale, total)                     from 0
//   total = fma(sum(x) * x_scale, minimum, total)                where there are minima
#pragma once
#include "kernels.h"
#include "kernels_matmul.h"

namespace ridgeline::RIDGELINE_ISA {

// The scales, or the minima, of 16 outputs.
static inline Vec load_scales(const void* scales, bool half, size_t at) {
  return half ? load_half(static_cast<const uint16_t*>(scales) + at) : load(static_cast<const float*>(scales) + at);
}

// Asked for far ahead into the L2 cache, which can wait for many lines, and shortly before into the L1 cache, which waits
// for few: faster than either alone.
static inline void prefetch_codes(const uint8_t* at) {
  constexpr int kIntoL2 = 2, kNearBytes = 512;
  __builtin_prefetch(at + kPrefetchBytes, 0, kIntoL2);
  __builtin_prefetch(at + kNearBytes);
}

static inline size_t of_row(const QuantMatmulArgs& a, int row, int group) {
  return static_cast<size_t>(row) * a.num_groups + group;
}

// Adds a group's sums, scaled, to the totals of R rows and B blocks.
template <int R, int B>
static inline void add_group(const QuantMatmulArgs& a, int row, int group, const int (&blocks)[B], const Ints (&sum)[R][B],
                             Vec (&total)[R][B]) {
  for (int b = 0; b < B; ++b) {
    const size_t of_block = (static_cast<size_t>(blocks[b]) * a.num_groups + group) * kLanes;
    const size_t scale_bytes = a.half_scales ? sizeof(uint16_t) : sizeof(float);
    const Vec scales = load_scales(a.scales, a.half_scales, of_block);
    __builtin_prefetch(static_cast<const char*>(a.scales) + of_block * scale_bytes + kPrefetchBytes / 8);
    for (int r = 0; r < R; ++r) {
      const Vec input_scale = broadcast(a.input_scales[of_row(a, row + r, group)]);
      total[r][b] = fma(to_floats(sum[r][b]), mul(input_scale, scales), total[r][b]);
    }
    if (!a.minima) continue;
    const Vec minima = load_scales(a.minima, a.half_scales, of_block);
    for (int r = 0; r < R; ++r) {
      const size_t at = of_row(a, row + r, group);
      const Vec input_sum = broadcast(static_cast<float>(a.input_sums[at]) * a.input_scales[at]);
      total[r][b] = fma(input_sum, minima, total[r][b]);
    }
  }
}

// kStep inner values at a time, which divide a group: a loop of one known step costs a group of 32 nothing.
//
// Integers sum up in two chains, so that no product waits for the one before: of low and high nibbles, or of every other
// line.
template <int kBits, int kStep>
struct QuantProduct {
  using Args = QuantMatmulArgs;
  static constexpr int kRows = kRowsQuant, kBlocks = kBlocksQuant;
  static constexpr int kLineBytes = 4 * kLanes, kLines = kStep * kBits / 32;
  static constexpr int kFlip = kSignedDot && kBits == 8 ? 128 : 0;  // what codes lack as signed bytes

  template <int R, int B>
  static inline void run(const Args& a, int row, const int (&blocks)[B], Vec (&total)[R][B]) {
    const uint8_t* weights[B];
    for (int b = 0; b < B; ++b)
      weights[b] = a.weights + static_cast<size_t>(blocks[b]) * a.padded_inner * kLanes * kBits / 8;
    for (int r = 0; r < R; ++r)
      for (int b = 0; b < B; ++b) total[r][b] = zero();
    const int8_t* x = a.input + row * a.input_stride;
    for (int group = 0; group < a.num_groups; ++group) {
      Ints sum[R][B], second[R][B];
      for (int r = 0; r < R; ++r) {
        const Ints offset = broadcast_int((kFlip - a.zero) * a.input_sums[of_row(a, row + r, group)]);
        for (int b = 0; b < B; ++b) {
          sum[r][b] = offset;
          second[r][b] = broadcast_int(0);
        }
      }
      for (int k = 0; k < a.group; k += kStep, x += kStep) {
        add_step(a, x, weights, sum, second);
        for (int b = 0; b < B; ++b) weights[b] += kLines * kLineBytes;
      }
      for (int r = 0; r < R; ++r)
        for (int b = 0; b < B; ++b) sum[r][b] = add(sum[r][b], kBits == 4 ? sixteenth(second[r][b]) : second[r][b]);
      add_group(a, row, group, blocks, sum, total);
    }
  }

 private:
  // sum + second (of 4 bits, second / 16) grow by code * x of kStep inner values.
  template <int R, int B>
  static inline void add_step(const Args& a, const int8_t* x, const uint8_t* const (&weights)[B], Ints (&sum)[R][B],
                              Ints (&second)[R][B]) {
    for (int line = 0; line < kLines; ++line)
      for (int b = 0; b < B; ++b) {
        const uint8_t* at = weights[b] + line * kLineBytes;
        prefetch_codes(at);
        Codes codes = load_codes(at);
        if constexpr (kBits == 4) {
          Codes high;
          split_nibbles(codes, codes, high);
          for (int r = 0; r < R; ++r) {
            const int8_t* inputs = x + r * a.input_stride + line * 8;
            sum[r][b] = dot(codes, load_quad(inputs), sum[r][b]);
            second[r][b] = dot(high, load_quad(inputs + 4), second[r][b]);
          }
        } else {
          if constexpr (kSignedDot) codes = flip_signs(codes);
          Ints(&to)[R][B] = line % 2 ? second : sum;
          for (int r = 0; r < R; ++r) to[r][b] = dot(codes, load_quad(x + r * a.input_stride + line * 4), to[r][b]);
        }
      }
  }
};

template <int kBits>
static void matmul_quant_few(const QuantMatmulArgs& a, int row_begin, int row_end, int block_begin, int block_end) {
  const auto product = a.group % 32 == 0 ? matmul<QuantProduct<kBits, 32>> : matmul<QuantProduct<kBits, 16>>;
  product(a, row_begin, row_end, block_begin, block_end);
}

// The butterflies of the Hadamard transform: (a, b) -> (a + b, a - b) for values `half` apart.
static inline void scalar_butterflies(float* x, int length, int half) {
  for (int begin = 0; begin < length; begin += 2 * half)
    for (int i = begin; i < begin + half; ++i) {
      const float a = x[i], b = x[i + half];
      x[i] = a + b;
      x[i + half] = a - b;
    }
}

template <int kHalf>
static inline Vec butterflies_within(Vec x) {
  float signs[kLanes];
  for (int i = 0; i < kLanes; ++i) signs[i] = i & kHalf ? -1.0f : 1.0f;
  return fma(x, load(signs), swap_lanes<kHalf>(x));  // exact but for the one addition
}

// kRadix vectors, `stride` values apart, through the stages that stay among them; before, where they are neighbours,
// through those within each. So a row passes its registers a third as often as there are stages. `next` is asked for, a
// line at a time, so that it waits for nobody.
template <int kRadix>
static inline void hadamard_pass(float* x, const float* next, int length, int stride, float scale) {
  const bool neighbours = stride == kLanes;
  for (int begin = 0; begin < length; begin += kRadix * stride)
    for (int i = begin; i < begin + stride; i += kLanes) {
      Vec v[kRadix];
      for (int j = 0; j < kRadix; ++j) v[j] = load(x + i + j * stride);
      if (neighbours)
        for (int j = 0; j < kRadix; ++j) {
          __builtin_prefetch(next + i + j * stride);
          v[j] = butterflies_within<8>(butterflies_within<4>(butterflies_within<2>(butterflies_within<1>(v[j]))));
        }
      for (int half = 1; half < kRadix; half *= 2)
        for (int j = 0; j < kRadix; ++j)
          if (!(j & half)) {
            const Vec a = v[j], b = v[j + half];
            v[j] = add(a, b);
            v[j + half] = sub(a, b);
          }
      for (int j = 0; j < kRadix; ++j) store(x + i + j * stride, mul(v[j], broadcast(scale)));
    }
}

// In place, neighbours first. `next`: the values that are transformed after these.
static inline void hadamard(float* x, const float* next, int length) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(length));
  if (length < kLanes) {
    for (int half = 1; half < length; half *= 2) scalar_butterflies(x, length, half);
    for (int i = 0; i < length; ++i) x[i] *= scale;
    return;
  }
  int stride = kLanes;
  do {
    const int radix = length / stride < 8 ? length / stride : 8;
    const auto pass = radix == 8   ? hadamard_pass<8>
                      : radix == 4 ? hadamard_pass<4>
                      : radix == 2 ? hadamard_pass<2>
                                   : hadamard_pass<1>;
    pass(x, next, length, stride, stride * radix == length ? scale : 1.0f);
    stride *= radix;
  } while (stride < length);
}

// 16 values, zeros where fewer are left.
static inline Vec load_left(const float* x, int left) {
  if (left >= kLanes) return load(x);
  float padded[kLanes] = {};
  if (left > 0) std::memcpy(padded, x, sizeof(float) * left);
  return load(padded);
}

static inline void store_left(float* x, Vec values, int left) {
  if (left >= kLanes) return store(x, values);
  float padded[kLanes];
  store(padded, values);
  std::memcpy(x, padded, sizeof(float) * left);
}

// Across blocks: block i becomes the sum of factors[i][j] * block j, by ascending j. A count known when compiling keeps
// the blocks in registers.
template <int kCount>
static inline void mix_blocks(float* x, int length, int any_count, const float* factors) {
  const int count = kCount ? kCount : any_count;
  for (int at = 0; at < length; at += kLanes) {
    Vec blocks[kCount ? kCount : kMaxMixedBlocks];
    for (int j = 0; j < count; ++j) blocks[j] = load_left(x + j * length + at, length - at);
    for (int i = 0; i < count; ++i) {
      const float* of_block = factors + i * count;
      Vec sum = mul(blocks[0], broadcast(of_block[0]));
      for (int j = 1; j < count; ++j) sum = fma(blocks[j], broadcast(of_block[j]), sum);
      store_left(x + i * length + at, sum, length - at);
    }
  }
}

// `count` values to `group` codes, the rest of them 0. In a long group, several chains of maxima and sums spare each
// the wait for the one before. `next`: the values that are quantized after these, asked for a line at a time.
template <int kChains>
static inline void quantize_group(const float* x, const float* next, int count, int group, int8_t* codes, float* scale,
                                  int32_t* sum) {
  Vec largest_of[kChains], not_finite[kChains];
  for (int c = 0; c < kChains; ++c) largest_of[c] = not_finite[c] = zero();
  const auto see = [&](Vec values, int c) {
    largest_of[c] = max(largest_of[c], max(values, sub(zero(), values)));
    not_finite[c] = fma(values, zero(), not_finite[c]);  // NaN from NaN or an infinity
  };
  int i = 0;
  for (; i + kChains * kLanes <= count; i += kChains * kLanes)
    for (int c = 0; c < kChains; ++c) {
      __builtin_prefetch(next + i + c * kLanes);
      see(load(x + i + c * kLanes), c);
    }
  for (; i < count; i += kLanes) see(load_left(x + i, count - i), 0);
  for (int c = 1; c < kChains; ++c) {
    largest_of[0] = max(largest_of[0], largest_of[c]);
    not_finite[0] = add(not_finite[0], not_finite[c]);
  }
  const float largest = reduce_max(largest_of[0]);
  const bool finite = reduce_add(not_finite[0]) == 0;
  *sum = 0;
  *scale = !finite ? __builtin_nanf("") : largest < kSmallestQuantized ? 0.0f : largest / 127.0f;
  if (!finite || largest < kSmallestQuantized) {
    std::memset(codes, 0, group);
    return;
  }
  const Vec inverse = broadcast(127.0f / largest);
  const Vec magic = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer, ties to even
  Vec sum_of[kChains];                       // integers below 2^24: exact in any order
  for (int c = 0; c < kChains; ++c) sum_of[c] = zero();
  const auto quantize = [&](Vec values, int at, int c) {
    const Vec code = sub(add(mul(values, inverse), magic), magic);
    store_codes(codes + at, code);
    sum_of[c] = add(sum_of[c], code);
  };
  for (i = 0; i + kChains * kLanes <= count; i += kChains * kLanes)
    for (int c = 0; c < kChains; ++c) quantize(load(x + i + c * kLanes), i + c * kLanes, c);
  for (; i < group; i += kLanes) quantize(load_left(x + i, count - i), i, 0);
  for (int c = 1; c < kChains; ++c) sum_of[0] = add(sum_of[0], sum_of[c]);
  *sum = static_cast<int32_t>(reduce_add(sum_of[0]));
}

static inline void quantize_group(const float* x, const float* next, int count, int group, int8_t* codes, float* scale,
                                  int32_t* sum) {
  constexpr int kLong = 256;
  (group < kLong ? quantize_group<1> : quantize_group<4>)(x, next, count, group, codes, scale, sum);
}

static inline void sum_parts(const int8_t* codes, PartSums* sums) {
  for (int part = 0; part < 16; ++part) {
    int32_t sum = 0;
    for (int i = 0; i < 16; ++i) sum += codes[16 * part + i];
    sums->of_16[part] = sum;
  }
  constexpr int kOrder[] = {0, 2, 1, 3, 4, 6, 5, 7};  // PartSums tells why
  for (int i = 0; i < 8; ++i)
    sums->of_32[i] = static_cast<int16_t>(sums->of_16[2 * kOrder[i]] + sums->of_16[2 * kOrder[i] + 1]);
}

static void quantize(const QuantizeArgs& a, int row_begin, int row_end) {
  for (int row = row_begin; row < row_end; ++row) {
    float* x = a.input + row * a.input_stride;
    if (a.hadamard > 1)
      for (int begin = 0; begin < a.width; begin += a.hadamard) {
        const int after = begin + a.hadamard;
        hadamard(x + begin, x + (after < a.width ? after : a.input_stride), a.hadamard);
      }
    if (a.mixing) {
      const int count = a.width / a.hadamard;
      (count == 3 ? mix_blocks<3> : mix_blocks<0>)(x, a.hadamard, count, a.mixing);
    }
    const float* next = a.hadamard > 1 ? x : x + a.input_stride;  // the transform has asked for the next row
    for (int g = 0; g < a.num_groups; ++g) {
      const int begin = g * a.group, left = a.width - begin, count = left < 0 ? 0 : left < a.group ? left : a.group;
      const size_t of_row = static_cast<size_t>(row) * a.num_groups + g;
      quantize_group(x + begin, next + begin, count, a.group, a.codes + row * a.codes_stride + begin, a.scales + of_row,
                     a.sums + of_row);
      if (a.part_sums) sum_parts(a.codes + row * a.codes_stride + begin, a.part_sums + of_row);
    }
  }
}

}  // namespace ridgeline::RIDGELINE_ISA
