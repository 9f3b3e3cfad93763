#include "kernels.h"

#if defined(__aarch64__)
#define RIDGELINE_ISA i8mm
#define RIDGELINE_ISA_NAME "i8mm"
#include "vec_neon.h"
// after Vec
#include "kernels_table.h"

const ridgeline::Kernels* ridgeline::kernels_i8mm() { return &i8mm::kTable; }
#else
const ridgeline::Kernels* ridgeline::kernels_i8mm() { return nullptr; }
#endif
