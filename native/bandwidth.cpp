#include "bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "memory.h"
#include "thread_pool.h"

namespace ridgeline {

namespace {

constexpr size_t kStreams = 4;         // as a kernel reads four blocks of outputs side by side
constexpr size_t kPrefetchBytes = 2048;
constexpr size_t kLineWords = 64 / sizeof(uint64_t);

uint64_t read_all(const uint64_t* data, size_t words) {
  const size_t stream = words / kStreams / kLineWords * kLineWords;
  uint64_t sum[kLineWords] = {};
  for (size_t i = 0; i < stream; i += kLineWords)
    for (size_t s = 0; s < kStreams; ++s) {
      const uint64_t* line = data + s * stream + i;
      __builtin_prefetch(reinterpret_cast<const char*>(line) + kPrefetchBytes);
      for (size_t w = 0; w < kLineWords; ++w) sum[w] ^= line[w];
    }
  uint64_t all = 0;
  for (uint64_t s : sum) all ^= s;
  return all;
}

}  // namespace

double read_bandwidth(size_t bytes, int num_threads, double seconds) {
  using Clock = std::chrono::steady_clock;
  const Memory memory(bytes);
  const size_t words = bytes / sizeof(uint64_t) / num_threads;
  std::fill_n(memory.as<uint64_t>(), bytes / sizeof(uint64_t), 1);
  ThreadPool pool(num_threads);
  std::atomic<int> next{0};
  std::atomic<uint64_t> sink{0};  // keeps the reads from being optimized away
  double best = 0;
  const auto begin = Clock::now();
  do {
    const auto start = Clock::now();
    next = 0;
    pool.start([&](int) {
      for (int part; (part = next++) < num_threads;) sink ^= read_all(memory.as<uint64_t>() + part * words, words);
      return true;
    });
    pool.wait();
    const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::max(best, static_cast<double>(words * num_threads * sizeof(uint64_t)) / elapsed);
  } while (std::chrono::duration<double>(Clock::now() - begin).count() < seconds);
  return best;
}

}  // namespace ridgeline
