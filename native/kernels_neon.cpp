#include "kernels.h"

#if defined(__aarch64__)
#define RIDGELINE_ISA neon
#define RIDGELINE_ISA_NAME "neon"
#include "vec_neon.h"
// after Vec
#include "kernels_table.h"

const ridgeline::Kernels* ridgeline::kernels_neon() { return &neon::kTable; }
#else
const ridgeline::Kernels* ridgeline::kernels_neon() { return nullptr; }
#endif
