// The ops of a step that prepare and take matrix products; see executor.cpp for the step itself.
#include <algorithm>

#include "checks.h"
#include "executor.h"
#include "executor_shares.h"

namespace ridgeline {

namespace {

constexpr int kRowsPerTask = 96;  // of a matrix product: a multiple of every register block
constexpr int kBlocksPerTask = 4;

}  // namespace

void Executor::embed(Shares& shares, const Op& op, int rows) {
  shares.run(rows, [&](int row) { matrices_[op.matrix].unpack_row(token_ids_[row], buffers_[op.out].row(row)); });
}

void Executor::norm(Shares& shares, const Op& op, int rows) {
  const Buffer &in = buffers_[op.source], &out = buffers_[op.out];
  const NormArgs args{in.row(0),        in.stride, vectors_[op.vector].as<float>(), out.data(), out.stride, op.width,
                      static_cast<int>(in.stride), shape_.norm_eps, out.format};
  constexpr int kRows = 8;
  shares.run(ceil_div(rows, kRows),
             [&](int task) { kernels_.norm(args, task * kRows, std::min(rows, (task + 1) * kRows)); });
}

void Executor::matmul(Shares& shares, const Op& op, int rows) {
  const Matrix& m = matrices_[op.matrix];
  const Buffer &in = buffers_[op.source], &out = buffers_[op.out];
  const int blocks = op.epilogue == Epilogue::kSiluMul ? m.num_blocks() / 2 : m.num_blocks();
  const MatmulArgs args{in.data(), in.stride, m.data(), m.padded_inner(), blocks,
                        op.vector < 0 ? nullptr : vectors_[op.vector].as<float>(),
                        out.data(), out.stride, op.epilogue, out.format};
  const auto kernel = format_ == Format::kBf16 ? kernels_.matmul_bf16 : kernels_.matmul_f32;
  const int row_tasks = ceil_div(rows, kRowsPerTask);
  // neighbouring tasks share their weights, which the second reads from the cache
  shares.run(row_tasks * ceil_div(blocks, kBlocksPerTask), [&](int task) {
    const int row = task % row_tasks * kRowsPerTask, block = task / row_tasks * kBlocksPerTask;
    kernel(args, row, std::min(rows, row + kRowsPerTask), block, std::min(blocks, block + kBlocksPerTask));
  });
}

}  // namespace ridgeline
