#include "throughput.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "matrix.h"
#include "thread_pool.h"

namespace ridgeline {

double matmul_throughput(const Kernels& kernels, Format format, int rows, int inner, int outputs, int num_threads,
                         double seconds) {
  using Clock = std::chrono::steady_clock;
  const Matrix matrix(outputs, inner, format);
  const size_t stride = matrix.padded_inner(), out_stride = static_cast<size_t>(matrix.num_blocks()) * kLanes;
  const Memory input(rows * stride * sizeof(float)), out(rows * out_stride * sizeof(float));
  const MatmulArgs args{input.as<void>(), stride, matrix.data(), matrix.padded_inner(), matrix.num_blocks(), nullptr,
                        out.as<void>(), out_stride, Epilogue::kStore, Format::kF32};
  const auto kernel = format == Format::kBf16 ? kernels.matmul_bf16 : kernels.matmul_f32;
  constexpr int kBlocksPerTask = 4, kRowsPerTask = 96;  // as a step shares them out
  const int row_tasks = (rows + kRowsPerTask - 1) / kRowsPerTask;
  const int num_tasks = row_tasks * ((args.num_blocks + kBlocksPerTask - 1) / kBlocksPerTask);
  ThreadPool pool(num_threads);
  std::atomic<int> next{0};
  double best = 0;
  const auto begin = Clock::now();
  do {
    next = 0;
    const auto start = Clock::now();
    pool.start([&](int) {
      for (int task; (task = next.fetch_add(1)) < num_tasks;) {
        const int row = task % row_tasks * kRowsPerTask, block = task / row_tasks * kBlocksPerTask;
        kernel(args, row, std::min(row + kRowsPerTask, rows), block, std::min(block + kBlocksPerTask, args.num_blocks));
      }
    });
    pool.wait();
    const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::max(best, 2.0 * rows * inner * outputs / elapsed);
  } while (std::chrono::duration<double>(Clock::now() - begin).count() < seconds);
  return best;
}

}  // namespace ridgeline
