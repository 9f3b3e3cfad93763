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
#endif

namespace ridgeline {

namespace {

#if defined(__x86_64__)
// gcc's builtins also check that the operating system saves the registers.
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

bool has_avx512vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }

// The CPU has tiles for bf16 and int8, and the kernel grants this process their registers (Linux:
// Documentation/arch/x86/xstate.rst).
bool has_amx() {
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kAmxInt8 = 1u << 25;
  constexpr unsigned kNeeded = kAmxBf16 | kAmxTile | kAmxInt8;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kNeeded) != kNeeded) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

bool supported(const Kernels* k) {
  if (!k) return false;
#if defined(__x86_64__)
  if (!std::strcmp(k->name, "amx")) return has_avx512vnni() && __builtin_cpu_supports("avx512bf16") && has_amx();
  if (!std::strcmp(k->name, "avx512vnni")) return has_avx512vnni();
  if (!std::strcmp(k->name, "avx512")) return has_avx512();
  if (!std::strcmp(k->name, "avx2"))
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#endif
  return true;
}

}  // namespace

const Kernels& kernels_by_name(const char* name) {
  for (const Kernels* k : {kernels_amx(), kernels_avx512vnni(), kernels_avx512(), kernels_avx2(), kernels_generic()}) {
    if (!k || std::strcmp(k->name, name)) continue;
    if (!supported(k)) throw std::invalid_argument(std::string("this CPU does not support the ISA path ") + name);
    return *k;
  }
  throw std::invalid_argument(std::string("unknown ISA path '") + name + "': amx, avx512vnni, avx512, avx2 or generic");
}

const Kernels& choose_kernels() {
  if (const char* forced = std::getenv("RIDGELINE_ISA"); forced && *forced) {
    try {
      return kernels_by_name(forced);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(std::string("RIDGELINE_ISA: ") + error.what());
    }
  }
  for (const Kernels* k : {kernels_amx(), kernels_avx512vnni(), kernels_avx512(), kernels_avx2()})
    if (supported(k)) return *k;
  return *kernels_generic();
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
