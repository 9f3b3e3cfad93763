// Weights in the order in which the kernels read them. See MatmulArgs for the layout.
#pragma once
#include <vector>

#include "bf16.h"
#include "kernels.h"
#include "memory.h"

namespace ridgeline {

class Matrix {
 public:
  Matrix(int outputs, int inner, Format format);

  // Packs `rows` x inner values, row-major, as outputs first .. first + rows - 1. Thread-safe for disjoint rows.
  void pack(const float* values, int first, int rows);
  void pack_bf16(const uint16_t* bits, int first, int rows);

  // One output's weights as fp32: the embedding of a token.
  void unpack_row(int output, float* out) const;

  const void* data() const { return memory_.as<void>(); }
  int outputs() const { return outputs_; }
  int inner() const { return inner_; }
  int padded_inner() const { return padded_inner_; }
  int num_blocks() const { return num_blocks_; }
  Format format() const { return format_; }
  size_t bytes() const { return memory_.bytes(); }

  // All that `pack` fills, as bytes that a file can keep and `Memory` can stand on when it is mapped.
  std::vector<Memory*> sections() { return {&memory_}; }

 private:
  size_t index(int output, int k) const;

  int outputs_, inner_, padded_inner_, num_blocks_;
  Format format_;
  Memory memory_;
};

}  // namespace ridgeline
