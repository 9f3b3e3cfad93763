#include "throughput.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "checks.h"
#include "product_tasks.h"
#include "thread_pool.h"

namespace ridgeline {

namespace {

// The largest operations per second of a product, shared out among threads as a step does it.
template <class Args>
double best_rate(int rows, const Matrix& matrix, int num_threads, double seconds, const Args& args,
                 ProductKernel<Args> kernel, size_t row_bytes) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const ProductTasks tasks(rows, matrix.num_blocks(), row_bytes);
  ThreadPool pool(num_threads);
  std::atomic<int> next{0};
  double best = 0;
  const auto begin = Clock::now();
  do {
    next = 0;
    const auto start = Clock::now();
    pool.start([&](int) {
      for (int task; (task = next.fetch_add(1)) < tasks.count();) tasks.run(task, args, kernel);
      return true;
    });
    pool.wait();
    best = std::max(best, 2.0 * rows * matrix.inner() * matrix.outputs() / since(start));
  } while (since(begin) < seconds);
  return best;
}

// Untouched memory is one page of zeros, which would be read from the cache.
void touch(Matrix& matrix) {
  for (Memory* section : matrix.sections()) std::memset(section->as<char>(), 0, section->bytes());
}

}  // namespace

Matrix matrix_of_format(const std::string& format, int outputs, int inner) {
  if (format == "fp32") return Matrix(outputs, inner, Format::kF32);
  if (format == "bf16") return Matrix(outputs, inner, Format::kBf16);
  if (format == "int8") return Matrix(outputs, inner, Grouping{8, 128, inner, false, false});
  if (format == "q4_k" || format == "q5_k" || format == "q6_k") {
    const TwoLevel form{format[1] - '0'};
    return Matrix(outputs, inner, Grouping{form.bits, form.zero(), kSuperBlock, form.has_minima(), true, true});
  }
  int bits = 0, group = 0, length = 0;
  std::sscanf(format.c_str(), "int%d-g%d%n", &bits, &group, &length);
  const std::string rest = format.substr(length);
  if (length == 0 || (rest != "" && rest != "-zp"))
    throw std::invalid_argument("format '" + format + "': fp32, bf16, int8, int8-g64, int4-g32, int4-g32-zp ... q4_k, q5_k, q6_k");
  const bool minima = rest == "-zp";
  return Matrix(outputs, inner, Grouping{bits, minima ? 0 : 1 << (bits - 1), group, minima, true});
}

double matmul_throughput(const Kernels& kernels, Matrix matrix, int rows, int num_threads, double seconds) {
  touch(matrix);
  const size_t element = matrix.is_quantized() ? 1 : element_bytes(matrix.format());
  const size_t stride = row_stride(matrix.padded_inner(), element);
  const size_t out_stride = row_stride(matrix.num_blocks() * kLanes, sizeof(float));
  const Memory input(rows * stride * element), out(rows * out_stride * sizeof(float));
  if (!matrix.is_quantized()) {
    const MatmulArgs args{input.as<void>(), stride, matrix.data(), matrix.padded_inner(), matrix.num_blocks(), nullptr,
                          out.as<void>(), out_stride, Epilogue::kStore, Format::kF32};
    const auto kernel = matrix.format() == Format::kBf16 ? kernels.matmul_bf16 : kernels.matmul_f32;
    return best_rate(rows, matrix, num_threads, seconds, args, kernel, stride * element);
  }
  const Memory scales(rows * matrix.num_groups() * sizeof(float)), sums(rows * matrix.num_groups() * sizeof(int32_t));
  const Memory part_sums(rows * matrix.num_groups() * sizeof(PartSums));
  QuantMatmulArgs args = quant_matmul_args(matrix);
  args.input = input.as<int8_t>();
  args.input_stride = stride;
  args.input_scales = scales.as<float>();
  args.input_sums = sums.as<int32_t>();
  args.part_sums = part_sums.as<PartSums>();
  args.out = out.as<float>();
  args.out_stride = out_stride;
  const auto kernel = args.two_level ? kernels.matmul_two_level : kernels.matmul_quant;
  return best_rate(rows, matrix, num_threads, seconds, args, kernel, stride);
}

}  // namespace ridgeline
