#include "kernels.h"

#if defined(__x86_64__)
#define RIDGELINE_ISA avx512vnni
#define RIDGELINE_ISA_NAME "avx512vnni"
#include "vec_avx512.h"
// after Vec
#include "kernels_table.h"

const ridgeline::Kernels* ridgeline::kernels_avx512vnni() { return &avx512vnni::kTable; }
#else
const ridgeline::Kernels* ridgeline::kernels_avx512vnni() { return nullptr; }
#endif
