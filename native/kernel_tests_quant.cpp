// The kernels of 8-bit activations, for tests; part of `_native.kernels`.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "checks.h"
#include "cpu.h"
#include "kernel_tests.h"
#include "matrix.h"
#include "reference.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ridgeline {
namespace {

template <class T>
using Array2 = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = Array2<float>;
using Bias = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// codes [rows, groups * group], scales and sums [rows, groups]; of groups of 256 also part_sums [rows, groups * 24], as
// they stand in PartSums. The input is transformed in place; `mixing` is [blocks, blocks].
void quantize(const std::string& isa, int hadamard, std::optional<Floats> mixing, int group, Floats input,
              Array2<int8_t> codes, Floats scales, Array2<int32_t> sums, std::optional<Array2<int32_t>> part_sums) {
  const int rows = input.shape(0), width = input.shape(1), num_groups = scales.shape(1);
  std::vector<PartSums> parts(part_sums ? scales.size() : 0);
  const QuantizeArgs args{input.data(), static_cast<size_t>(width), width, hadamard, mixing ? mixing->data() : nullptr,
                          group, num_groups, codes.data(), codes.shape(1), scales.data(), sums.data(),
                          part_sums ? parts.data() : nullptr};
  on_flushing_thread([&] { kernels_by_name(isa.c_str()).quantize(args, 0, rows); });
  for (size_t i = 0; i < parts.size(); ++i) {
    int32_t* out = std::copy_n(parts[i].of_16, 16, part_sums->data() + 24 * i);
    std::copy_n(parts[i].of_32, 8, out);
  }
}

// A quantized input as the kernels want it: padded to whole groups, with sums.
struct PaddedInput {
  PaddedInput(const Matrix& matrix, Array2<int8_t> input, Floats input_scales)
      : stride(matrix.padded_inner()), groups(matrix.num_groups()) {
    const int rows = input.shape(0), inner = input.shape(1), given = input_scales.shape(1), group = stride / groups;
    codes.resize(static_cast<size_t>(rows) * stride);
    scales.resize(static_cast<size_t>(rows) * groups);
    sums.resize(scales.size());
    for (int r = 0; r < rows; ++r) {
      std::copy_n(input.data() + static_cast<size_t>(r) * inner, inner, codes.data() + static_cast<size_t>(r) * stride);
      std::copy_n(input_scales.data() + static_cast<size_t>(r) * given, given,
                  scales.data() + static_cast<size_t>(r) * groups);
    }
    for (size_t i = 0; i < sums.size(); ++i) sums[i] = sum_of(i * group, group);
    if (!matrix.grouping().two_level) return;
    for (size_t i = 0; i < sums.size(); ++i) {
      PartSums& parts = part_sums.emplace_back();
      for (int part = 0; part < 16; ++part) parts.of_16[part] = sum_of(i * group + part * 16, 16);
      for (int part = 0; part < 8; ++part) {
        const int in_order[] = {0, 2, 1, 3, 4, 6, 5, 7};
        parts.of_32[part] = static_cast<int16_t>(sum_of(i * group + in_order[part] * 32, 32));
      }
    }
  }

  int sum_of(size_t first, int count) const {
    return std::accumulate(codes.begin() + first, codes.begin() + first + count, 0);
  }

  int stride, groups;
  std::vector<int8_t> codes;
  std::vector<float> scales;
  std::vector<int32_t> sums;
  std::vector<PartSums> part_sums;
};

// Weights as a test gives them: with integers of their subgroups where they have two levels.
struct GivenWeights {
  Array2<uint8_t> codes;
  Floats scales;
  std::optional<Floats> minima;
  std::optional<Array2<int8_t>> subscales;
  std::optional<Array2<uint8_t>> subminima;

  bool two_level() const { return subscales.has_value(); }
  size_t inner() const { return codes.shape(1); }

  GroupedRows rows_from(size_t first) const {
    GroupedRows rows{codes.data() + first * inner(), scales.data() + first * scales.shape(1),
                     minima ? minima->data() + first * minima->shape(1) : nullptr};
    if (subscales) rows.subscales = subscales->data() + first * subscales->shape(1);
    if (subminima) rows.subminima = subminima->data() + first * subminima->shape(1);
    return rows;
  }
};

// Weights are codes [outputs, inner]; for "silu_mul" gate then value. out [rows, outputs] is the residual for "add".
// The kernel is called for `blocks_per_call` blocks at a time.
void matmul_quant(const std::string& isa, const std::string& epilogue, int blocks_per_call, int bits, int zero, int group,
                  bool half_scales, Array2<int8_t> input, Floats input_scales, Array2<uint8_t> codes, Floats scales,
                  std::optional<Floats> minima, std::optional<Array2<int8_t>> subscales,
                  std::optional<Array2<uint8_t>> subminima, std::optional<Bias> bias, Floats out) {
  const GivenWeights weights{codes, scales, minima, subscales, subminima};
  const int rows = out.shape(0), outputs = out.shape(1), inner = input.shape(1);
  const int padded = round_up(outputs, kLanes), halves = epilogue == "silu_mul" ? 2 : 1;
  Matrix matrix(halves * padded, inner,
                Grouping{bits, zero, group, minima.has_value(), half_scales, weights.two_level()});
  std::vector<float> padded_bias(static_cast<size_t>(halves) * padded), result(static_cast<size_t>(rows) * padded);
  for (int half = 0; half < halves; ++half) {
    const size_t first = static_cast<size_t>(half) * outputs;
    matrix.pack_groups(weights.rows_from(first), half * padded, outputs);
    if (bias) std::copy_n(bias->data() + first, outputs, padded_bias.data() + half * padded);
  }
  for (int r = 0; r < rows; ++r)
    std::copy_n(out.data() + static_cast<size_t>(r) * outputs, outputs, result.data() + static_cast<size_t>(r) * padded);
  const PaddedInput x(matrix, input, input_scales);
  const int blocks = padded / kLanes;
  QuantMatmulArgs args = quant_matmul_args(matrix);
  args.input = x.codes.data();
  args.input_stride = x.stride;
  args.input_scales = x.scales.data();
  args.input_sums = x.sums.data();
  args.part_sums = x.part_sums.data();
  args.num_blocks = blocks;
  args.bias = bias ? padded_bias.data() : nullptr;
  args.out = result.data();
  args.out_stride = padded;
  args.epilogue = parse_epilogue(epilogue);
  on_flushing_thread([&] {
    const Kernels& kernels = kernels_by_name(isa.c_str());
    for (int block = 0; block < blocks; block += blocks_per_call)
      (weights.two_level() ? kernels.matmul_two_level : kernels.matmul_quant)(args, 0, rows, block,
                                                                              std::min(blocks, block + blocks_per_call));
  });
  for (int r = 0; r < rows; ++r)
    std::copy_n(result.data() + static_cast<size_t>(r) * padded, outputs, out.data() + static_cast<size_t>(r) * outputs);
}

void reference_matmul_quant(int zero, int group, Array2<int8_t> input, Floats input_scales, Array2<uint8_t> codes,
                            Floats scales, std::optional<Floats> minima, std::optional<Array2<int8_t>> subscales,
                            std::optional<Array2<uint8_t>> subminima, Floats out) {
  reference::QuantizedProduct product{input.data(), input_scales.data(), codes.data(), scales.data(),
                                            minima ? minima->data() : nullptr, static_cast<int>(out.shape(0)),
                                            static_cast<int>(out.shape(1)), static_cast<int>(input.shape(1)), group, zero};
  if (subscales) {
    product.subscales = subscales->data();
    product.subminima = subminima ? subminima->data() : nullptr;
    product.subgroup = product.inner / static_cast<int>(subscales->shape(1));
  }
  on_flushing_thread([&] { (subscales ? reference::matmul_two_level : reference::matmul_quant)(product, out.data()); });
}

// Packs a whole matrix and unpacks it row by row into `out`; gives the bytes of the packed form.
size_t pack_and_unpack(int bits, int zero, int group, bool half_scales, Array2<uint8_t> codes, Floats scales,
                       std::optional<Floats> minima, std::optional<Array2<int8_t>> subscales,
                       std::optional<Array2<uint8_t>> subminima, Floats out) {
  const GivenWeights weights{codes, scales, minima, subscales, subminima};
  const int outputs = out.shape(0), inner = out.shape(1);
  Matrix matrix(outputs, inner, Grouping{bits, zero, group, minima.has_value(), half_scales, weights.two_level()});
  matrix.pack_groups(weights.rows_from(0), 0, outputs);
  for (int n = 0; n < outputs; ++n) matrix.unpack_row(n, out.data() + static_cast<size_t>(n) * inner);
  return matrix.bytes();
}

}  // namespace

void bind_quant_tests(nb::module_& t) {
  t.def("quantize", &quantize, "isa"_a, "hadamard"_a, "mixing"_a.none(), "group"_a, "input"_a, "codes"_a, "scales"_a,
        "sums"_a, "part_sums"_a = nb::none());
  t.def("matmul_quant", &matmul_quant, "isa"_a, "epilogue"_a, "blocks_per_call"_a, "bits"_a, "zero"_a, "group"_a,
        "half_scales"_a, "input"_a, "input_scales"_a, "codes"_a, "scales"_a, "minima"_a.none(), "subscales"_a.none(),
        "subminima"_a.none(), "bias"_a.none(), "out"_a);
  t.def("reference_matmul_quant", &reference_matmul_quant, "zero"_a, "group"_a, "input"_a, "input_scales"_a, "codes"_a,
        "scales"_a, "minima"_a.none(), "subscales"_a.none(), "subminima"_a.none(), "out"_a);
  t.def("pack_and_unpack", &pack_and_unpack, "bits"_a, "zero"_a, "group"_a, "half_scales"_a, "codes"_a, "scales"_a,
        "minima"_a.none(), "subscales"_a.none(), "subminima"_a.none(), "out"_a);
}

}  // namespace ridgeline
