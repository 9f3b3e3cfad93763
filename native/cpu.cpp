#include "cpu.h"

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace ridgeline {

namespace {

#if defined(__x86_64__)
// gcc's builtins also check that the operating system saves the registers.
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

// Older compilers do not know it by name.
bool has_avx2vnni() {
  constexpr unsigned kAvxVnni = 1u << 4;
  unsigned a, b, c, d;
  return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & kAvxVnni);
}

bool has_avx512vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }

// The CPU has tiles for bf16 and int8, and the kernel grants this process their registers (Linux:
// Documentation/arch/x86/xstate.rst).
const char* amx_problem() {
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kAmxInt8 = 1u << 25;
  constexpr unsigned kNeeded = kAmxBf16 | kAmxTile | kAmxInt8;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kNeeded) != kNeeded)
    return "this CPU has no tiles for bf16 and int8";
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0)
    return "the operating system refuses this process the tiles' registers (arch_prctl; Linux 5.16 or newer grants them)";
  return nullptr;
}
#elif defined(__aarch64__)
#if defined(__linux__)
// Bits of AT_HWCAP and AT_HWCAP2 (Linux: Documentation/arch/arm64/elf_hwcaps.rst).
bool has_dotprod() { return getauxval(AT_HWCAP) >> 20 & 1; }
bool has_i8mm() { return getauxval(AT_HWCAP2) >> 13 & 1; }
#elif defined(__APPLE__)
bool has_feature(const char* name) {
  int value = 0;
  size_t bytes = sizeof value;
  return sysctlbyname(name, &value, &bytes, nullptr, 0) == 0 && value == 1;
}
bool has_dotprod() { return has_feature("hw.optional.arm.FEAT_DotProd"); }
bool has_i8mm() { return has_feature("hw.optional.arm.FEAT_I8MM"); }
#else
bool has_dotprod() { return false; }
bool has_i8mm() { return false; }
#endif
#endif

// Why `k` cannot run here; null: it can.
const char* problem(const Kernels* k) {
#if defined(__x86_64__)
  if (!std::strcmp(k->name, "amx")) {
    if (!has_avx512vnni() || !__builtin_cpu_supports("avx512bf16")) return "this CPU has no AVX-512 with VNNI and BF16";
    return amx_problem();
  }
  if (!std::strcmp(k->name, "avx512vnni")) return has_avx512vnni() ? nullptr : "this CPU has no AVX-512 with VNNI";
  if (!std::strcmp(k->name, "avx512")) return has_avx512() ? nullptr : "this CPU has no AVX-512 (F, BW, VL and DQ)";
  if (!std::strcmp(k->name, "avx2vnni")) return has_avx2vnni() ? nullptr : "this CPU has no AVX2 with AVX-VNNI";
  if (!std::strcmp(k->name, "avx2")) return has_avx2() ? nullptr : "this CPU has no AVX2 with FMA and F16C";
#elif defined(__aarch64__)
  const bool needs_i8mm = !std::strcmp(k->name, "i8mm");
  if ((needs_i8mm || !std::strcmp(k->name, "neondot")) && !has_dotprod())
    return "this CPU has no dot products of 8-bit integers (dotprod)";
  if (needs_i8mm && !has_i8mm()) return "this CPU has no products of 8-bit matrices (i8mm)";
#endif
  (void)k;
  return nullptr;
}

// Those compiled for this architecture, fastest first.
std::vector<const Kernels*> all_kernels() {
  std::vector<const Kernels*> all;
  for (const Kernels* k : {kernels_amx(), kernels_avx512vnni(), kernels_avx512(), kernels_avx2vnni(), kernels_avx2(),
                           kernels_i8mm(), kernels_neondot(), kernels_neon(), kernels_generic()})
    if (k) all.push_back(k);
  return all;
}

}  // namespace

const Kernels& kernels_by_name(const char* name) {
  std::string known;
  for (const Kernels* k : all_kernels()) {
    known += std::string(known.empty() ? "" : ", ") + k->name;
    if (std::strcmp(k->name, name)) continue;
    if (const char* why = problem(k))
      throw std::invalid_argument(std::string("this CPU does not support the ISA path ") + name + ": " + why);
    return *k;
  }
  throw std::invalid_argument(std::string("unknown ISA path '") + name + "': this build has " + known);
}

const Kernels& choose_kernels() {
  if (const char* forced = std::getenv("RIDGELINE_ISA"); forced && *forced) {
    try {
      return kernels_by_name(forced);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(std::string("RIDGELINE_ISA: ") + error.what());
    }
  }
  for (const Kernels* k : all_kernels())
    if (!problem(k)) return *k;
  return *kernels_generic();
}

std::vector<IsaPath> isa_paths() {
  std::vector<IsaPath> paths;
  for (const Kernels* k : all_kernels()) {
    const char* why = problem(k);
    paths.push_back({k->name, why ? why : ""});
  }
  return paths;
}

void flush_denormals() {
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040);  // flush to zero, denormals are zero
#elif defined(__aarch64__)
  uint64_t fpcr;
  asm volatile("mrs %0, fpcr" : "=r"(fpcr));
  asm volatile("msr fpcr, %0" ::"r"(fpcr | (1ull << 24)));
#endif
}

}  // namespace ridgeline
