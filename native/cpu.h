// Which ISA path this process runs, chosen once.
#pragma once
#include <string>
#include <vector>

#include "kernels.h"

namespace ridgeline {

// The fastest path that this CPU and operating system support, or the one that RIDGELINE_ISA names. Throws
// std::invalid_argument when that one is unknown or not supported here.
const Kernels& choose_kernels();

// The path called `name`; throws as above.
const Kernels& kernels_by_name(const char* name);

struct IsaPath {
  std::string name, problem;  // problem: why it cannot run here; empty when it can
};

// Every path compiled for this architecture, fastest first.
std::vector<IsaPath> isa_paths();

// Denormals count as zero on the calling thread, as in AMX's arithmetic; also several times faster.
void flush_denormals();

}  // namespace ridgeline
