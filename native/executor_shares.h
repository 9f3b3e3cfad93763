// How the threads of a step divide its work.
#pragma once
#include <atomic>

#include "executor.h"

namespace ridgeline {

// Shares the tasks of one loop after another out among the threads. All threads come by the same loops in the same
// order, so each thread's own count of loops names the loop's common counter.
class Executor::Shares {
 public:
  Shares(Executor& executor, int thread) : executor_(executor), thread_(thread) {}

  int thread() const { return thread_; }

  // Calls f(task) for each task 0 .. count - 1 on some thread, and returns when all are done.
  template <class F>
  void run(int count, F f) {
    std::atomic<int>& next = executor_.counters_[loop_++];
    for (int task; (task = next.fetch_add(1, std::memory_order_relaxed)) < count;) f(task);
    executor_.pool_.barrier();
  }

 private:
  Executor& executor_;
  int thread_;
  size_t loop_ = 0;
};

}  // namespace ridgeline
