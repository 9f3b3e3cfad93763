// What each op of a program has to do, for who compares its time with what the machine could do.
#include "checks.h"
#include "executor.h"

namespace ridgeline {

namespace {

std::string format_name(const Matrix& m) {
  if (!m.is_quantized()) return m.format() == Format::kBf16 ? "bf16" : "fp32";
  const Grouping& g = m.grouping();
  if (g.two_level) return {'q', static_cast<char>('0' + g.bits), '_', 'k'};
  const std::string bits = "int" + std::to_string(g.bits);
  return m.num_groups() == 1 ? bits : bits + "-g" + std::to_string(g.group) + (g.minima ? "-zp" : "");
}

}  // namespace

void Executor::profile(bool on) {
  require(!under_way_, "a step is under way");
  profiling_ = on;
  op_seconds_.resize(ops_.size());
}

// From the end of one loop to that of the next, so that the ops' times sum to the step's.
void Executor::sum_loop_times() {
  double before_s = started_s_;
  for (const LoopTime& time : loops_.times()) {
    if (time.end_s == 0) continue;  // without tasks
    if (time.op >= 0) op_seconds_[time.op] += time.end_s - before_s - time.prepare_s;
    if (time.prepared_op >= 0) op_seconds_[time.prepared_op] += time.prepare_s;
    before_s = time.end_s;
  }
}

double Executor::row_bytes(int buffer) const {
  const Buffer& b = buffers_.at(buffer);
  if (b.is_quantized()) {
    const size_t of_group = b.group + sizeof(float) + sizeof(int32_t) + (b.has_part_sums() ? sizeof(PartSums) : 0);
    return static_cast<double>(b.num_groups * of_group);
  }
  return static_cast<double>(b.width * element_bytes(b.format));
}

OpWork Executor::product_work(const char* kind, const Op& op) const {
  const Matrix& m = matrices_[op.matrix];
  OpWork work{kind, std::to_string(m.inner()) + " x " + std::to_string(m.outputs()), format_name(m)};
  work.step_bytes = static_cast<double>(m.bytes());
  work.row_flops = 2.0 * m.inner() * m.outputs();
  return work;
}

// Rows that pass through, in the format in which they leave.
OpWork Executor::row_work(const char* kind, std::initializer_list<int> buffers) const {
  const Buffer& last = buffers_.at(*(buffers.end() - 1));
  const char* format = last.is_quantized() ? "int8" : last.format == Format::kBf16 ? "bf16" : "fp32";
  OpWork work{kind, std::to_string(last.width), format};
  for (const int buffer : buffers) work.row_bytes += row_bytes(buffer);
  return work;
}

OpWork Executor::op_work(const Op& op) const {
  const double token_bytes = (head_bytes_.k + head_bytes_.v) / kPageSize * shape_.num_kv_heads;  // of K and V
  switch (op.kind) {
    case Kind::kEmbed: return row_work("embed", {op.out});
    case Kind::kNorm: {
      OpWork work = row_work("norm", {op.source, op.outs.front()});
      for (size_t i = 1; i < op.outs.size(); ++i) work.row_bytes += row_bytes(op.outs[i]);
      return work;
    }
    case Kind::kQuantize: return row_work(buffers_[op.out].hadamard > 1 ? "quantize, Hadamard" : "quantize", {op.source, op.out});
    case Kind::kMatmul: return product_work("matmul", op);
    case Kind::kLogits: return product_work("logits", op);
    case Kind::kGather: return row_work("gather", {op.source, op.out});
    case Kind::kRopeStore: {
      OpWork work = row_work("rope, store", {op.source, op.out});
      work.row_bytes += token_bytes;
      return work;
    }
    case Kind::kAttention: {
      OpWork work{"attention", std::to_string(shape_.num_heads) + " x " + std::to_string(shape_.head_dim),
                  kv_format_name(kv_format_)};
      work.key_bytes = token_bytes;
      work.pair_flops = 4.0 * shape_.num_heads * shape_.head_dim;
      work.window = op.window;
      return work;
    }
  }
  return {};
}

std::vector<OpWork> Executor::op_works() const {
  std::vector<OpWork> works;
  bool per_logit_row = false;
  for (const Op& op : ops_) {
    per_logit_row = per_logit_row || op.kind == Kind::kGather;
    works.push_back(op_work(op));
    works.back().per_logit_row = per_logit_row;
  }
  return works;
}

}  // namespace ridgeline
