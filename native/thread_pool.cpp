#include "thread_pool.h"

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <system_error>

#include <sys/resource.h>

#include "cpu.h"
#include "futex.h"

namespace ridgeline {

namespace {

// Of `state_`: the job's number stands above these.
constexpr uint64_t kInside = (uint64_t{1} << 31) - 1;  // threads inside
constexpr uint64_t kClosed = uint64_t{1} << 31;
constexpr int kJobShift = 32;

// Of the calling thread alone, as Linux has it. Returns an errno, or 0.
int take_niceness(int niceness) { return setpriority(PRIO_PROCESS, 0, niceness) == 0 ? 0 : errno; }

void try_niceness(int niceness) {
  int error = 0;
  std::thread([&] { error = take_niceness(niceness); }).join();  // which may not be able to take it back
  if (error != 0)
    throw std::invalid_argument("the system refuses threads of niceness " + std::to_string(niceness) + " (" +
                                std::strerror(error) + "): one below the process's own takes root or CAP_SYS_NICE");
}

}  // namespace

ThreadPool::ThreadPool(int num_threads, std::optional<int> niceness) : state_(kClosed) {
  if (niceness) try_niceness(*niceness);
  try {
    for (int i = 0; i < num_threads; ++i)
      threads_.emplace_back([this, i, niceness] {
        if (niceness) take_niceness(*niceness);
        thread_main(i);
      });
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
  ++news_;
  wake_all(news_);
  for (auto& t : threads_) t.join();
}

void ThreadPool::start(Job job) {
  job_ = std::move(job);
  state_ = static_cast<uint64_t>(++started_) << kJobShift;
  ++news_;
  if (has_sleepers_.exchange(false)) wake_all(news_);
}

void ThreadPool::wait() {
  for (uint32_t over = over_; over != started_; over = over_) sleep_while(over_, over);
}

// Once for all that sleep, not again before one of them has come to run.
void ThreadPool::wake() {
  if (!has_sleepers_ || !has_sleepers_.exchange(false)) return;
  ++news_;
  wake_all(news_);
}

bool ThreadPool::enter(uint64_t job) {
  uint64_t state = state_;
  while (state >> kJobShift == job && !(state & kClosed))
    if (state_.compare_exchange_weak(state, state + 1)) return true;
  return false;
}

// The last thread to leave a job that is closed ends it.
void ThreadPool::leave(bool closes) {
  if (closes) state_ |= kClosed;
  const uint64_t state = --state_;
  if (!(state & kClosed) || (state & kInside) > 0) return;
  over_ = static_cast<uint32_t>(state >> kJobShift);
  wake_all(over_);
}

// Sleeps outside of the job, which so can end without this thread.
bool ThreadPool::sleep_until(const std::function<bool()>& is_done) {
  const uint64_t job = state_ >> kJobShift;
  for (bool inside = true; inside; inside = enter(job)) {
    const uint32_t news = news_;
    has_sleepers_ = true;  // after `news`, so that who takes this back changes what is slept on
    if (is_done()) return true;
    leave(false);
    sleep_while(news_, news);
  }
  return false;
}

void ThreadPool::thread_main(int index) {
  flush_denormals();
  while (true) {
    const uint32_t news = news_;
    if (stop_) return;
    if (enter(state_ >> kJobShift)) {
      if (job_(index)) leave(true);
      continue;
    }
    for (int spins = 0; news_ == news && spins < kSpins; ++spins) relax();
    has_sleepers_ = true;
    sleep_while(news_, news);
  }
}

}  // namespace ridgeline
