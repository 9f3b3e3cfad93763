// `make race`: the pool's trial as a program of its own, for the thread sanitizer.
#include <cstdio>
#include <initializer_list>

#include "cpu.h"
#include "pool_stress.h"

namespace ridgeline {
void flush_denormals() {}  // cpu.cpp would bring all kernels with it
}  // namespace ridgeline

int main() {
  for (const int num_threads : {1, 2, 3, 16}) {
    ridgeline::stress_pool(num_threads, 1000, 50, 8);
    std::printf("%d threads: no race, the same work as one\n", num_threads);
  }
}
