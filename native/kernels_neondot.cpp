#include "kernels.h"

#if defined(__aarch64__)
#define RIDGELINE_ISA neondot
#define RIDGELINE_ISA_NAME "neondot"
#include "vec_neon.h"
// after Vec
#include "kernels_table.h"

const ridgeline::Kernels* ridgeline::kernels_neondot() { return &neondot::kTable; }
#else
const ridgeline::Kernels* ridgeline::kernels_neondot() { return nullptr; }
#endif
