// Weights in the order in which the kernels read them. See MatmulArgs and QuantMatmulArgs for the layouts; a quantized
// matrix holds its codes, then its scales, then its minima in one piece of memory.
#pragma once
#include <optional>
#include <vector>

#include "bf16.h"
#include "kernels.h"
#include "memory.h"
#include "two_level.h"

namespace ridgeline {

constexpr int kQuantizedTile = 64;            // inner length of an AMX tile of codes
constexpr int kMaxQuantizedInner = 1 << 16;  // so that sums of products fit an int32

// How a row of `inner` values stands in memory in groups of `group`, or as one group where that is `inner` or more.
struct PaddedGroups {
  PaddedGroups(int inner, int group);  // throws std::invalid_argument

  int inner, group;  // padded
  int count() const { return inner / group; }
};

// How the weights of a quantized matrix are cut and stored.
struct Grouping {
  int bits;   // 4 or 8; of two levels 4, 5 or 6
  int zero;   // the code of 0, or of the minimum
  int group;  // inner values that share a scale, a multiple of 16; `inner` or more: all of them
  bool minima;
  bool half_scales;  // fp16 holds all scales and minima exactly
  bool two_level = false;  // groups are super-blocks, see two_level.h
};

// Rows to pack, row-major: codes [rows, inner], scales and minima [rows, groups], the minima null where there are none.
// Of two levels also the integers of each subgroup, [rows, subgroups].
struct GroupedRows {
  const uint8_t* codes;
  const float* scales;
  const float* minima;
  const int8_t* subscales = nullptr;
  const uint8_t* subminima = nullptr;
};

class Matrix {
 public:
  Matrix(int outputs, int inner, Format format);
  Matrix(int outputs, int inner, const Grouping& grouping);  // throws std::invalid_argument

  // Packs `rows` x inner values, row-major, as outputs first .. first + rows - 1. Thread-safe for disjoint rows.
  void pack(const float* values, int first, int rows);
  void pack_bf16(const uint16_t* bits, int first, int rows);

  // The same of a quantized matrix. Throws std::invalid_argument for a code or a scale that the grouping cannot hold.
  void pack_groups(const GroupedRows& from, int first, int rows);

  // One output's weights as fp32: the embedding of a token.
  void unpack_row(int output, float* out) const;

  const void* data() const { return memory_.as<void>(); }
  int outputs() const { return outputs_; }
  int inner() const { return inner_; }
  int padded_inner() const { return padded_inner_; }
  int num_blocks() const { return num_blocks_; }
  Format format() const { return format_; }  // of the products' input, unless quantized
  size_t bytes() const { return memory_.bytes(); }

  // All that `pack` fills, as bytes that a file can keep and `Memory` can stand on when it is mapped.
  std::vector<Memory*> sections() { return {&memory_}; }

  // Of a quantized matrix. `group` is padded to the whole of padded_inner where that is one group.
  bool is_quantized() const { return grouping_.has_value(); }
  const Grouping& grouping() const { return *grouping_; }
  int num_groups() const { return padded_inner_ / grouping_->group; }
  const void* scales() const { return memory_.as<char>() + code_bytes(); }
  const void* minima() const { return grouping_->minima ? memory_.as<char>() + code_bytes() + scale_bytes() : nullptr; }

 private:
  size_t index(int output, int k) const;
  void pack_codes(const uint8_t* codes, int output);
  void pack_super_blocks(const GroupedRows& from, int row, int output);
  uint8_t* super_block(int output, int group) const;
  void unpack_groups(int output, float* out) const;
  void unpack_super_blocks(int output, float* out) const;
  size_t code_bytes() const;
  size_t scale_bytes() const;
  size_t scale_index(int output, int group) const;
  void set_scale(size_t offset, size_t index, float value);
  float scale(size_t offset, size_t index) const;

  int outputs_, inner_, padded_inner_, num_blocks_;
  Format format_ = Format::kF32;
  std::optional<Grouping> grouping_;
  Memory memory_;
};

// A product with all outputs of `matrix`, but for input, bias and output.
QuantMatmulArgs quant_matmul_args(const Matrix& matrix);

}  // namespace ridgeline
