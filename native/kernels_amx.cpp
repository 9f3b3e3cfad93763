#include "kernels.h"

#if defined(__x86_64__)
#define RIDGELINE_ISA amx
#define RIDGELINE_ISA_NAME "amx"
#define RIDGELINE_MATMUL_BF16 matmul_by_tiles
#define RIDGELINE_ATTEND_BF16 attend_by_tiles
#define RIDGELINE_ATTEND_INT8 attend_int8_by_tiles
#define RIDGELINE_MATMUL_QUANT matmul_quant_by_tiles
#define RIDGELINE_MATMUL_TWO_LEVEL matmul_two_level_by_tiles
#include "vec_avx512.h"
// after Vec
#include "attention_amx.h"
#include "attention_int8_amx.h"
#include "matmul_amx.h"
#include "matmul_quant_amx.h"
#include "two_level_amx.h"
// after both
#include "kernels_table.h"

const ridgeline::Kernels* ridgeline::kernels_amx() { return &amx::kTable; }
#else
const ridgeline::Kernels* ridgeline::kernels_amx() { return nullptr; }
#endif
