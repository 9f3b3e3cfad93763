#include "pool_stress.h"

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "shared_loops.h"

namespace ridgeline {

namespace {

using Cells = std::vector<uint32_t>;  // plain memory, so that a race detector sees what the pool does not order

// Each loop makes one row of cells from the other, every cell from itself and its neighbour.
void run_task(Cells (&rows)[2], int loop, int task, uint32_t salt) {
  const Cells& from = rows[loop % 2];
  Cells& to = rows[(loop + 1) % 2];
  to[task] += from[task] * 31 + from[(task + 1) % from.size()] + salt;
}

Cells serially(int num_jobs, int num_loops, int num_tasks) {
  Cells rows[2] = {Cells(num_tasks, 1), Cells(num_tasks, 2)};
  for (int job = 0; job < num_jobs; ++job)
    for (int loop = 0; loop < num_loops; ++loop)
      for (int task = 0; task < num_tasks; ++task) run_task(rows, loop, task, job);
  return rows[0];
}

}  // namespace

void stress_pool(int num_threads, int num_jobs, int num_loops, int num_tasks) {
  Cells rows[2] = {Cells(num_tasks, 1), Cells(num_tasks, 2)};
  uint32_t salt = 0;  // changes between jobs, when no thread may look at it
  ThreadPool pool(num_threads);
  SharedLoops loops(pool);
  for (int job = 0; job < num_jobs; ++job) {
    loops.reset(num_loops, false);
    salt = job;
    pool.start([&](int thread) {
      Shares shares(loops, thread);
      for (int loop = 0; loop < num_loops; ++loop) {
        const auto tasks = [&](int begin, int end) {
          for (int task = begin; task < end; ++task) run_task(rows, loop, task, salt);
        };
        const bool goes_on = loop % 3 ? shares.run_in_parts(num_tasks, 2, tasks)
                                      : shares.run(num_tasks, [&](int task) { tasks(task, task + 1); });
        if (!goes_on) return false;
      }
      return true;
    });
    pool.wait();
  }
  if (rows[0] != serially(num_jobs, num_loops, num_tasks))
    throw std::runtime_error(std::to_string(num_threads) + " threads did other work than one");
}

}  // namespace ridgeline
