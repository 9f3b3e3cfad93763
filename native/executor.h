// Runs a model's program: the whole step, all layers and the sampling, in one job of the thread pool.
//
// Built once: buffers, matrices, vectors, pages, then the list of ops. A step copies its plan in, starts the job and
// returns; `wait` gives the results. Nothing is allocated per step after the first of a size. Logit rows are processed
// in blocks, so that the logits of a long scored prompt never stand in memory together.
#pragma once
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels.h"
#include "kv_format.h"
#include "matrix.h"
#include "sampler.h"
#include "shared_loops.h"
#include "thread_pool.h"

namespace ridgeline {

constexpr int kMaxTopLogprobs = 20;
constexpr int kLogitRows = 64;  // logit rows that stand in memory at once
constexpr int kNormRows = 8;    // rows that a thread normalizes, and quantizes, at a time
constexpr int kOwnRows = 4;     // so few that each thread prepares products' inputs itself, so that no loop need end before
constexpr int kTopBlocks = kTopIds / kLanes;  // blocks of the head's outputs that share a maximum

struct ModelShape {
  int num_layers = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int vocab = 0;
  float norm_eps = 0;
  std::vector<float> inverse_frequencies;  // [head_dim / 2]
};

// Views of the caller's arrays; see engine/plan.py for their meaning. T rows, S sequences, R logit rows.
struct Step {
  std::span<const int32_t> token_ids, positions, slots;      // [T]
  std::span<const int32_t> query_start, context_len;         // [S + 1], [S]
  std::span<const int32_t> block_tables;                     // [S * block_table_width]
  int block_table_width = 0;
  std::span<const int32_t> logit_rows, sampler_slots, score_ids, score_top;  // [R]
  bool want_logits = false;
};

struct StepResult {
  std::vector<int32_t> token_ids;    // [R]
  std::vector<float> logprobs;       // [R]
  std::vector<int32_t> top_ids;      // [R * kMaxTopLogprobs]
  std::vector<float> top_logprobs;   // [R * kMaxTopLogprobs]
  std::vector<uint8_t> finite;       // [R]
  bool has_logits = false;
  std::vector<float> logits;         // [R * vocab] when wanted
  double duration_s = 0;
};

// What an op does in one step. Bytes and FLOPs add up: per step, row, key in a sequence's context, and pair of row and
// key that it sees. Products count their weights and attention K and V, as the planner does; others what they pass on.
struct OpWork {
  std::string kind, shape, format;
  double step_bytes = 0;
  double row_bytes = 0, row_flops = 0;
  double key_bytes = 0, pair_flops = 0;
  int window = 0;              // keys that a row sees at most; 0: all
  bool per_logit_row = false;  // its rows are those of the logits
};

class Executor {
 public:
  Executor(ModelShape shape, KvFormat kv_format, int num_pages, int max_rows, int num_sampler_slots,
           int num_threads, std::optional<int> niceness, const Kernels& kernels);

  // Building. Each returns the new thing's number; out-of-range numbers throw std::out_of_range.
  int add_buffer(int width, Format format, bool per_logit_row);
  int add_quantized_buffer(int width, int group, bool part_sums, bool per_logit_row, int hadamard,
                           std::vector<float> mixing);  // what is done before; see QuantizeArgs
  int add_matrix(int outputs, int inner, Format format);
  int add_quantized_matrix(int outputs, int inner, const Grouping& grouping);
  int add_vector(int width);  // zeros
  void set_vector(int vector, std::span<const float> values, int first);
  Matrix& matrix(int index) { return matrices_.at(index); }

  // The bytes of all matrices, then of all vectors, in the order of their numbers; a packed file keeps them so.
  std::vector<Memory*> sections();

  void add_embed(int matrix, int out);
  void add_norm(int source, int weight, std::vector<int> outs, int width);  // the same in each of `outs`, as they hold it
  void add_quantize(int source, int out);
  // The outputs stand from `column` on, a multiple of 16. bias -1: none.
  void add_matmul(int source, int matrix, int out, int column, int bias, Epilogue epilogue);
  void add_rope_store(int layer, int source, int out, int q_norm, int k_norm);    // norms -1: none
  void add_attention(int layer, int source, int out, int window);
  void add_gather(int source, int out);
  void add_logits(int source, int matrix, int out);

  // Pages, between steps. A page's bytes are those of all its layers, K before V; page_bytes() of them.
  size_t page_bytes() const;
  void read_page(int page, char* out) const;
  void write_page(int page, const char* in);
  // The copy is for a sequence that goes on with the next step; what the source holds beyond is cleared then.
  void copy_page(int source, int destination);

  // Running.
  void open_sampler(int slot, SamplerSetup setup, std::span<const int32_t> prompt, std::span<const int32_t> output);
  void submit(const Step& step);  // checks the step: std::invalid_argument names what is out of range
  const StepResult& wait();

  // Where the time goes: seconds per op of the program, summed over steps; waiting for the slowest thread included.
  void profile(bool on);
  std::vector<double> op_seconds() const { return op_seconds_; }
  std::vector<OpWork> op_works() const;

  int vocab() const { return shape_.vocab; }
  const char* isa() const { return kernels_.name; }
  size_t weight_bytes() const;
  size_t kv_bytes() const { return kv_memory_.bytes(); }
  size_t buffer_bytes() const;

 private:
  enum class Kind { kEmbed, kNorm, kQuantize, kMatmul, kRopeStore, kAttention, kGather, kLogits };
  struct Op {
    Kind kind;
    int source = -1, out = -1;
    int matrix = -1;
    int vector = -1, second_vector = -1;
    std::vector<int> outs = {};  // of a norm, in place of `out`
    int width = 0;
    int column = 0;
    int layer = -1;
    int window = 0;
    Epilogue epilogue = Epilogue::kStore;
  };
  struct Buffer {
    Memory memory;
    size_t stride;  // elements
    Format format;
    int width;
    int group = 0;        // of a quantized buffer: `memory` holds int8 codes, and these a scale and a sum per group
    int num_groups = 0;
    Memory scales = {}, sums = {};  // [rows, num_groups]
    Memory part_sums = {};          // the same, for matrices of two levels
    int hadamard = 1;
    std::vector<float> mixing = {};  // empty: none
    bool prepared = false;           // by a norm or a quantization, for products alone: see prepares_alone

    bool is_quantized() const { return group > 0; }
    bool has_part_sums() const { return part_sums.bytes() > 0; }
    void* data() const { return memory.as<void>(); }
    float* row(size_t r) const { return memory.as<float>() + r * stride; }  // of an fp32 buffer
  };
  struct RowRange {
    int begin, end;
  };

  bool still_stands(int prepared) const;
  void require_product(int source, int matrix, int out, int column, Epilogue epilogue) const;
  void check(const Step& step) const;
  void copy_plan(const Step& step);
  void list_page_rows();
  void list_attention_tasks();
  void split_attention_tasks();
  void extend_rotations();
  bool run(int thread);
  bool run_op(Shares& shares, size_t index, int rows, int first_logit_row);
  bool compute_rotations(Shares& shares);
  bool embed(Shares& shares, const Op& op, int rows);
  bool norm(Shares& shares, const Op& op, int rows);
  void norm_rows(const Op& op, float* scratch, int row_begin, int row_end, int to_row);
  bool prepares_alone(int rows) const;
  void prepare(Shares& shares, int rows);
  void prepare_own_rows(const Op& op, int thread, int rows);
  bool quantize(Shares& shares, const Op& op, int rows);
  QuantizeArgs quantize_args(const Buffer& out, int first_row) const;
  bool matmul(Shares& shares, const Op& op, int rows);
  template <class Args>
  bool run_product(Shares& shares, const Op& op, const Args& args, ProductKernel<Args> kernel, int rows,
                   size_t row_bytes);
  void keep_maxima(const Op& op, int rows, int begin, int end);
  float* logit_maxima(const Op& op, int row) const;
  bool rope_store(Shares& shares, const Op& op);
  bool attention(Shares& shares, const Op& op);
  bool gather(Shares& shares, const Op& op, int rows, int first_logit_row);
  bool report_rows(Shares& shares, const Op& op, int rows, int first_logit_row);
  void report_row(int row, const Logits& logits);
  void report_token(int row, const Logits& logits, int token, int num_top);
  KvLayer kv_layer(int layer) const;
  size_t q_head_stride() const {
    return token_ids_.size() * (shape_.num_heads / shape_.num_kv_heads) * shape_.head_dim;
  }
  size_t rotation_stride() const { return (shape_.inverse_frequencies.size() + kLanes - 1) / kLanes * kLanes; }
  void sum_loop_times();
  double row_bytes(int buffer) const;
  OpWork product_work(const char* kind, const Op& op) const;
  OpWork row_work(const char* kind, std::initializer_list<int> buffers) const;
  OpWork op_work(const Op& op) const;
  void require_idle_page(int page) const;

  ModelShape shape_;
  KvFormat kv_format_;
  int num_pages_, max_rows_;
  const Kernels& kernels_;
  std::vector<Buffer> buffers_;
  std::vector<Matrix> matrices_;
  std::vector<Memory> vectors_;
  std::vector<Memory> scratch_;  // one per thread: rows that a norm leaves for quantization
  std::vector<Op> ops_;
  Memory logit_maxima_;  // [kLogitRows, blocks of kTopIds]
  Memory kv_memory_;
  KvHeadBytes head_bytes_;  // of a page
  std::vector<SamplerSlot> sampler_;

  std::vector<int> copied_pages_;  // since the last step
  std::vector<float> rotations_;   // see RopeArgs; of all positions that a step has reached
  int rotated_from_ = 0, rotated_to_ = 0;  // positions that this step adds to them

  // The step under way.
  std::vector<int32_t> token_ids_, positions_, slots_, query_start_, block_tables_;
  std::vector<uint8_t> clears_;        // [T]: see RopeArgs
  std::vector<RowRange> page_rows_;    // rows that are stored in one page
  std::vector<int32_t> logit_rows_, sampler_slots_, score_ids_, score_top_;
  int block_table_width_ = 0;
  std::vector<AttentionTask> attention_tasks_;
  std::vector<AttentionTask> merge_tasks_;  // of the queries whose splits are tasks of their own
  Memory attention_states_;
  bool want_logits_ = false;
  StepResult result_;
  bool under_way_ = false;
  double started_s_ = 0;
  std::atomic<double> finished_s_{0};

  bool profiling_ = false;
  std::vector<double> op_seconds_;  // [ops]

  SharedLoops loops_{pool_};
  ThreadPool pool_;  // last: its threads use everything above
};

}  // namespace ridgeline
