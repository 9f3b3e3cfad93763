#include "executor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "checks.h"

namespace ridgeline {

namespace {

constexpr int kTasksPerThread = 8;  // of attention: with fewer, long contexts are split

void assign(std::vector<int32_t>& to, std::span<const int32_t> from) { to.assign(from.begin(), from.end()); }

}  // namespace

// --- a step: from the caller's thread

void Executor::open_sampler(int slot, SamplerSetup setup, std::span<const int32_t> prompt,
                            std::span<const int32_t> output) {
  require(!under_way_, "a step is under way");
  require(slot >= 0 && slot < static_cast<int>(sampler_.size()), "sampler slot " + std::to_string(slot));
  require_in_range(prompt, 0, shape_.vocab, "prompt_ids");
  require_in_range(output, 0, shape_.vocab, "output_ids");
  require_in_range(setup.banned_ids, 0, shape_.vocab, "banned_ids");
  for (const auto& [id, bias] : setup.logit_bias) require_in_range({&id, 1}, 0, shape_.vocab, "logit_bias");
  require(setup.top_logprobs >= kNoLogprobs && setup.top_logprobs <= kMaxTopLogprobs, "top_logprobs");
  sampler_[slot].open(std::move(setup), prompt.data(), prompt.size(), output.data(), output.size());
}

void Executor::check(const Step& s) const {
  const int rows = static_cast<int>(s.token_ids.size());
  const size_t sequences = s.context_len.size(), logit_rows = s.logit_rows.size();
  require(!under_way_, "a step is under way");
  require(rows > 0 && rows <= max_rows_,
          std::to_string(rows) + " rows, the buffers hold 1.." + std::to_string(max_rows_));
  require(s.positions.size() == s.token_ids.size() && s.slots.size() == s.token_ids.size(), "arrays of T differ in length");
  require(s.query_start.size() == sequences + 1 && s.block_tables.size() == sequences * s.block_table_width,
          "arrays of S differ in length");
  require(s.sampler_slots.size() == logit_rows && s.score_ids.size() == logit_rows && s.score_top.size() == logit_rows,
          "arrays of R differ in length");
  require_in_range(s.token_ids, 0, shape_.vocab, "token_ids");
  require_in_range(s.slots, 0, num_pages_ * kPageSize, "slots");
  require_in_range(s.block_tables, 0, num_pages_, "block_tables");
  require_in_range(s.logit_rows, 0, rows, "logit_rows");
  require_in_range(s.sampler_slots, -1, static_cast<int>(sampler_.size()), "sampler_slots");
  require_in_range(s.score_ids, -1, shape_.vocab, "score_ids");
  require_in_range(s.score_top, 0, kMaxTopLogprobs + 1, "score_top");
  require(s.query_start.front() == 0 && s.query_start.back() == rows, "query_start does not cover the rows");
  for (size_t i = 0; i < sequences; ++i) {
    const int begin = s.query_start[i], end = s.query_start[i + 1];
    require(begin < end && end <= rows, "query_start is not ascending");
    require(s.context_len[i] >= end - begin && s.context_len[i] <= s.block_table_width * kPageSize,
            "context_len[" + std::to_string(i) + "] does not fit the rows or the block table");
    for (int row = begin; row < end; ++row)
      require(s.positions[row] == s.context_len[i] - (end - row), "positions are not consecutive up to context_len");
  }
}

void Executor::copy_plan(const Step& s) {
  assign(token_ids_, s.token_ids);
  assign(positions_, s.positions);
  assign(slots_, s.slots);
  assign(query_start_, s.query_start);
  assign(block_tables_, s.block_tables);
  assign(logit_rows_, s.logit_rows);
  assign(sampler_slots_, s.sampler_slots);
  assign(score_ids_, s.score_ids);
  assign(score_top_, s.score_top);
  block_table_width_ = s.block_table_width;
  want_logits_ = s.want_logits;

  list_page_rows();
  list_attention_tasks();
  extend_rotations();

  const size_t logit_rows = logit_rows_.size();
  result_.token_ids.assign(logit_rows, kNoToken);
  result_.logprobs.assign(logit_rows, std::nanf(""));
  result_.top_ids.assign(logit_rows * kMaxTopLogprobs, kNoToken);
  result_.top_logprobs.assign(logit_rows * kMaxTopLogprobs, std::nanf(""));
  result_.finite.assign(logit_rows, 0);
  result_.has_logits = want_logits_;
  result_.logits.resize(want_logits_ ? logit_rows * shape_.vocab : 0);
}

// The first row that a sequence stores in a page it has just been given clears the slots from there on.
void Executor::list_page_rows() {
  clears_.assign(slots_.size(), 0);
  page_rows_.clear();
  for (size_t i = 0; i + 1 < query_start_.size(); ++i)
    for (int row = query_start_[i]; row < query_start_[i + 1];) {
      const int page = slots_[row] / kPageSize, offset = slots_[row] % kPageSize;
      const bool copied = row == query_start_[i] && std::find(copied_pages_.begin(), copied_pages_.end(), page) !=
                                                        copied_pages_.end();
      clears_[row] = offset == 0 || copied;
      const int end = std::min(row + kPageSize - offset, query_start_[i + 1]);
      page_rows_.push_back({row, end});
      row = end;
    }
  copied_pages_.clear();
}

void Executor::list_attention_tasks() {
  attention_tasks_.clear();
  merge_tasks_.clear();
  const int group = shape_.num_heads / shape_.num_kv_heads;
  for (int i = 0; i + 1 < static_cast<int>(query_start_.size()); ++i) {
    const int32_t* block_table = block_tables_.data() + static_cast<size_t>(i) * block_table_width_;
    const int begin = query_start_[i] * group;
    for (int head = 0; head < shape_.num_kv_heads; ++head)  // one after another: a head's keys and values fit in the L2
      for (int end = query_start_[i + 1] * group; end > begin; end -= kMaxQueries)
        attention_tasks_.push_back({block_table, head, std::max(end - kMaxQueries, begin), end});
  }
  if (static_cast<int>(attention_tasks_.size()) < kTasksPerThread * pool_.size()) split_attention_tasks();
  // the longest contexts first, so that none is left over for the end
  const auto last_position = [&](const AttentionTask& t) {
    const auto sequence = (t.block_table - block_tables_.data()) / block_table_width_;
    return positions_[query_start_[sequence + 1] - 1];
  };
  std::stable_sort(attention_tasks_.begin(), attention_tasks_.end(),
                   [&](const auto& a, const auto& b) { return last_position(a) > last_position(b); });
}

// Gives each split of a long context to a task of its own; merge_tasks_ put their results together.
void Executor::split_attention_tasks() {
  const int group = shape_.num_heads / shape_.num_kv_heads;
  const size_t state_floats = attention_state_floats(shape_.head_dim);
  size_t num_states = 0;
  const auto is_long = [&](const AttentionTask& t) { return positions_[(t.query_end - 1) / group] >= kSplitKeys; };
  const auto first_long = std::stable_partition(attention_tasks_.begin(), attention_tasks_.end(), std::not_fn(is_long));
  for (auto t = first_long; t != attention_tasks_.end(); ++t) {
    t->num_splits = positions_[(t->query_end - 1) / group] / kSplitKeys + 1;
    num_states += t->num_splits;
  }
  merge_tasks_.assign(first_long, attention_tasks_.end());
  attention_tasks_.erase(first_long, attention_tasks_.end());

  if (attention_states_.bytes() < num_states * state_floats * sizeof(float))
    attention_states_ = Memory(num_states * state_floats * sizeof(float));
  float* states = attention_states_.as<float>();
  for (AttentionTask& t : merge_tasks_) {
    t.states = states;
    for (int split = 0; split < t.num_splits; ++split, states += state_floats)
      attention_tasks_.push_back({t.block_table, t.kv_head, t.query_begin, t.query_end, states, split});
  }
}

void Executor::extend_rotations() {
  constexpr int kPositions = 64;  // at a time, so that decoding rarely computes any
  rotated_from_ = rotated_to_;
  rotated_to_ = std::max(rotated_to_, round_up(*std::max_element(positions_.begin(), positions_.end()) + 1, kPositions));
  rotations_.resize(rotated_to_ * 2 * rotation_stride());
}

void Executor::submit(const Step& step) {
  check(step);
  copy_plan(step);
  const size_t logit_blocks = ceil_div(static_cast<int>(logit_rows_.size()), kLogitRows);
  loops_.reset(1 + 2 * ops_.size() * (1 + logit_blocks) + logit_blocks, profiling_);
  under_way_ = true;
  started_s_ = now_s();
  pool_.start([this](int thread) { return run(thread); });
}

const StepResult& Executor::wait() {
  require(under_way_, "no step is under way");
  pool_.wait();
  result_.duration_s = finished_s_ - started_s_;
  if (profiling_) sum_loop_times();
  under_way_ = false;
  return result_;
}

// --- a step: on the pool's threads

// False, here and in all that it calls: the step has ended without this thread.
bool Executor::run(int thread) {
  Shares shares(loops_, thread);
  const int rows = static_cast<int>(token_ids_.size()), logit_rows = static_cast<int>(logit_rows_.size());
  if (!compute_rotations(shares)) return false;
  size_t op = 0;
  for (; op < ops_.size() && ops_[op].kind != Kind::kGather; ++op)
    if (!run_op(shares, op, rows, 0)) return false;
  for (int first = 0; first < logit_rows; first += kLogitRows) {
    const int block = std::min(kLogitRows, logit_rows - first);
    for (size_t i = op; i < ops_.size(); ++i)
      if (!run_op(shares, i, block, first)) return false;
    shares.begin_op(-1);
    if (!report_rows(shares, ops_.back(), block, first)) return false;
  }
  finished_s_ = now_s();
  return true;
}

bool Executor::run_op(Shares& shares, size_t index, int rows, int first_logit_row) {
  const Op& op = ops_[index];
  shares.begin_op(static_cast<int>(index));
  switch (op.kind) {
    case Kind::kEmbed: return embed(shares, op, rows);
    case Kind::kNorm:
    case Kind::kQuantize:
      if (prepares_alone(rows)) return shares.prepare_later(static_cast<int>(index)), true;
      return op.kind == Kind::kNorm ? norm(shares, op, rows) : quantize(shares, op, rows);
    case Kind::kMatmul:
    case Kind::kLogits: return matmul(shares, op, rows);
    case Kind::kRopeStore: return rope_store(shares, op);
    case Kind::kAttention: return attention(shares, op);
    case Kind::kGather: return gather(shares, op, rows, first_logit_row);
  }
  return true;
}

bool Executor::compute_rotations(Shares& shares) {
  return shares.run(rotated_to_ - rotated_from_, [&](int task) {
    const int position = rotated_from_ + task;
    float* cos = rotations_.data() + position * 2 * rotation_stride();
    for (size_t i = 0; i < shape_.inverse_frequencies.size(); ++i) {
      const double angle = static_cast<float>(position) * shape_.inverse_frequencies[i];
      cos[i] = static_cast<float>(std::cos(angle));
      cos[i + rotation_stride()] = static_cast<float>(std::sin(angle));
    }
  });
}

KvLayer Executor::kv_layer(int layer) const {
  const size_t k_bytes = head_bytes_.k * shape_.num_kv_heads, v_bytes = head_bytes_.v * shape_.num_kv_heads;
  char* k = kv_memory_.as<char>() + layer * (k_bytes + v_bytes);
  return {k, k + k_bytes, page_bytes(), head_bytes_.k, head_bytes_.v, shape_.num_kv_heads};
}

bool Executor::rope_store(Shares& shares, const Op& op) {
  const Buffer &in = buffers_[op.source], &out = buffers_[op.out];
  const RopeArgs args{in.row(0),
                      in.stride,
                      rotations_.data(),
                      rotation_stride(),
                      positions_.data(),
                      slots_.data(),
                      clears_.data(),
                      op.vector < 0 ? nullptr : vectors_[op.vector].as<float>(),
                      op.second_vector < 0 ? nullptr : vectors_[op.second_vector].as<float>(),
                      shape_.norm_eps,
                      out.data(),
                      q_head_stride(),
                      shape_.num_heads,
                      shape_.head_dim,
                      kv_layer(op.layer)};
  const auto kernel = kernels_.of(kv_format_).rope;
  return shares.run(static_cast<int>(page_rows_.size()), [&](int i) { kernel(args, page_rows_[i].begin, page_rows_[i].end); });
}

bool Executor::attention(Shares& shares, const Op& op) {
  const Buffer &in = buffers_[op.source], &out = buffers_[op.out];
  const AttentionArgs args{in.data(),
                           q_head_stride(),
                           out.data(),
                           out.stride,
                           positions_.data(),
                           shape_.num_heads,
                           shape_.head_dim,
                           op.window,
                           1.0f / std::sqrt(static_cast<float>(shape_.head_dim)),
                           kv_layer(op.layer),
                           out.format};
  const auto kernel = kernels_.of(kv_format_).attend;
  if (!shares.run(static_cast<int>(attention_tasks_.size()), [&](int i) { kernel(args, attention_tasks_[i]); }))
    return false;
  if (merge_tasks_.empty()) return true;
  return shares.run(static_cast<int>(merge_tasks_.size()), [&](int i) { kernels_.merge_splits(args, merge_tasks_[i]); });
}

bool Executor::gather(Shares& shares, const Op& op, int rows, int first_logit_row) {
  const Buffer &in = buffers_[op.source], &out = buffers_[op.out];
  return shares.run(rows, [&](int row) {
    std::memcpy(out.row(row), in.row(logit_rows_[first_logit_row + row]), sizeof(float) * out.stride);
  });
}

bool Executor::report_rows(Shares& shares, const Op& op, int rows, int first_logit_row) {
  return shares.run(rows, [&](int row) {
    report_row(first_logit_row + row, {kernels_, buffers_[op.out].row(row), logit_maxima(op, row), shape_.vocab});
  });
}

float* Executor::logit_maxima(const Op& op, int row) const {
  return logit_maxima_.as<float>() + static_cast<size_t>(row) * ceil_div(matrices_[op.matrix].num_blocks(), kTopBlocks);
}

void Executor::report_row(int row, const Logits& logits) {
  if (want_logits_)
    std::memcpy(result_.logits.data() + static_cast<size_t>(row) * shape_.vocab, logits.values, sizeof(float) * shape_.vocab);
  if (!std::isfinite(logits.max())) return;
  if (sampler_slots_[row] < 0) {
    result_.finite[row] = 1;
    report_token(row, logits, score_ids_[row], score_top_[row]);
    return;
  }
  SamplerSlot& slot = sampler_[sampler_slots_[row]];
  const int token = slot.sample(logits, static_cast<uint32_t>(positions_[logit_rows_[row]]) + 1);
  if (token == kNoToken) return;
  result_.finite[row] = 1;
  result_.token_ids[row] = token;
  if (slot.top_logprobs() != kNoLogprobs) report_token(row, logits, token, slot.top_logprobs());
}

void Executor::report_token(int row, const Logits& logits, int token, int num_top) {
  const float log_sum_exp = logits.log_sum_exp();
  if (token != kNoToken) result_.logprobs[row] = logits.values[token] - log_sum_exp;
  std::vector<int32_t> ids;
  logits.best_ids(num_top, ids);
  const size_t first = static_cast<size_t>(row) * kMaxTopLogprobs;
  for (size_t i = 0; i < ids.size(); ++i) {
    result_.top_ids[first + i] = ids[i];
    result_.top_logprobs[first + i] = logits.values[ids[i]] - log_sum_exp;
  }
}

}  // namespace ridgeline
