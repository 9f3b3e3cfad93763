#include "kernels.h"

#if defined(__x86_64__)
#define RIDGELINE_ISA avx512
#define RIDGELINE_ISA_NAME "avx512"
#include "vec_avx512.h"
// after Vec
#include "kernels_table.h"

const ridgeline::Kernels* ridgeline::kernels_avx512() { return &avx512::kTable; }
#else
const ridgeline::Kernels* ridgeline::kernels_avx512() { return nullptr; }
#endif
