#include "memory.h"

#include <sys/mman.h>

#include <new>

namespace ridgeline {

Memory::Memory(size_t bytes) : bytes_(bytes ? bytes : 1) {
  const size_t mapped = bytes_;
  void* data = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  madvise(data, mapped, MADV_HUGEPAGE);  // worth 10-20 % of read bandwidth; refusal costs only that
#endif
  data_ = {data, [mapped](void* p) { munmap(p, mapped); }};
}

}  // namespace ridgeline
