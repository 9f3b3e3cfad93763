// A trial of the thread pool and its shared loops: many jobs of many tiny loops, on any number of threads.
#pragma once

namespace ridgeline {

// Throws std::runtime_error where a task was left out, ran twice or began before the loop before it had ended.
void stress_pool(int num_threads, int num_jobs, int num_loops, int num_tasks);

}  // namespace ridgeline
