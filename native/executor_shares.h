// How the threads of a step divide its work.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "executor.h"

namespace ridgeline {

// Shares the tasks of one loop after another out among the threads. All threads come by the same loops in the same
// order, so each thread's own count of loops names the loop's counters, one for each thread's part of the tasks.
class Executor::Shares {
 public:
  Shares(Executor& executor, int thread) : executor_(executor), thread_(thread) {}

  int thread() const { return thread_; }

  // Calls f(task) for each task 0 .. count - 1 on some thread, first ones first, and returns when all are done.
  template <class F>
  void run(int count, F f) {
    std::atomic<int>& next = counter(0);
    for (int task; (task = next.fetch_add(1, std::memory_order_relaxed)) < count;) f(task);
    end_loop();
  }

  // Calls f(begin, end) for pieces of 0 .. count - 1, at most `grain` long. A thread takes the pieces of its own equal
  // part in order, so that it reads memory in one stream, and then those that others, held up, have left of theirs.
  template <class F>
  void run_in_parts(int count, int grain, F f) {
    const int threads = executor_.pool_.size();
    for (int i = 0; i < threads; ++i) {
      const int owner = (thread_ + i) % threads;
      const int part_begin = part_start(count, owner, threads), part_end = part_start(count, owner + 1, threads);
      std::atomic<int>& taken = counter(owner);
      while (part_begin + taken.load(std::memory_order_relaxed) < part_end) {
        const int begin = part_begin + taken.fetch_add(grain, std::memory_order_relaxed);
        if (begin < part_end) f(begin, std::min(part_end, begin + grain));
      }
    }
    end_loop();
  }

 private:
  static int part_start(int count, int part, int parts) {
    return static_cast<int>(static_cast<int64_t>(count) * part / parts);
  }

  // Those of one thread stand together, so that taking one's own disturbs nobody.
  std::atomic<int>& counter(int owner) { return executor_.counters_[owner * executor_.num_loops_ + loop_]; }

  void end_loop() {
    executor_.pool_.barrier();
    ++loop_;
  }

  Executor& executor_;
  int thread_;
  size_t loop_ = 0;
};

}  // namespace ridgeline
