#include "matrix.h"

#include <algorithm>
#include <numeric>

#include "checks.h"
#include "half.h"

namespace ridgeline {

namespace {

// std::invalid_argument for numbers that their bits do not hold.
void require_fit(TwoLevel form, const SuperBlock& block) {
  const int largest = *std::max_element(block.codes, block.codes + kSuperBlock);
  require(largest < 1 << form.bits,
          "code " + std::to_string(largest) + " needs more than " + std::to_string(form.bits) + " bits");
  if (!form.has_minima()) return;
  for (int i = 0; i < form.subgroups(); ++i)
    require(block.scales[i] >= 0 && block.scales[i] < 64 && block.minima[i] < 64,
            "subscale " + std::to_string(block.scales[i]) + " and subminimum " + std::to_string(block.minima[i]) +
                ": 6 bits hold 0..63");
}

}  // namespace

Matrix::Matrix(int outputs, int inner, Format format)
    : outputs_(outputs),
      inner_(inner),
      padded_inner_(format == Format::kBf16 ? round_up(inner, kBf16Tile) : inner),
      num_blocks_(round_up(outputs, kLanes) / kLanes),
      format_(format),
      memory_(static_cast<size_t>(num_blocks_) * kLanes * padded_inner_ * (format == Format::kBf16 ? 2 : 4)) {}

PaddedGroups::PaddedGroups(int values, int group_len) {
  const bool whole = group_len >= values;
  require(values <= kMaxQuantizedInner, "an inner dimension of " + std::to_string(values) +
                                            ": sums fit 32 bits up to " + std::to_string(kMaxQuantizedInner));
  require(whole || (group_len > 0 && group_len % 16 == 0),
          "groups of " + std::to_string(group_len) + ": a multiple of 16 is needed");
  inner = round_up(values, whole ? kQuantizedTile : std::lcm(group_len, kQuantizedTile));
  group = whole ? inner : group_len;
}

Matrix::Matrix(int outputs, int inner, const Grouping& grouping)
    : outputs_(outputs), inner_(inner), num_blocks_(round_up(outputs, kLanes) / kLanes), grouping_(grouping) {
  if (grouping.two_level) {
    const TwoLevel form{grouping.bits};
    require(grouping.bits >= 4 && grouping.bits <= 6 && grouping.group == kSuperBlock && inner % kSuperBlock == 0 &&
                grouping.zero == form.zero() && grouping.minima == form.has_minima(),
            "two levels of scales: rows of super-blocks of 256, of 4 or 5 bits with minima or of 6 bits around 32");
  } else {
    require(grouping.bits == 4 || grouping.bits == 8, std::to_string(grouping.bits) + " bits a weight: 4 or 8");
  }
  require(grouping.zero >= 0 && grouping.zero < 1 << grouping.bits,
          "zero " + std::to_string(grouping.zero) + " is no code of " + std::to_string(grouping.bits) + " bits");
  const PaddedGroups padded(inner, grouping.group);
  padded_inner_ = padded.inner;
  grouping_->group = padded.group;
  memory_ = Memory(code_bytes() + scale_bytes() * (grouping.minima ? 2 : 1));
}

size_t Matrix::code_bytes() const {
  if (grouping_->two_level) return static_cast<size_t>(num_blocks_) * num_groups() * TwoLevel{grouping_->bits}.bytes();
  return static_cast<size_t>(num_blocks_) * kLanes * padded_inner_ * grouping_->bits / 8;
}

size_t Matrix::scale_bytes() const {
  return static_cast<size_t>(num_blocks_) * kLanes * num_groups() * (grouping_->half_scales ? 2 : 4);
}

size_t Matrix::scale_index(int output, int group) const {
  return (static_cast<size_t>(output / kLanes) * num_groups() + group) * kLanes + output % kLanes;
}

void Matrix::set_scale(size_t offset, size_t index, float value) {
  char* scales = memory_.as<char>() + offset;
  if (!grouping_->half_scales) {
    reinterpret_cast<float*>(scales)[index] = value;
    return;
  }
  const uint16_t half = exact_to_half(value);
  if (from_half(half) != value && value == value)
    throw std::invalid_argument("fp16 does not hold the scale " + std::to_string(value));
  reinterpret_cast<uint16_t*>(scales)[index] = half;
}

float Matrix::scale(size_t offset, size_t index) const {
  const char* scales = memory_.as<char>() + offset;
  return grouping_->half_scales ? from_half(reinterpret_cast<const uint16_t*>(scales)[index])
                                : reinterpret_cast<const float*>(scales)[index];
}

size_t Matrix::index(int output, int k) const {
  const size_t block = static_cast<size_t>(output / kLanes) * padded_inner_ * kLanes;
  const int lane = output % kLanes;
  if (grouping_) {
    const int step = 32 / grouping_->bits;  // codes in four bytes; of 4 bits, the index of the byte
    return block * grouping_->bits / 8 + static_cast<size_t>(k / step) * 4 * kLanes + lane * 4 + k % 4;
  }
  if (format_ == Format::kBf16) return block + static_cast<size_t>(k / 2) * 2 * kLanes + lane * 2 + k % 2;
  return block + static_cast<size_t>(k) * kLanes + lane;
}

void Matrix::pack(const float* values, int first, int rows) {
  for (int r = 0; r < rows; ++r) {
    const float* row = values + static_cast<size_t>(r) * inner_;
    for (int k = 0; k < inner_; ++k) {
      if (format_ == Format::kBf16) {
        memory_.as<uint16_t>()[index(first + r, k)] = to_bf16(row[k]);
      } else {
        memory_.as<float>()[index(first + r, k)] = row[k];
      }
    }
  }
}

void Matrix::pack_bf16(const uint16_t* bits, int first, int rows) {
  for (int r = 0; r < rows; ++r) {
    const uint16_t* row = bits + static_cast<size_t>(r) * inner_;
    for (int k = 0; k < inner_; ++k) {
      if (format_ == Format::kBf16) {
        memory_.as<uint16_t>()[index(first + r, k)] = row[k];
      } else {
        memory_.as<float>()[index(first + r, k)] = from_bf16(row[k]);
      }
    }
  }
}

void Matrix::pack_groups(const GroupedRows& from, int first, int rows) {
  const int num_scales = ceil_div(inner_, grouping_->group);
  for (int r = 0; r < rows; ++r) {
    if (grouping_->two_level) {
      pack_super_blocks(from, r, first + r);
    } else {
      pack_codes(from.codes + static_cast<size_t>(r) * inner_, first + r);
    }
    for (int g = 0; g < num_scales; ++g) {
      const size_t at = static_cast<size_t>(r) * num_scales + g, to = scale_index(first + r, g);
      set_scale(code_bytes(), to, from.scales[at]);
      if (grouping_->minima) set_scale(code_bytes() + scale_bytes(), to, from.minima[at]);
    }
  }
}

uint8_t* Matrix::super_block(int output, int group) const {
  const size_t index = static_cast<size_t>(output / kLanes) * num_groups() + group;
  return memory_.as<uint8_t>() + index * TwoLevel{grouping_->bits}.bytes();
}

void Matrix::pack_super_blocks(const GroupedRows& from, int row, int output) {
  const TwoLevel form{grouping_->bits};
  for (int g = 0; g < num_groups(); ++g) {
    const size_t at = static_cast<size_t>(row) * num_groups() + g;
    SuperBlock block{};
    std::copy_n(from.codes + at * kSuperBlock, kSuperBlock, block.codes);
    std::copy_n(from.subscales + at * form.subgroups(), form.subgroups(), block.scales);
    if (form.has_minima()) std::copy_n(from.subminima + at * form.subgroups(), form.subgroups(), block.minima);
    require_fit(form, block);
    ridgeline::pack(form, block, output % kLanes, super_block(output, g));
  }
}

// The padding is filled with codes of zero.
void Matrix::pack_codes(const uint8_t* codes, int output) {
  uint8_t* to = memory_.as<uint8_t>() + index(output, 0);
  const auto code = [&](int k) { return static_cast<uint8_t>(k < inner_ ? codes[k] : grouping_->zero); };
  if (grouping_->bits == 8) {
    for (int k = 0; k < padded_inner_; ++k) to[k / 4 * 4 * kLanes + k % 4] = code(k);
    return;
  }
  for (int k = 0; k < padded_inner_; ++k) {
    if (code(k) > 15) throw std::invalid_argument("code " + std::to_string(code(k)) + " needs more than 4 bits");
    uint8_t& pair = to[k / 8 * 4 * kLanes + k % 4];
    pair = k % 8 < 4 ? (pair & 0xF0) | code(k) : (pair & 0x0F) | code(k) << 4;
  }
}

void Matrix::unpack_groups(int output, float* out) const {
  const uint8_t* codes = memory_.as<uint8_t>() + index(output, 0);
  const int group = grouping_->group, bits = grouping_->bits;
  for (int g = 0; g * group < inner_; ++g) {
    const size_t at = scale_index(output, g);
    const float unit = scale(code_bytes(), at);
    const float minimum = grouping_->minima ? scale(code_bytes() + scale_bytes(), at) : 0.0f;
    for (int k = g * group; k < std::min(inner_, (g + 1) * group); ++k) {
      const uint8_t byte = codes[k * bits / 32 * 4 * kLanes + k % 4];
      const int code = bits == 8 ? byte : k % 8 < 4 ? byte & 15 : byte >> 4;
      out[k] = unit * static_cast<float>(code - grouping_->zero);
      if (grouping_->minima) out[k] += minimum;
    }
  }
}

void Matrix::unpack_super_blocks(int output, float* out) const {
  const TwoLevel form{grouping_->bits};
  for (int g = 0; g < num_groups(); ++g, out += kSuperBlock) {
    const SuperBlock block = unpack(form, super_block(output, g), output % kLanes);
    const size_t at = scale_index(output, g);
    const float unit = scale(code_bytes(), at);
    const float minimum = form.has_minima() ? scale(code_bytes() + scale_bytes(), at) : 0.0f;
    for (int k = 0; k < kSuperBlock; ++k) {
      const int subgroup = k / form.subgroup();
      out[k] = unit * static_cast<float>(block.scales[subgroup]) * static_cast<float>(block.codes[k] - form.zero());
      if (form.has_minima()) out[k] += minimum * static_cast<float>(block.minima[subgroup]);
    }
  }
}

void Matrix::unpack_row(int output, float* out) const {
  if (grouping_ && grouping_->two_level) return unpack_super_blocks(output, out);
  if (grouping_) return unpack_groups(output, out);
  for (int k = 0; k < inner_; ++k) {
    out[k] = format_ == Format::kBf16 ? from_bf16(memory_.as<uint16_t>()[index(output, k)])
                                      : memory_.as<float>()[index(output, k)];
  }
}

QuantMatmulArgs quant_matmul_args(const Matrix& matrix) {
  const Grouping& grouping = matrix.grouping();
  QuantMatmulArgs args{};
  args.weights = static_cast<const uint8_t*>(matrix.data());
  args.scales = matrix.scales();
  args.minima = matrix.minima();
  args.half_scales = grouping.half_scales;
  args.bits = grouping.bits;
  args.two_level = grouping.two_level;
  args.zero = grouping.zero;
  args.group = grouping.group;
  args.num_groups = matrix.num_groups();
  args.padded_inner = matrix.padded_inner();
  args.num_blocks = matrix.num_blocks();
  return args;
}

}  // namespace ridgeline
