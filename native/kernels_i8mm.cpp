#include "kernels.h"

#if defined(__aarch64__)
#define RIDGELINE_ISA i8mm
#define RIDGELINE_ISA_NAME "i8mm"
#define RIDGELINE_MATMUL_BF16 matmul<Bf16Product>
#define RIDGELINE_ATTEND_BF16 attend_bf16
#define RIDGELINE_ATTEND_INT8 attend_int8_by_pairs
#define RIDGELINE_MATMUL_QUANT matmul_quant_rows
#define RIDGELINE_MATMUL_TWO_LEVEL matmul_two_level
#include "vec_neon.h"
// after Vec
#include "attention_int8_i8mm.h"
#include "matmul_quant_neon.h"
// after both
#include "kernels_table.h"

const ridgeline::Kernels* ridgeline::kernels_i8mm() { return &i8mm::kTable; }
#else
const ridgeline::Kernels* ridgeline::kernels_i8mm() { return nullptr; }
#endif
