#define RIDGELINE_ISA generic
#define RIDGELINE_ISA_NAME "generic"
#include "vec_generic.h"
// after Vec
#include "kernels_table.h"

const ridgeline::Kernels* ridgeline::kernels_generic() { return &generic::kTable; }
