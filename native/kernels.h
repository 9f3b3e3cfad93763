// The kernels that every ISA path offers, as a table of function pointers, and what they work on.
//
// Strides count elements. Rows are padded to whole tiles of 32 values, which are zero.
//
// All of them keep invariant 5 by construction: the operations that produce one output, and their order, depend on
// that output's own row, its absolute position and the inner dimension, never on which rows or keys stand beside it.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ridgeline {

constexpr int kLanes = 16;         // outputs in a weight block
constexpr int kBf16Tile = 32;      // inner length of one step of bf16 arithmetic (an AMX tile)
constexpr int kPageSize = 32;      // tokens in a KV page: an inner length of weights @ V
constexpr int kSplitKeys = 512;    // attention's state is begun anew every so many keys
constexpr int kMaxQueries = 32;    // in one attention task
constexpr int kMaxHeadDim = 512;
constexpr int kTopIds = 128;       // token ids that share one maximum, and one sum of their weights, in the sampler

enum class Format { kF32, kBf16 };
enum class KvFormat { kF32, kBf16, kInt8 };  // of pages
constexpr int kNumKvFormats = 3;
enum class Epilogue { kStore, kAdd, kSiluMul };

// Weights packed in blocks of 16 outputs. f32: [block][inner][16]. bf16: [block][inner / 2][16][2], inner padded to
// a multiple of 32 with zeros.
struct MatmulArgs {
  const void* input;  // [rows, input_stride] in the weights' format
  size_t input_stride;
  const void* weights;
  int inner;             // padded
  int num_blocks;        // output blocks; for kSiluMul those of the gate, and the value's follow them
  const float* bias;     // per packed output, or null
  void* out;             // [rows, out_stride]: fp32, or for kSiluMul in out_format
  size_t out_stride;
  Epilogue epilogue;
  Format out_format;
};

// Sums of the parts of 256 codes of an input. Those of parts of 32 stand in the order 0 2 1 3, 4 6 5 7: as the words of
// packed bytes do, the even ones before the odd ones.
struct PartSums {
  int32_t of_16[16];
  int16_t of_32[8];
};

// Weights as unsigned codes with a scale per group of `group` inner values and output:
// scale * (code - zero) [+ minimum]. Packed in blocks of 16 outputs; inner is padded to a multiple of group and of 64
// with codes of `zero`.
//   8 bits: [block][inner / 4][16][4]
//   4 bits: [block][inner / 8][16][4 bytes]: low nibbles are inner 8p .. 8p + 3, high ones 8p + 4 .. 8p + 7
// The input is quantized in the same groups. Both halves of kSiluMul give fp32 too.
// Of two levels (two_level.h), groups are super-blocks and the codes stand among the integers that belong to them.
struct QuantMatmulArgs {
  const int8_t* input;  // [rows, input_stride], zero in the padding
  size_t input_stride;
  const float* input_scales;  // [rows, num_groups]
  const int32_t* input_sums;  // [rows, num_groups]: of a group's codes; of one level
  const PartSums* part_sums;  // the same of its parts; of two levels
  const uint8_t* weights;
  const void* scales;  // [block][group][16], fp16 or fp32
  const void* minima;  // the same, or null
  bool half_scales;
  bool two_level;
  int bits;
  int zero;
  int group;
  int num_groups;
  int padded_inner;   // group * num_groups
  int num_blocks;     // as in MatmulArgs
  const float* bias;  // per packed output, or null
  float* out;         // [rows, out_stride]
  size_t out_stride;
  Epilogue epilogue;
};

// A group whose largest value is below this one becomes zeros: 127 / largest must stay finite.
constexpr float kSmallestQuantized = 1e-30f;
constexpr int kMaxMixedBlocks = 15;  // of a row, by QuantizeArgs::mixing

// Of each row's group: scale = largest / 127, code = round(x * (127 / largest)), ties to even. A group with a NaN or an
// infinity gets the scale NaN and codes 0, so that it reaches whoever reads the product.
struct QuantizeArgs {
  float* input;  // [rows, input_stride]; the transforms happen in place
  size_t input_stride;
  int width;     // values of a row; what stands behind them is not read
  int hadamard;  // length of the blocks transformed first, a power of two that divides width; 1: none
  const float* mixing;  // [blocks, blocks]: what is then done across the blocks; null: nothing
  int group;            // a multiple of 16
  int num_groups;
  int8_t* codes;  // [rows, codes_stride], group * num_groups of a row are written
  size_t codes_stride;
  float* scales;  // [rows, num_groups]
  int32_t* sums;  // [rows, num_groups]
  PartSums* part_sums;  // [rows, num_groups] of groups of 256, or null: nobody reads them
};

struct NormArgs {
  const float* input;
  size_t input_stride;
  const float* weight;
  void* out;
  size_t out_stride;
  int width;         // values that count in the mean
  int padded_width;  // a multiple of 16; the padding is zero in input and weight
  float eps;
  Format out_format;
};

// One layer's part of the pages, which stand page after page, each with all its layers, K before V, so that a page is
// stored, loaded and copied whole. Both are packed like weights, step = 1 (f32), 2 (bf16) or 4 (int8): K as [kv head]
// [32 / 16][head_dim / step][16 keys][step], V as [kv head][padded head_dim / 16][32 / step][16 dimensions][step]. In
// int8, 32 fp32 scales follow the codes of a head's K, and those of its V: value = code * scale, scale = largest / 127.
// Slots without a token are zero.
struct KvLayer {
  char* k;  // of page 0
  char* v;
  size_t page_bytes;    // from one page to the next
  size_t k_head_bytes;  // from one KV head to the next
  size_t v_head_bytes;
  int num_kv_heads;

  char* k_at(int page, int head) const { return k + page * page_bytes + head * k_head_bytes; }
  char* v_at(int page, int head) const { return v + page * page_bytes + head * v_head_bytes; }
};

struct RopeArgs {
  const float* qkv;  // [rows, qkv_stride]
  size_t qkv_stride;
  const float* rotations;  // [positions, 2, rotation_stride]: cosines, sines
  size_t rotation_stride;
  const int32_t* positions;  // [rows]
  const int32_t* slots;      // [rows]
  const uint8_t* clears;     // [rows]: the row's slot and those behind it in its page hold nothing of this sequence
  const float* q_norm;       // [head_dim] or null
  const float* k_norm;
  float eps;
  void* q;  // [kv head][rows * query heads of a KV head][head_dim] in the pages' format, fp32 for int8
  size_t q_head_stride;
  int num_heads;
  int head_dim;
  KvLayer kv;
};

struct AttentionArgs {
  const void* q;  // as RopeArgs has it; queries of a KV head are numbered row by row, by head within a row
  size_t q_head_stride;
  void* out;  // [rows, out_stride]
  size_t out_stride;
  const int32_t* positions;  // [rows]
  int num_heads;
  int head_dim;
  int window;  // keys that a row sees at most; 0: all
  float scale;
  KvLayer kv;
  Format out_format;
};

static constexpr int padded_head_dim(int head_dim) { return (head_dim + kLanes - 1) / kLanes * kLanes; }
static constexpr size_t attention_state_floats(int head_dim) { return kMaxQueries * (2 + padded_head_dim(head_dim)); }

// Queries of one sequence and one KV head, at most kMaxQueries. Alone, a task writes its queries' output. A context that
// is split has a task per split that leaves a state in `states`, and one that merges num_splits of them into the output.
struct AttentionTask {
  const int32_t* block_table;
  int kv_head;
  int query_begin, query_end;
  float* states = nullptr;  // of attention_state_floats each
  int split = 0;
  int num_splits = 0;
};

template <class Args>
using ProductKernel = void (*)(const Args&, int row_begin, int row_end, int block_begin, int block_end);

// What differs by the pages' format.
struct KvKernels {
  void (*rope)(const RopeArgs&, int row_begin, int row_end);
  void (*attend)(const AttentionArgs&, const AttentionTask&);
};

struct Kernels {
  const char* name;
  ProductKernel<MatmulArgs> matmul_f32;
  ProductKernel<MatmulArgs> matmul_bf16;
  ProductKernel<QuantMatmulArgs> matmul_quant;
  ProductKernel<QuantMatmulArgs> matmul_two_level;
  void (*quantize)(const QuantizeArgs&, int row_begin, int row_end);
  void (*norm)(const NormArgs&, int row_begin, int row_end);
  KvKernels kv[kNumKvFormats];  // by KvFormat
  void (*merge_splits)(const AttentionArgs&, const AttentionTask&);
  // log(sum(exp(x))) over `count` finite values whose maximum is `max`; count is padded to 16 with -infinity.
  float (*log_sum_exp)(const float* x, int count, float max);
  // The largest of each kTopIds values, a NaN counted as +infinity; count is padded to 16 with -infinity.
  void (*block_maxima)(const float* x, int count, float* maxima);
  // weights[i] = 2^((x[i] - max) * scale), none of x above max; returns their sum. `count` is a multiple of 16.
  double (*weigh)(const float* x, int count, float max, double scale, double* weights);

  const KvKernels& of(KvFormat format) const { return kv[static_cast<int>(format)]; }
};

const Kernels* kernels_generic();
const Kernels* kernels_avx2();    // null when not compiled for this architecture
const Kernels* kernels_avx2vnni();  // avx2's, but dot products of 8-bit integers in one instruction
const Kernels* kernels_avx512();
const Kernels* kernels_avx512vnni();  // avx512's, but dot products of 8-bit integers in one instruction
const Kernels* kernels_amx();         // avx512vnni's, but matrix products by tiles: the same bits
const Kernels* kernels_neon();        // arm64
const Kernels* kernels_neondot();     // neon's, but dot products of 8-bit integers in one instruction
const Kernels* kernels_i8mm();        // neondot's, but of unsigned with signed ones, and products of matrices 2 x 8

}  // namespace ridgeline
