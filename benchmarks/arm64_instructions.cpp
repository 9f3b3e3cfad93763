// Takes one product `count` times on an ISA path: arm64_instructions.py counts what one more of them executes.
//
//   arm64_instructions ISA FORMAT ROWS OUTPUTS INNER COUNT
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "../native/cpu.h"
#include "../native/matrix.h"
#include "../native/throughput.h"

using namespace ridgeline;

int main(int argc, char** argv) {
  if (argc != 7) return std::puts("ISA FORMAT ROWS OUTPUTS INNER COUNT"), 2;
  const Kernels& kernels = kernels_by_name(argv[1]);
  const int rows = std::atoi(argv[3]), outputs = std::atoi(argv[4]), inner = std::atoi(argv[5]), count = std::atoi(argv[6]);
  const Matrix matrix = matrix_of_format(argv[2], outputs, inner);
  const size_t stride = matrix.padded_inner(), blocks = matrix.num_blocks();
  std::vector<float> out(rows * blocks * kLanes), values(rows * stride);
  if (!matrix.is_quantized()) {
    const bool bf16 = matrix.format() == Format::kBf16;
    const MatmulArgs args{values.data(), stride,           matrix.data(),    matrix.padded_inner(), matrix.num_blocks(),
                          nullptr,       out.data(), blocks * kLanes, Epilogue::kStore,      Format::kF32};
    for (int i = 0; i < count; ++i) (bf16 ? kernels.matmul_bf16 : kernels.matmul_f32)(args, 0, rows, 0, matrix.num_blocks());
    return 0;
  }
  std::vector<float> scales(rows * matrix.num_groups());
  std::vector<int32_t> sums(scales.size());
  std::vector<PartSums> part_sums(scales.size());
  QuantMatmulArgs args = quant_matmul_args(matrix);
  args.input = reinterpret_cast<const int8_t*>(values.data());
  args.input_stride = stride;
  args.input_scales = scales.data();
  args.input_sums = sums.data();
  args.part_sums = part_sums.data();
  args.out = out.data();
  args.out_stride = blocks * kLanes;
  for (int i = 0; i < count; ++i)
    (args.two_level ? kernels.matmul_two_level : kernels.matmul_quant)(args, 0, rows, 0, matrix.num_blocks());
}
