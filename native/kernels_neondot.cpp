#include "kernels.h"

#if defined(__aarch64__)
#define RIDGELINE_ISA neondot
#define RIDGELINE_ISA_NAME "neondot"
#define RIDGELINE_MATMUL_QUANT matmul_quant_rows
#define RIDGELINE_MATMUL_TWO_LEVEL matmul_two_level
#include "vec_neon.h"
// after Vec
#include "matmul_quant_neon.h"
// after both
#include "kernels_table.h"

const ridgeline::Kernels* ridgeline::kernels_neondot() { return &neondot::kTable; }
#else
const ridgeline::Kernels* ridgeline::kernels_neondot() { return nullptr; }
#endif
