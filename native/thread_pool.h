// A fixed set of threads that run one job at a time.
//
// The caller only starts and waits, so Python works while a step runs. A job takes its work from shared counters; who
// takes which part never changes a result, and a job needs no thread in particular: it is over when a thread has found
// nothing left to do and none is inside. So a thread that the system keeps from its core holds up the others by what it
// has taken and not finished, never by being absent.
//
// A thread that waits, for a job or for others in it, spins for some microseconds and then sleeps: longer, and it would
// take the core from whom it waits for. An idle process uses no CPU.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

namespace ridgeline {

class ThreadPool {
 public:
  // Runs on any number of threads, each with an index of its own. True: nothing is left to do. False: `wait_until`
  // said so.
  using Job = std::function<bool(int thread)>;

  // `niceness`: of the threads alone; without it they are as the process. Throws std::invalid_argument when the system
  // has no room for so many threads, or grants them no such niceness.
  explicit ThreadPool(int num_threads, std::optional<int> niceness = std::nullopt);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(threads_.size()); }

  // The previous job must have been waited for.
  void start(Job job);
  void wait();

  // Inside a job: until `is_done()`, which somebody makes true and then calls `wake`. False: the job has ended
  // meanwhile, and the thread must return false at once, for the caller may be changing what the job stood on.
  template <class Done>
  bool wait_until(const Done& is_done) {
    for (int spins = 0; spins < kSpins; ++spins) {
      if (is_done()) return true;
      relax();
    }
    return sleep_until([&] { return is_done(); });
  }
  void wake();

 private:
  static constexpr int kSpins = 400;  // about 20 us

  static void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  void thread_main(int index);
  void stop();
  bool enter(uint64_t job);
  void leave(bool closes);
  bool sleep_until(const std::function<bool()>& is_done);

  Job job_;
  std::atomic<uint64_t> state_;    // the job's number, whether it takes no more threads, and how many are inside
  std::atomic<uint32_t> over_{0};  // jobs that are over
  std::atomic<uint32_t> news_{0};  // changes when sleepers should look again
  std::atomic<bool> has_sleepers_{false};  // threads may sleep on `news_`, or are about to, and nobody has woken them
  std::atomic<bool> stop_{false};
  uint32_t started_ = 0;  // jobs
  std::vector<std::thread> threads_;
};

}  // namespace ridgeline
