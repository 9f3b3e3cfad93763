// How the threads of a job divide its loops among them.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "thread_pool.h"

namespace ridgeline {

inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// When a loop ended, and of what it was. The thread that ended it had prepared its inputs, if it had, for so long.
struct LoopTime {
  int op = -1, prepared_op = -1;
  double end_s = 0, prepare_s = 0;
};

// What the threads have in common: each loop's counters, one for each thread's part of the tasks that are taken, and
// one of the tasks that are done.
class SharedLoops {
 public:
  explicit SharedLoops(ThreadPool& pool) : pool_(pool) {}

  // Before a job, while the pool rests. Allocates only for more loops than ever.
  void reset(size_t num_loops, bool timed) {
    num_loops_ = num_loops;
    const size_t counters = num_loops * (pool_.size() + 1);
    if (counters_.size() < counters) counters_ = std::vector<std::atomic<int>>(counters);
    for (auto& c : counters_) c.store(0, std::memory_order_relaxed);
    times_.assign(timed ? num_loops : 0, {});
  }

  // After a job that was timed, in the order of the loops; those without tasks have no end.
  const std::vector<LoopTime>& times() const { return times_; }

 private:
  friend class Shares;

  // Those of one thread stand together, so that taking one's own disturbs nobody.
  std::atomic<int>& taken(size_t loop, int owner) { return counters_[owner * num_loops_ + loop]; }
  std::atomic<int>& done(size_t loop) { return counters_[pool_.size() * num_loops_ + loop]; }

  ThreadPool& pool_;
  size_t num_loops_ = 0;
  std::vector<std::atomic<int>> counters_;
  std::vector<LoopTime> times_;
};

// One thread's way through them. All threads come by the same loops in the same order, so each one's own count of loops
// names the counters. A loop ends with its last task, whoever has not come by yet, and finds it ended when it does: so
// what a task reads and writes is touched inside of tasks only.
class Shares {
 public:
  Shares(SharedLoops& loops, int thread) : loops_(loops), thread_(thread) {}

  int thread() const { return thread_; }

  // Calls f(task) for each task 0 .. count - 1 on some thread, first ones first, and returns when all are done. False:
  // the job has ended meanwhile, and this thread must leave it as it stands.
  template <class F>
  [[nodiscard]] bool run(int count, F f) {
    std::atomic<int>& taken = loops_.taken(loop_, 0);
    int num_done = 0;
    while (taken.load(std::memory_order_relaxed) < count) {
      const int task = taken.fetch_add(1, std::memory_order_relaxed);
      if (task >= count) break;
      f(task);
      ++num_done;
    }
    return end_loop(count, num_done);
  }

  // Calls f(begin, end) for pieces of 0 .. count - 1, at most `grain` long. A thread takes the pieces of its own equal
  // part in order, so that it reads memory in one stream, and then those that others, held up, have left of theirs.
  template <class F>
  [[nodiscard]] bool run_in_parts(int count, int grain, F f) {
    const int threads = loops_.pool_.size();
    int num_done = 0;
    for (int i = 0; i < threads; ++i) {
      const int owner = (thread_ + i) % threads;
      const int part_begin = part_start(count, owner, threads), part_end = part_start(count, owner + 1, threads);
      std::atomic<int>& taken = loops_.taken(loop_, owner);
      while (part_begin + taken.load(std::memory_order_relaxed) < part_end) {
        const int begin = part_begin + taken.fetch_add(grain, std::memory_order_relaxed);
        if (begin >= part_end) break;
        const int end = std::min(part_end, begin + grain);
        f(begin, end);
        num_done += end - begin;
      }
    }
    return end_loop(count, num_done);
  }

  // An op that this thread does for itself before its first task of the next loops, if it gets one; -1: none. Its
  // inputs only stand still while a task of theirs is not done.
  void prepare_later(int op) { to_prepare_ = op; }
  int take_preparation() { return std::exchange(to_prepare_, -1); }

  // For the times: which op the next loops are of, and what this thread prepared for the one under way.
  void begin_op(int op) { time_.op = op; }
  void note_preparation(int op, double seconds) { time_.prepared_op = op, time_.prepare_s = seconds; }

 private:
  static int part_start(int count, int part, int parts) {
    return static_cast<int>(static_cast<int64_t>(count) * part / parts);
  }

  bool end_loop(int count, int num_done) {
    const size_t loop = loop_++;
    LoopTime time = std::exchange(time_, {time_.op});
    std::atomic<int>& done = loops_.done(loop);
    const bool timed = !loops_.times_.empty();
    if (timed) time.end_s = now_s();
    if (num_done == 0 || done.fetch_add(num_done) + num_done < count)
      return loops_.pool_.wait_until([&] { return done.load() >= count; });
    loops_.pool_.wake();
    if (timed) loops_.times_[loop] = time;  // this thread alone ends the loop, and the job lasts until it has left
    return true;
  }

  SharedLoops& loops_;
  int thread_;
  size_t loop_ = 0;
  int to_prepare_ = -1;
  LoopTime time_;  // of the loop under way
};

}  // namespace ridgeline
