#include "kernels.h"

#if defined(__x86_64__)
#define RIDGELINE_ISA avx2
#define RIDGELINE_ISA_NAME "avx2"
#include "vec_avx2.h"
// after Vec
#include "kernels_table.h"

const ridgeline::Kernels* ridgeline::kernels_avx2() { return &avx2::kTable; }
#else
const ridgeline::Kernels* ridgeline::kernels_avx2() { return nullptr; }
#endif
