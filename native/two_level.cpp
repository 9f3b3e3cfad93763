#include "two_level.h"

namespace ridgeline {

namespace {

// The byte with the low bits of code k of a lane, and the one with its upper bits.
int low_byte(TwoLevel form, int k, int lane) {
  const int subgroup = form.scale_bytes() + k / form.subgroup() * form.subgroup_bytes();
  return subgroup + k % form.subgroup() / 8 * kLineBytes + lane * 4 + k % 4;
}
int high_byte(TwoLevel form, int k, int lane) {
  const int subgroup = form.scale_bytes() + k / form.subgroup() * form.subgroup_bytes();
  return subgroup + form.low_lines() * kLineBytes + lane * 4 + k % 4;
}
int high_shift(TwoLevel form, int k) { return k % form.subgroup() / 4 * form.high_bits(); }

}  // namespace

void pack(TwoLevel form, const SuperBlock& from, int lane, uint8_t* lines) {
  const auto at = [&](int line, int i) -> uint8_t& { return lines[line * kLineBytes + lane * 4 + i]; };
  for (int i = 0; i < 4; ++i) {
    if (!form.has_minima()) {
      for (int line = 0; line < 4; ++line) at(line, i) = static_cast<uint8_t>(from.scales[line * 4 + i]);
      continue;
    }
    const int scale = from.scales[4 + i], minimum = from.minima[4 + i];
    at(0, i) = static_cast<uint8_t>(from.scales[i] | scale >> 4 << 6);
    at(1, i) = static_cast<uint8_t>(from.minima[i] | minimum >> 4 << 6);
    at(2, i) = static_cast<uint8_t>((scale & 15) | (minimum & 15) << 4);
  }
  for (int k = 0; k < kSuperBlock; k += 8)
    for (int i = k; i < k + 4; ++i)
      lines[low_byte(form, i, lane)] = static_cast<uint8_t>((from.codes[i] & 15) | from.codes[i + 4] << 4);
  if (form.high_bits() == 0) return;
  for (int k = 0; k < kSuperBlock; ++k) {
    uint8_t& byte = lines[high_byte(form, k, lane)];
    const int shift = high_shift(form, k);
    byte = static_cast<uint8_t>((shift == 0 ? 0 : byte) | from.codes[k] >> 4 << shift);
  }
}

SuperBlock unpack(TwoLevel form, const uint8_t* lines, int lane) {
  SuperBlock to{};
  const auto at = [&](int line, int i) { return lines[line * kLineBytes + lane * 4 + i]; };
  for (int i = 0; i < 4; ++i) {
    if (!form.has_minima()) {
      for (int line = 0; line < 4; ++line) to.scales[line * 4 + i] = static_cast<int8_t>(at(line, i));
      continue;
    }
    to.scales[i] = at(0, i) & 63;
    to.minima[i] = at(1, i) & 63;
    to.scales[4 + i] = static_cast<int8_t>((at(2, i) & 15) | at(0, i) >> 6 << 4);
    to.minima[4 + i] = static_cast<uint8_t>(at(2, i) >> 4 | at(1, i) >> 6 << 4);
  }
  for (int k = 0; k < kSuperBlock; ++k) {
    const int low = lines[low_byte(form, k, lane)] >> (k % 8 < 4 ? 0 : 4) & 15;
    const int high = form.high_bits() == 0 ? 0 : lines[high_byte(form, k, lane)] >> high_shift(form, k);
    to.codes[k] = static_cast<uint8_t>(low | (high & ((1 << form.high_bits()) - 1)) << 4);
  }
  return to;
}

}  // namespace ridgeline
