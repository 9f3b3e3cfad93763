#include "matrix.h"

#include "checks.h"

namespace ridgeline {

Matrix::Matrix(int outputs, int inner, Format format)
    : outputs_(outputs),
      inner_(inner),
      padded_inner_(format == Format::kBf16 ? round_up(inner, kBf16Tile) : inner),
      num_blocks_(round_up(outputs, kLanes) / kLanes),
      format_(format),
      memory_(static_cast<size_t>(num_blocks_) * kLanes * padded_inner_ * (format == Format::kBf16 ? 2 : 4)) {}

size_t Matrix::index(int output, int k) const {
  const size_t block = static_cast<size_t>(output / kLanes) * padded_inner_ * kLanes;
  const int lane = output % kLanes;
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

void Matrix::unpack_row(int output, float* out) const {
  for (int k = 0; k < inner_; ++k) {
    out[k] = format_ == Format::kBf16 ? from_bf16(memory_.as<uint16_t>()[index(output, k)])
                                      : memory_.as<float>()[index(output, k)];
  }
}

}  // namespace ridgeline
