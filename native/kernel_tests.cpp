#include "kernel_tests.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "checks.h"
#include "cpu.h"
#include "kv_format.h"
#include "matrix.h"
#include "random.h"
#include "reference.h"
#include "sampler.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ridgeline {
namespace {

using Array1 = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Array2 = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Array3 = nb::ndarray<float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

Format parse(const std::string& dtype) { return dtype == "bf16" ? Format::kBf16 : Format::kF32; }

std::vector<std::string> isas() {
  std::vector<std::string> names;
  for (const char* name : {"generic", "avx2", "avx2vnni", "avx512", "avx512vnni", "amx", "neon", "neondot", "i8mm"}) try {
      names.push_back(kernels_by_name(name).name);
    } catch (const std::invalid_argument&) {  // not on this CPU
    }
  return names;
}

// out [rows, outputs] is the residual for "add"; for "silu_mul" weights are gate then value, outputs each.
void matmul(const std::string& isa, const std::string& dtype, const std::string& epilogue, Array2 input, Array2 weights,
            Array2 out) {
  const Kernels& kernels = kernels_by_name(isa.c_str());
  const int rows = input.shape(0), inner = input.shape(1), outputs = out.shape(1);
  const bool silu_mul = epilogue == "silu_mul";
  const int second_half = round_up(outputs, kLanes);
  Matrix matrix(silu_mul ? 2 * second_half : outputs, inner, parse(dtype));
  matrix.pack(weights.data(), 0, outputs);
  if (silu_mul) matrix.pack(weights.data() + static_cast<size_t>(outputs) * inner, second_half, outputs);
  const int stride = matrix.padded_inner(), out_stride = second_half;
  std::vector<float> padded(static_cast<size_t>(rows) * stride), result(static_cast<size_t>(rows) * out_stride);
  std::vector<uint16_t> padded_bf16(padded.size());
  for (int r = 0; r < rows; ++r) {
    std::copy_n(input.data() + static_cast<size_t>(r) * inner, inner, padded.begin() + static_cast<size_t>(r) * stride);
    std::copy_n(out.data() + static_cast<size_t>(r) * outputs, outputs, result.begin() + static_cast<size_t>(r) * out_stride);
  }
  std::transform(padded.begin(), padded.end(), padded_bf16.begin(), to_bf16);
  const int blocks = second_half / kLanes;
  const void* in = parse(dtype) == Format::kBf16 ? static_cast<const void*>(padded_bf16.data()) : padded.data();
  const MatmulArgs args{in, static_cast<size_t>(stride), matrix.data(), stride, blocks, nullptr, result.data(),
                        static_cast<size_t>(out_stride),
                        parse_epilogue(epilogue), Format::kF32};
  on_flushing_thread([&] {
    (parse(dtype) == Format::kBf16 ? kernels.matmul_bf16 : kernels.matmul_f32)(args, 0, rows, 0, blocks);
  });
  for (int r = 0; r < rows; ++r)
    std::copy_n(result.begin() + static_cast<size_t>(r) * out_stride, outputs, out.data() + static_cast<size_t>(r) * outputs);
}

void reference_matmul(const std::string& dtype, Array2 input, Array2 weights, Array2 out) {
  on_flushing_thread([&] {
    reference::matmul(input.data(), input.shape(0), weights.data(), out.shape(1), input.shape(1), parse(dtype), out.data());
  });
}

// The store into pages and the attention over them, for one sequence. qkv [rows, (heads + 2 kv_heads) * head_dim] is
// rotated by position; the rows stand at `first_position` and after. `pages` [num_pages, kv_heads, 2, page bytes / 4]
// persists between calls. `split`: a task per split, whose states are merged. out [rows, heads * head_dim].
void attention(const std::string& isa, const std::string& dtype, int heads, int kv_heads, int window, bool split,
               int first_position, Array2 qkv, Array1 inverse_frequencies, Ints block_table, Array3 pages, Array2 out) {
  const Kernels& kernels = kernels_by_name(isa.c_str());
  const KvFormat format = parse_kv_format(dtype);
  const int rows = qkv.shape(0), head_dim = qkv.shape(1) / (heads + 2 * kv_heads), half = head_dim / 2;
  const size_t num_pages = pages.shape(0);
  const auto [k_bytes, v_bytes] = kv_head_bytes(format, head_dim);
  char* base = reinterpret_cast<char*>(pages.data());
  if (pages.size() * sizeof(float) < num_pages * kv_heads * (k_bytes + v_bytes))
    throw std::invalid_argument("pages are too small");
  const KvLayer kv{base, base + kv_heads * k_bytes, kv_heads * (k_bytes + v_bytes), k_bytes, v_bytes, kv_heads};
  const int rotation_stride = round_up(half, kLanes), group = heads / kv_heads;
  std::vector<int32_t> slots(rows), positions(rows);
  std::vector<uint8_t> clears(rows);
  std::vector<float> rotations(static_cast<size_t>(first_position + rows) * 2 * rotation_stride);
  std::vector<char> q(sizeof(float) * rows * heads * head_dim);
  for (int r = 0; r < rows; ++r) {
    positions[r] = first_position + r;
    slots[r] = block_table.data()[positions[r] / kPageSize] * kPageSize + positions[r] % kPageSize;
    clears[r] = positions[r] % kPageSize == 0;
    float* cos = rotations.data() + static_cast<size_t>(positions[r]) * 2 * rotation_stride;
    for (int i = 0; i < half; ++i) {
      cos[i] = std::cos(positions[r] * inverse_frequencies.data()[i]);
      cos[i + rotation_stride] = std::sin(positions[r] * inverse_frequencies.data()[i]);
    }
  }
  const size_t q_width = static_cast<size_t>(heads) * head_dim, q_head_stride = static_cast<size_t>(rows) * group * head_dim;
  const RopeArgs rope{qkv.data(), qkv.shape(1), rotations.data(), static_cast<size_t>(rotation_stride), positions.data(),
                      slots.data(), clears.data(), nullptr, nullptr, 0, q.data(), q_head_stride, heads, head_dim, kv};
  const AttentionArgs args{q.data(), q_head_stride, out.data(), q_width, positions.data(), heads, head_dim, window,
                           1.0f / std::sqrt(static_cast<float>(head_dim)), kv, Format::kF32};
  const auto [store, attend] = kernels.of(format);
  const int num_splits = (first_position + rows - 1) / kSplitKeys + 1;
  std::vector<float> states(split ? num_splits * attention_state_floats(head_dim) : 0);
  on_flushing_thread([&] {
    store(rope, 0, rows);
    for (int h = 0; h < kv_heads; ++h)
      for (int first = 0; first < rows * group; first += kMaxQueries) {
        AttentionTask task{block_table.data(), h, first, std::min(first + kMaxQueries, rows * group)};
        if (!split) {
          attend(args, task);
          continue;
        }
        for (task.split = 0; task.split < num_splits; ++task.split) {
          task.states = states.data() + task.split * attention_state_floats(head_dim);
          attend(args, task);
        }
        task.states = states.data();
        task.num_splits = num_splits;
        kernels.merge_splits(args, task);
      }
  });
}

void norm(const std::string& isa, const std::string& dtype, float eps, Array2 input, Array1 weight, Array2 out) {
  const Kernels& kernels = kernels_by_name(isa.c_str());
  const int width = input.shape(1), padded = round_up(width, kLanes);
  for (size_t r = 0; r < input.shape(0); ++r) {
    std::vector<float> in(padded), scale(padded), result(padded);
    std::vector<uint16_t> bits(padded);
    const bool bf16 = parse(dtype) == Format::kBf16;
    void* to = bf16 ? static_cast<void*>(bits.data()) : result.data();
    std::copy_n(input.data() + r * width, width, in.begin());
    std::copy_n(weight.data(), width, scale.begin());
    const NormArgs args{in.data(), 0, scale.data(), to, 0, width, padded, eps, parse(dtype)};
    on_flushing_thread([&] { kernels.norm(args, 0, 1); });
    if (bf16) std::transform(bits.begin(), bits.end(), result.begin(), from_bf16);
    std::copy_n(result.begin(), width, out.data() + r * width);
  }
}

float log_sum_exp(const std::string& isa, Array1 values) {
  std::vector<float> padded(round_up(values.size(), kLanes), -INFINITY);
  std::copy_n(values.data(), values.size(), padded.begin());
  const float max = *std::max_element(padded.begin(), padded.end());
  return kernels_by_name(isa.c_str()).log_sum_exp(padded.data(), padded.size(), max);
}

std::vector<float> block_maxima(const std::string& isa, Array1 values) {
  std::vector<float> padded(round_up(values.size(), kLanes), -INFINITY);
  std::copy_n(values.data(), values.size(), padded.begin());
  std::vector<float> maxima(ceil_div(values.size(), kTopIds));
  kernels_by_name(isa.c_str()).block_maxima(padded.data(), padded.size(), maxima.data());
  return maxima;
}

nb::tuple weigh(const std::string& isa, Array1 values, float max, double scale) {
  if (values.size() % kLanes != 0) throw std::invalid_argument("values are not a multiple of 16");
  std::vector<double> weights(values.size());
  const double sum = kernels_by_name(isa.c_str()).weigh(values.data(), values.size(), max, scale, weights.data());
  return nb::make_tuple(weights, sum);
}

// The token of a fresh slot, and the `num_best` best ids.
nb::tuple sample(const std::string& isa, const SamplerSetup& setup, Array1 values, uint32_t position, int num_best) {
  std::vector<float> padded(round_up(values.size(), kLanes), -INFINITY);
  std::copy_n(values.data(), values.size(), padded.begin());
  const std::vector<float> maxima = block_maxima(isa, values);
  const Logits logits{kernels_by_name(isa.c_str()), padded.data(), maxima.data(), static_cast<int>(values.size())};
  SamplerSlot slot;
  slot.open(setup, nullptr, 0, nullptr, 0);
  std::vector<int32_t> best;
  logits.best_ids(num_best, best);
  return nb::make_tuple(slot.sample(logits, position), best);
}

}  // namespace

Epilogue parse_epilogue(const std::string& name) {
  if (name == "store") return Epilogue::kStore;
  if (name == "add") return Epilogue::kAdd;
  if (name == "silu_mul") return Epilogue::kSiluMul;
  throw std::invalid_argument("epilogue '" + name + "': store, add or silu_mul");
}

void bind_kernel_tests(nb::module_& m) {
  nb::module_ t = m.def_submodule("kernels", "Single kernels by ISA path, for tests. Outputs are written in place.");
  t.def("isas", &isas, "ISA paths that this CPU runs.");
  t.def("matmul", &matmul, "isa"_a, "dtype"_a, "epilogue"_a, "input"_a, "weights"_a, "out"_a);
  bind_quant_tests(t);
  t.def("reference_matmul", &reference_matmul, "dtype"_a, "input"_a, "weights"_a, "out"_a);
  t.def("attention", &attention, "isa"_a, "dtype"_a, "heads"_a, "kv_heads"_a, "window"_a, "split"_a, "first_position"_a,
        "qkv"_a, "inverse_frequencies"_a, "block_table"_a, "pages"_a, "out"_a);
  t.def("norm", &norm, "isa"_a, "dtype"_a, "eps"_a, "input"_a, "weight"_a, "out"_a);
  t.def("log_sum_exp", &log_sum_exp, "isa"_a, "values"_a);
  t.def("sample", &sample, "isa"_a, "setup"_a, "values"_a, "position"_a, "num_best"_a);
  t.def("block_maxima", &block_maxima, "isa"_a, "values"_a);
  t.def("weigh", &weigh, "isa"_a, "values"_a, "max"_a, "scale"_a);
  t.def(
      "philox",
      [](const std::vector<uint32_t>& counter, const std::vector<uint32_t>& key) {
        const auto x = philox({counter.at(0), counter.at(1), counter.at(2), counter.at(3)}, {key.at(0), key.at(1)});
        return std::vector<uint32_t>(x.begin(), x.end());
      },
      "counter"_a, "key"_a);
}

}  // namespace ridgeline
