// Single kernels by ISA path, for tests: `_native.kernels`.
#pragma once
#include <nanobind/nanobind.h>

namespace ridgeline {

void bind_kernel_tests(nanobind::module_& m);

}  // namespace ridgeline
