// How the K formats of GGUF stand in memory: 256 inner values, a super-block, share a scale and, in 4 and 5 bits, a
// minimum; each subgroup of them has a small integer that multiplies the scale, and one that multiplies the minimum:
//
//   value = scale * subscale * (code - zero) [+ minimum * subminimum]
//
//   4, 5 bits: 8 subgroups of 32; zero 0; subscales and subminima of 6 bits
//   6 bits:    16 subgroups of 16; zero 32; signed subscales of 8 bits, no minima
//
// A super-block of 16 outputs is one run of lines of [16 outputs][4 bytes], as many bits a weight as in the file:
//   of 4, 5 bits: three lines with the subgroups' integers, s of the scale, m of the minimum, at byte i = 0 .. 3
//     s[i] and above it the top two bits of s[4 + i]; m[i] and those of m[4 + i]; low four bits of s[4 + i] and m[4 + i]
//   of 6 bits: four lines, subscales 4n .. 4n + 3 in the nth
//   each subgroup: the low four bits of its codes as those of 4 bits stand in a QuantMatmulArgs; above 4 bits one line
//     more, whose byte i holds the upper bits of codes i, 4 + i, 8 + i ..., from its lowest bit on
// Scales and minima stand apart, as in a QuantMatmulArgs of groups of 256.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels.h"

namespace ridgeline {

constexpr int kSuperBlock = 256;
constexpr int kLineBytes = 4 * kLanes;

struct TwoLevel {
  int bits;

  constexpr int subgroup() const { return bits == 6 ? 16 : 32; }
  constexpr int subgroups() const { return kSuperBlock / subgroup(); }
  constexpr int zero() const { return bits == 6 ? 32 : 0; }
  constexpr bool has_minima() const { return bits < 6; }
  constexpr int high_bits() const { return bits - 4; }
  constexpr int low_lines() const { return subgroup() / 8; }
  constexpr int subgroup_bytes() const { return (low_lines() + (bits > 4)) * kLineBytes; }
  constexpr int scale_bytes() const { return (has_minima() ? 3 : 4) * kLineBytes; }
  constexpr int bytes() const { return scale_bytes() + subgroups() * subgroup_bytes(); }  // of 16 outputs
};

// One output's part of a super-block.
struct SuperBlock {
  uint8_t codes[kSuperBlock];
  int8_t scales[16];
  uint8_t minima[8];
};

void pack(TwoLevel form, const SuperBlock& from, int lane, uint8_t* lines);
SuperBlock unpack(TwoLevel form, const uint8_t* lines, int lane);

}  // namespace ridgeline
