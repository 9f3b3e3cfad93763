// The ops of a step that prepare and take matrix products; see executor.cpp for the step itself.
#include <algorithm>
#include <cmath>

#include "checks.h"
#include "executor.h"
#include "product_tasks.h"

namespace ridgeline {

namespace {

constexpr int kRowsInParts = 96;  // of a product that waits for its weights: each thread reads one stream of them

}  // namespace

template <class Args>
bool Executor::run_product(Shares& shares, const Op& op, const Args& args, ProductKernel<Args> kernel, int rows,
                           size_t row_bytes) {
  if (op.kind == Kind::kLogits)
    return shares.run_in_parts(ceil_div(args.num_blocks, kTopBlocks), 1, [&](int begin, int end) {
      prepare(shares, rows);
      kernel(args, 0, rows, begin * kTopBlocks, std::min(end * kTopBlocks, args.num_blocks));
      keep_maxima(op, rows, begin, end);
    });
  if (rows <= kRowsInParts)
    return shares.run_in_parts(args.num_blocks, ProductTasks::kBlocks, [&](int begin, int end) {
      prepare(shares, rows);
      kernel(args, 0, rows, begin, end);
    });
  const ProductTasks tasks(rows, args.num_blocks, row_bytes);
  return shares.run(tasks.count(), [&](int task) { tasks.run(task, args, kernel); });
}

// Of logits that were just written, and are still in the cache. Padding is no token.
void Executor::keep_maxima(const Op& op, int rows, int begin, int end) {
  const Buffer& out = buffers_[op.out];
  const int first = begin * kTopIds, last = std::min(end * kTopIds, round_up(shape_.vocab, kLanes));
  for (int row = 0; row < rows; ++row) {
    float* logits = out.row(row);
    if (last > shape_.vocab) std::fill(logits + shape_.vocab, logits + last, -INFINITY);
    kernels_.block_maxima(logits + first, last - first, logit_maxima(op, row) + begin);
  }
}

bool Executor::embed(Shares& shares, const Op& op, int rows) {
  const Matrix& m = matrices_[op.matrix];
  const Buffer& out = buffers_[op.out];
  return shares.run(rows, [&](int row) {
    m.unpack_row(token_ids_[row], out.row(row));
    // products that are added to a row also write its padding, where one that is not finite would stay
    std::fill(out.row(row) + m.inner(), out.row(row) + out.stride, 0.0f);
  });
}

bool Executor::norm(Shares& shares, const Op& op, int rows) {
  float* scratch = scratch_[shares.thread()].as<float>();
  return shares.run(ceil_div(rows, kNormRows), [&](int task) {
    const int begin = task * kNormRows;
    norm_rows(op, scratch, begin, std::min(rows, begin + kNormRows), begin);
  });
}

// Whether each thread prepares the inputs of products for itself, in the buffer's rows from kOwnRows * thread on, when
// it gets its first task of them. The op's own input still stands then, as require_product makes sure.
bool Executor::prepares_alone(int rows) const {
  return rows <= kOwnRows && kOwnRows * pool_.size() <= std::min(max_rows_, kLogitRows);
}

// Before a task of a product: what this thread put off.
void Executor::prepare(Shares& shares, int rows) {
  const int op = shares.take_preparation();
  if (op < 0) return;
  const double start_s = profiling_ ? now_s() : 0;
  prepare_own_rows(ops_[op], shares.thread(), rows);
  if (profiling_) shares.note_preparation(op, now_s() - start_s);
}

void Executor::prepare_own_rows(const Op& op, int thread, int rows) {
  float* scratch = scratch_[thread].as<float>();
  const int first = thread * kOwnRows;
  if (op.kind == Kind::kNorm) return norm_rows(op, scratch, 0, rows, first);
  const Buffer& in = buffers_[op.source];
  QuantizeArgs args = quantize_args(buffers_[op.out], first);
  args.input = scratch;
  args.input_stride = in.stride;
  std::copy_n(in.row(0), rows * in.stride, args.input);  // others read these rows, which a transform would change
  kernels_.quantize(args, 0, rows);
}

void Executor::norm_rows(const Op& op, float* scratch, int row_begin, int row_end, int to_row) {
  const Buffer& in = buffers_[op.source];
  NormArgs args{in.row(0), in.stride,        vectors_[op.vector].as<float>(), nullptr, 0, op.width,
                round_up(in.width, kLanes),   shape_.norm_eps, Format::kF32};
  bool in_scratch = false;
  for (const int index : op.outs) {
    const Buffer& out = buffers_[index];
    if (!out.is_quantized()) {
      const ptrdiff_t row_bytes = out.stride * element_bytes(out.format);
      args.out = out.memory.as<char>() + (to_row - row_begin) * row_bytes;
      args.out_stride = out.stride;
      args.out_format = out.format;
      kernels_.norm(args, row_begin, row_end);
      continue;
    }
    if (!in_scratch) {
      NormArgs to_scratch = args;
      to_scratch.input = in.row(row_begin);
      to_scratch.out = scratch;
      to_scratch.out_stride = in.stride;
      to_scratch.out_format = Format::kF32;
      kernels_.norm(to_scratch, 0, row_end - row_begin);
      in_scratch = true;
    }
    QuantizeArgs quantize = quantize_args(out, to_row);
    quantize.input = scratch;
    quantize.input_stride = in.stride;
    kernels_.quantize(quantize, 0, row_end - row_begin);
    in_scratch = out.hadamard == 1;  // a transform leaves its own values there
  }
}

// Rows from `first_row` on, but for the input.
QuantizeArgs Executor::quantize_args(const Buffer& out, int first_row) const {
  const size_t row = first_row, groups = out.num_groups;
  QuantizeArgs args{};
  args.width = out.width;
  args.hadamard = out.hadamard;
  args.mixing = out.mixing.empty() ? nullptr : out.mixing.data();
  args.group = out.group;
  args.num_groups = out.num_groups;
  args.codes = out.memory.as<int8_t>() + row * out.stride;
  args.codes_stride = out.stride;
  args.scales = out.scales.as<float>() + row * groups;
  args.sums = out.sums.as<int32_t>() + row * groups;
  args.part_sums = out.has_part_sums() ? out.part_sums.as<PartSums>() + row * groups : nullptr;
  return args;
}

bool Executor::quantize(Shares& shares, const Op& op, int rows) {
  const Buffer& in = buffers_[op.source];
  QuantizeArgs args = quantize_args(buffers_[op.out], 0);
  args.input = in.row(0);
  args.input_stride = in.stride;
  constexpr int kRows = 4;
  return shares.run(ceil_div(rows, kRows),
                    [&](int task) { kernels_.quantize(args, task * kRows, std::min(rows, (task + 1) * kRows)); });
}

bool Executor::matmul(Shares& shares, const Op& op, int rows) {
  const Matrix& m = matrices_[op.matrix];
  const Buffer &in = buffers_[op.source], &out = buffers_[op.out];
  const int blocks = op.epilogue == Epilogue::kSiluMul ? m.num_blocks() / 2 : m.num_blocks();
  const size_t first = in.prepared && prepares_alone(rows) ? shares.thread() * kOwnRows : 0;
  if (!in.prepared) shares.prepare_later(-1);  // what products were for of which this thread got no task
  const float* bias = op.vector < 0 ? nullptr : vectors_[op.vector].as<float>();
  if (m.is_quantized()) {
    QuantMatmulArgs args = quant_matmul_args(m);
    args.input = in.memory.as<int8_t>() + first * in.stride;
    args.input_stride = in.stride;
    args.input_scales = in.scales.as<float>() + first * in.num_groups;
    args.input_sums = in.sums.as<int32_t>() + first * in.num_groups;
    args.part_sums = in.has_part_sums() ? in.part_sums.as<PartSums>() + first * in.num_groups : nullptr;
    args.num_blocks = blocks;
    args.bias = bias;
    args.out = out.row(0) + op.column;
    args.out_stride = out.stride;
    args.epilogue = op.epilogue;
    const auto kernel = args.two_level ? kernels_.matmul_two_level : kernels_.matmul_quant;
    return run_product(shares, op, args, kernel, rows, in.stride);
  }
  void* to = out.memory.as<char>() + op.column * element_bytes(out.format);
  const MatmulArgs args{in.memory.as<char>() + first * in.stride * element_bytes(in.format), in.stride, m.data(), m.padded_inner(), blocks, bias, to, out.stride, op.epilogue,
                        out.format};
  return run_product(shares, op, args, m.format() == Format::kBf16 ? kernels_.matmul_bf16 : kernels_.matmul_f32, rows,
              in.stride * element_bytes(in.format));
}

}  // namespace ridgeline
