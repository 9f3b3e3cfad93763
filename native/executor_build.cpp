// Building an executor, its memory and its pages; running it is in executor.cpp.
#include <algorithm>
#include <cstring>

#include "checks.h"
#include "executor.h"

namespace ridgeline {

namespace {

void reserve(Memory& memory, size_t bytes) {
  if (memory.bytes() < bytes) memory = Memory(bytes);
}

}  // namespace

Executor::Executor(ModelShape shape, KvFormat kv_format, int num_pages, int max_rows, int num_sampler_slots,
                   int num_threads, std::optional<int> niceness, const Kernels& kernels)
    : shape_(std::move(shape)),
      kv_format_(kv_format),
      num_pages_(num_pages),
      max_rows_(max_rows),
      kernels_(kernels),
      scratch_(num_threads),
      head_bytes_(kv_head_bytes(kv_format, shape_.head_dim)),
      sampler_(num_sampler_slots),
      pool_(num_threads, niceness) {
  require(shape_.head_dim <= kMaxHeadDim, "head_dim " + std::to_string(shape_.head_dim) + " is above " +
                                              std::to_string(kMaxHeadDim) + ", the largest that attention supports");
  require(num_pages >= 2, "a pool needs the null page and at least one more");
  kv_memory_ = Memory(page_bytes() * num_pages_);
}

int Executor::add_buffer(int width, Format format, bool per_logit_row) {
  // the padding stays zero: kernels read whole vectors and tiles
  const size_t stride = row_stride(round_up(width, kBf16Tile), element_bytes(format));
  const size_t rows = per_logit_row ? kLogitRows : max_rows_;
  buffers_.push_back({Memory(rows * stride * element_bytes(format)), stride, format, width});
  return static_cast<int>(buffers_.size()) - 1;
}

int Executor::add_quantized_buffer(int width, int group, bool part_sums, bool per_logit_row, int hadamard,
                                   std::vector<float> mixing) {
  require(hadamard >= 1 && (hadamard & (hadamard - 1)) == 0 && width % hadamard == 0,
          "Hadamard blocks of " + std::to_string(hadamard) + " do not fill " + std::to_string(width));
  const size_t blocks = width / hadamard;
  require(mixing.empty() || (blocks <= kMaxMixedBlocks && mixing.size() == blocks * blocks),
          std::to_string(mixing.size()) + " factors do not mix " + std::to_string(blocks) + " blocks");
  const PaddedGroups padded(width, group);
  require(!part_sums || padded.group == kSuperBlock, "sums of parts are those of groups of 256");
  const size_t rows = per_logit_row ? kLogitRows : max_rows_, groups = rows * padded.count();
  const size_t stride = row_stride(padded.inner, sizeof(int8_t));
  buffers_.push_back({Memory(rows * stride), stride, Format::kF32, width, padded.group, padded.count(),
                      Memory(groups * sizeof(float)), Memory(groups * sizeof(int32_t)),
                      part_sums ? Memory(groups * sizeof(PartSums)) : Memory(), hadamard, std::move(mixing)});
  return static_cast<int>(buffers_.size()) - 1;
}

int Executor::add_matrix(int outputs, int inner, Format format) {
  matrices_.emplace_back(outputs, inner, format);
  return static_cast<int>(matrices_.size()) - 1;
}

int Executor::add_quantized_matrix(int outputs, int inner, const Grouping& grouping) {
  matrices_.emplace_back(outputs, inner, grouping);
  return static_cast<int>(matrices_.size()) - 1;
}

int Executor::add_vector(int width) {
  vectors_.emplace_back(round_up(width, kBf16Tile) * sizeof(float));
  return static_cast<int>(vectors_.size()) - 1;
}

void Executor::set_vector(int vector, std::span<const float> values, int first) {
  const Memory& memory = vectors_.at(vector);
  require(first >= 0 && static_cast<size_t>(first) * sizeof(float) + values.size_bytes() <= memory.bytes(), "values do not fit the vector");
  std::memcpy(memory.as<float>() + first, values.data(), values.size_bytes());
}

void Executor::add_embed(int matrix, int out) {
  Op op{Kind::kEmbed};
  op.matrix = matrix;
  op.out = out;
  ops_.push_back(op);
}

void Executor::add_norm(int source, int weight, std::vector<int> outs, int width) {
  require(!buffers_.at(source).prepared, "only products read what a norm or a quantization leaves");
  Op op{Kind::kNorm, source};
  op.vector = weight;
  op.outs = std::move(outs);
  op.width = width;
  for (const int out : op.outs) buffers_.at(out).prepared = true;
  for (const int out : op.outs)
    if (buffers_.at(out).is_quantized())
      for (Memory& rows : scratch_) reserve(rows, kNormRows * buffers_.at(source).stride * sizeof(float));
  ops_.push_back(op);
}

void Executor::add_quantize(int source, int out) {
  require(!buffers_.at(source).is_quantized() && buffers_.at(source).format == Format::kF32 &&
              buffers_.at(out).is_quantized() && buffers_.at(source).width == buffers_.at(out).width,
          "quantize takes fp32 to codes of the same width");
  for (Memory& rows : scratch_) reserve(rows, kOwnRows * buffers_[source].stride * sizeof(float));
  buffers_[out].prepared = true;
  ops_.push_back({Kind::kQuantize, source, out});
}

void Executor::add_matmul(int source, int matrix, int out, int column, int bias, Epilogue epilogue) {
  require_product(source, matrix, out, column, epilogue);
  Op op{Kind::kMatmul, source, out, matrix};
  op.column = column;
  op.vector = bias;
  op.epilogue = epilogue;
  ops_.push_back(op);
}

// Buffers fit the matrix: what the kernels take for granted.
void Executor::require_product(int source, int matrix, int out, int column, Epilogue epilogue) const {
  const Buffer &in = buffers_.at(source), &to = buffers_.at(out);
  const Matrix& m = matrices_.at(matrix);
  const int outputs = m.num_blocks() * kLanes / (epilogue == Epilogue::kSiluMul ? 2 : 1);
  require(in.width == m.inner(), "a source of " + std::to_string(in.width) + " values, the matrix has an inner " +
                                     std::to_string(m.inner()));
  require(column % kLanes == 0 && static_cast<size_t>(column + outputs) <= to.stride && !to.is_quantized(),
          std::to_string(outputs) + " outputs from column " + std::to_string(column) + " do not fit the buffer");
  require(m.is_quantized() == in.is_quantized(), "a quantized matrix takes a quantized source, others a plain one");
  if (m.is_quantized()) {
    require(in.group == m.grouping().group, "source and matrix have other groups");
    require(!m.grouping().two_level || in.has_part_sums(), "a matrix of two levels wants the sums of its input's parts");
    require(to.format == Format::kF32, "a quantized product gives fp32");
  } else {
    require(in.format == m.format(), "source and matrix have other formats");
  }
  require(!in.prepared || still_stands(source), "what the product's source was prepared from has been overwritten since");
}

// Whether no op has written to what `prepared` was made from, since it was: threads make it as late as in the product.
bool Executor::still_stands(int prepared) const {
  const auto writes = [](const Op& op, int buffer) {
    return op.out == buffer || std::find(op.outs.begin(), op.outs.end(), buffer) != op.outs.end();
  };
  const auto maker = std::find_if(ops_.rbegin(), ops_.rend(), [&](const Op& op) { return writes(op, prepared); });
  return std::none_of(ops_.rbegin(), maker, [&](const Op& op) { return writes(op, maker->source); });
}

void Executor::add_rope_store(int layer, int source, int out, int q_norm, int k_norm) {
  Op op{Kind::kRopeStore, source, out};
  op.layer = layer;
  op.vector = q_norm;
  op.second_vector = k_norm;
  ops_.push_back(op);
}

void Executor::add_attention(int layer, int source, int out, int window) {
  Op op{Kind::kAttention, source, out};
  op.layer = layer;
  op.window = window;
  ops_.push_back(op);
}

void Executor::add_gather(int source, int out) {
  require(!buffers_.at(source).prepared, "only products read what a norm or a quantization leaves");
  ops_.push_back({Kind::kGather, source, out});
}

void Executor::add_logits(int source, int matrix, int out) {
  require_product(source, matrix, out, 0, Epilogue::kStore);
  require(matrices_.at(matrix).outputs() == shape_.vocab, "the head has another number of outputs than there are tokens");
  ops_.push_back({Kind::kLogits, source, out, matrix});
  reserve(logit_maxima_, kLogitRows * ceil_div(matrices_[matrix].num_blocks(), kTopBlocks) * sizeof(float));
}

std::vector<Memory*> Executor::sections() {
  std::vector<Memory*> all;
  for (Matrix& m : matrices_)
    for (Memory* section : m.sections()) all.push_back(section);
  for (Memory& v : vectors_) all.push_back(&v);
  return all;
}

size_t Executor::weight_bytes() const {
  size_t bytes = 0;
  for (const Matrix& m : matrices_) bytes += m.bytes();
  for (const Memory& v : vectors_) bytes += v.bytes();
  return bytes;
}

size_t Executor::buffer_bytes() const {
  size_t bytes = 0;
  for (const Buffer& b : buffers_) bytes += b.memory.bytes() + b.scales.bytes() + b.sums.bytes() + b.part_sums.bytes();
  for (const Memory& rows : scratch_) bytes += rows.bytes();
  bytes += logit_maxima_.bytes();
  return bytes;
}

// --- pages

size_t Executor::page_bytes() const {
  return (head_bytes_.k + head_bytes_.v) * shape_.num_kv_heads * shape_.num_layers;
}

void Executor::require_idle_page(int page) const {
  require(!under_way_, "a step is under way");
  require(page >= 0 && page < num_pages_, "page " + std::to_string(page) + " of " + std::to_string(num_pages_));
}

void Executor::read_page(int page, char* out) const {
  require_idle_page(page);
  std::memcpy(out, kv_memory_.as<char>() + page * page_bytes(), page_bytes());
}

void Executor::write_page(int page, const char* in) {
  require_idle_page(page);
  std::memcpy(kv_memory_.as<char>() + page * page_bytes(), in, page_bytes());
}

void Executor::copy_page(int source, int destination) {
  require_idle_page(source);
  require_idle_page(destination);
  char* pages = kv_memory_.as<char>();
  std::memmove(pages + destination * page_bytes(), pages + source * page_bytes(), page_bytes());
  copied_pages_.push_back(destination);
}

}  // namespace ridgeline
