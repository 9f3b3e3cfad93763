// Products of 8-bit activations with weights of two levels of scales (two_level.h) over Vec.
//
// All sums within a super-block are integers that fit an int32, so they are the same in any order; what is rounded is
// done super-block after super-block in ascending order:
//
//   s = sum over subgroups of subscale * sum((code - zero) * x)
//   m = sum over subgroups of subminimum * sum(x)
//   total = fma(s, x_scale * scale, total)                 from 0
//   total = fma(m, x_scale * minimum, total)               where there are minima
#pragma once
#include <utility>

#include "kernels_matmul.h"
#include "kernels_quant.h"
#include "two_level.h"

namespace ridgeline::RIDGELINE_ISA {

// A line of packed weights; those that are read later are asked for.
static inline Codes load_line(const uint8_t* line) {
  prefetch_codes(line);
  return load_codes(line);
}

// The subgroups' integers of a super-block, four to a register.
template <int kBits>
struct Subscales {
  static constexpr TwoLevel kForm{kBits};
  Codes scales[kForm.subgroups() / 4], minima[2];

  explicit Subscales(const uint8_t* lines) {
    if constexpr (!kForm.has_minima()) {
      for (int i = 0; i < 4; ++i) scales[i] = load_line(lines + i * kLineBytes);
    } else {
      const Codes upper_scales = load_line(lines), upper_minima = load_line(lines + kLineBytes);
      const Codes lower = load_line(lines + 2 * kLineBytes);
      scales[0] = byte_bits<0, 6>(upper_scales);
      minima[0] = byte_bits<0, 6>(upper_minima);
      scales[1] = with_high_bits<6, 2>(byte_bits<0, 4>(lower), upper_scales);
      minima[1] = with_high_bits<6, 2>(byte_bits<4, 4>(lower), upper_minima);
    }
  }
};

// use(line, low, high): the codes 8 line + 0 .. 3 and 8 line + 4 .. 7 of a subgroup of 16 outputs.
template <int kBits, class F>
[[gnu::always_inline]] static inline void each_line(const uint8_t* lines, F use) {
  constexpr TwoLevel kForm{kBits};
  constexpr int kUpper = kForm.high_bits();
  [&]<int... I>(std::integer_sequence<int, I...>) {
    Codes upper;
    if constexpr (kUpper > 0) upper = load_line(lines + kForm.low_lines() * kLineBytes);
    const auto line = [&]<int L>(std::integral_constant<int, L>) __attribute__((always_inline)) {
      const Codes pairs = load_line(lines + L * kLineBytes);
      Codes low = byte_bits<0, 4>(pairs), high = byte_bits<4, 4>(pairs);
      if constexpr (kUpper > 0) {
        low = with_high_bits<2 * L * kUpper, kUpper>(low, upper);
        high = with_high_bits<(2 * L + 1) * kUpper, kUpper>(high, upper);
      }
      use(L, low, high);
    };
    (line(std::integral_constant<int, I>{}), ...);
  }(std::make_integer_sequence<int, kForm.low_lines()>{});
}

template <int kBits>
struct TwoLevelProduct {
  using Args = QuantMatmulArgs;
  static constexpr int kRows = kRowsQuant, kBlocks = 1;
  static constexpr TwoLevel kForm{kBits};

  template <int R, int B>
  static inline void run(const Args& a, int row, const int (&blocks)[B], Vec (&total)[R][B]) {
    for (int r = 0; r < R; ++r)
      for (int b = 0; b < B; ++b) total[r][b] = zero();
    for (int group = 0; group < a.num_groups; ++group)
      for (int b = 0; b < B; ++b)
        add_super_block<R, B>(a, row, group, static_cast<size_t>(blocks[b]) * a.num_groups + group, b, total);
  }

 private:
  template <int R, int B>
  static inline void add_super_block(const Args& a, int row, int group, size_t of_block, int b, Vec (&total)[R][B]) {
    const uint8_t* lines = a.weights + of_block * kForm.bytes();
    const Subscales<kBits> subscales(lines);
    lines += kForm.scale_bytes();
    const PartSums* parts[R];
    const int8_t* x[R];
    Ints sum[R];
    for (int r = 0; r < R; ++r) {
      parts[r] = a.part_sums + of_row(a, row + r, group);
      x[r] = a.input + (row + r) * a.input_stride + group * kSuperBlock;
      sum[r] = broadcast_int(0);
    }
    for (int begin = 0; begin < kForm.subgroups(); begin += 4) {
      Codes four = subscales.scales[begin / 4];
      for (int subgroup = begin; subgroup < begin + 4; ++subgroup, lines += kForm.subgroup_bytes()) {
        Ints products[R];
        for (int r = 0; r < R; ++r)
          products[r] = broadcast_int(kForm.zero() == 0 ? 0 : -kForm.zero() * parts[r]->of_16[subgroup]);
        each_line<kBits>(lines, [&](int line, Codes low, Codes high) __attribute__((always_inline)) {
          for (int r = 0; r < R; ++r) {
            const int8_t* at = x[r] + subgroup * kForm.subgroup() + line * 8;
            products[r] = dot(high, load_quad(at + 4), dot(low, load_quad(at), products[r]));
          }
        });
        for (int r = 0; r < R; ++r) sum[r] = multiply_add(products[r], lowest_bytes(four), sum[r]);
        four = next_bytes(four);
      }
    }
    fold(a, row, group, of_block, subscales, sum, b, total);
  }

  template <int R, int B>
  static inline void fold(const Args& a, int row, int group, size_t of_block, const Subscales<kBits>& subscales,
                          const Ints (&sum)[R], int b, Vec (&total)[R][B]) {
    const Vec scales = load_scales(a.scales, a.half_scales, of_block * kLanes);
    for (int r = 0; r < R; ++r) {
      const Vec input_scale = broadcast(a.input_scales[of_row(a, row + r, group)]);
      total[r][b] = fma(to_floats(sum[r]), mul(input_scale, scales), total[r][b]);
    }
    if constexpr (!kForm.has_minima()) return;
    const Vec minima = load_scales(a.minima, a.half_scales, of_block * kLanes);
    for (int r = 0; r < R; ++r) {
      const int16_t* x = a.part_sums[of_row(a, row + r, group)].of_32;
      const Ints of_minima = dot_words(subscales.minima[1], x + 4, dot_words(subscales.minima[0], x, broadcast_int(0)));
      const Vec input_scale = broadcast(a.input_scales[of_row(a, row + r, group)]);
      total[r][b] = fma(to_floats(of_minima), mul(input_scale, minima), total[r][b]);
    }
  }
};

static void matmul_two_level(const QuantMatmulArgs& a, int row_begin, int row_end, int block_begin, int block_end) {
  const auto kernel = a.bits == 4   ? matmul<TwoLevelProduct<4>>
                      : a.bits == 5 ? matmul<TwoLevelProduct<5>>
                                    : matmul<TwoLevelProduct<6>>;
  kernel(a, row_begin, row_end, block_begin, block_end);
}

}  // namespace ridgeline::RIDGELINE_ISA
