#include "thread_pool.h"

#include <stdexcept>
#include <string>
#include <system_error>

#include "cpu.h"

namespace ridgeline {

namespace {

// About 20 us of spinning between jobs: longer would take the core from the thread that prepares the next one.
constexpr int kIdleSpins = 400;
// At a barrier the others are at most one task behind; past this many spins somebody lost its core, so yield ours.
constexpr int kBarrierSpins = 4000;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  try {
    for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this, i] { thread_main(i); });
  } catch (const std::system_error& error) {
    const int started = size();
    stop();
    throw std::invalid_argument("only " + std::to_string(started) + " of " + std::to_string(num_threads) +
                                " threads could be started: " + error.what());
  }
}

ThreadPool::~ThreadPool() {
  wait();
  stop();
}

void ThreadPool::stop() {
  stop_ = true;
  ++generation_;
  generation_.notify_all();
  for (auto& t : threads_) t.join();
}

void ThreadPool::start(std::function<void(int)> job) {
  job_ = std::move(job);
  running_ = size();
  ++generation_;
  generation_.notify_all();
}

void ThreadPool::wait() {
  for (int left = running_; left != 0; left = running_) running_.wait(left);
}

void ThreadPool::barrier() {
  const uint32_t phase = barrier_phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size()) {
    arrived_.store(0, std::memory_order_relaxed);
    barrier_phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  for (int spins = 0; barrier_phase_.load(std::memory_order_acquire) == phase; ++spins) {
    if (spins < kBarrierSpins) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::thread_main(int index) {
  flush_denormals();
  uint32_t seen = 0;
  while (true) {
    for (int spins = 0; generation_ == seen && spins < kIdleSpins; ++spins) relax();
    generation_.wait(seen);
    seen = generation_;
    if (stop_) return;
    job_(index);
    if (running_.fetch_sub(1) == 1) running_.notify_all();
  }
}

}  // namespace ridgeline
