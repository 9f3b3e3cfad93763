// A fixed set of threads that run one job at a time, all of them together.
//
// The caller only starts and waits, so Python works while a step runs. Inside a job the threads hand out tasks by
// counters and meet at barriers; who takes which task never changes a result. Between jobs they spin briefly, then
// sleep: an idle process uses no CPU.
#pragma once
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace ridgeline {

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);  // throws std::invalid_argument when the system has no room for so many
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(threads_.size()); }

  // Runs job(thread index) on every thread. The previous job must have been waited for.
  void start(std::function<void(int)> job);
  void wait();

  // All threads of the running job meet here; also publishes what each wrote.
  void barrier();

 private:
  void thread_main(int index);
  void stop();

  std::function<void(int)> job_;
  std::atomic<uint32_t> generation_{0};  // counts jobs
  std::atomic<int> running_{0};          // threads still in the current job
  std::atomic<bool> stop_{false};
  std::atomic<int> arrived_{0};
  std::atomic<uint32_t> barrier_phase_{0};
  std::vector<std::thread> threads_;
};

}  // namespace ridgeline
