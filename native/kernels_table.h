// Included last by each ISA's source file: names its kernels.
#pragma once
#include "kernels_attention.h"
#include "kernels_attention_int8.h"
#include "kernels_matmul.h"
#include "kernels_quant.h"
#include "kernels_quant_rows.h"
#include "kernels_rope.h"
#include "kernels_rowwise.h"
#include "kernels_sampling.h"
#include "kernels_two_level.h"

#ifndef RIDGELINE_MATMUL_BF16
#define RIDGELINE_MATMUL_BF16 matmul<Bf16Product>
#define RIDGELINE_ATTEND_BF16 attend_bf16
#define RIDGELINE_ATTEND_INT8 attend_int8
#endif
#ifndef RIDGELINE_MATMUL_QUANT
#define RIDGELINE_MATMUL_QUANT matmul_quant
#define RIDGELINE_MATMUL_TWO_LEVEL matmul_two_level
#endif

namespace ridgeline::RIDGELINE_ISA {

static const Kernels kTable = {
    RIDGELINE_ISA_NAME,
    matmul<F32Product>,
    RIDGELINE_MATMUL_BF16,
    RIDGELINE_MATMUL_QUANT,
    RIDGELINE_MATMUL_TWO_LEVEL,
    quantize,
    norm,
    {{rope<PagesF32>, attend_f32}, {rope<PagesBf16>, RIDGELINE_ATTEND_BF16}, {rope<PagesInt8>, RIDGELINE_ATTEND_INT8}},
    merge_splits,
    log_sum_exp,
    block_maxima,
    weigh,
};

}  // namespace ridgeline::RIDGELINE_ISA
