// Single kernels by ISA path, for tests: `_native.kernels`.
#pragma once
#include <nanobind/nanobind.h>

#include <string>
#include <thread>

#include "cpu.h"
#include "kernels.h"

namespace ridgeline {

void bind_kernel_tests(nanobind::module_& m);
void bind_quant_tests(nanobind::module_& kernels);

Epilogue parse_epilogue(const std::string& name);  // throws std::invalid_argument

// Kernels run on pool threads, where denormals count as zero; so do tests of them.
template <class F>
void on_flushing_thread(F f) {
  std::thread([&] {
    flush_denormals();
    f();
  }).join();
}

}  // namespace ridgeline
