#include "kernels.h"

#if defined(__x86_64__)
#define RIDGELINE_ISA avx2vnni
#define RIDGELINE_ISA_NAME "avx2vnni"
#include "vec_avx2.h"
// after Vec
#include "kernels_table.h"

const ridgeline::Kernels* ridgeline::kernels_avx2vnni() { return &avx2vnni::kTable; }
#else
const ridgeline::Kernels* ridgeline::kernels_avx2vnni() { return nullptr; }
#endif
