// A fast checksum of many bytes: it reads them at the speed of the memory, so that a mapped file of weights can be
// verified whole at every start. It finds damage, not forgery.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ridgeline {

// One number per section; the work is shared out in pieces, so that one large section keeps all threads busy.
std::vector<uint64_t> checksums(const std::vector<std::span<const uint8_t>>& sections, int num_threads);

}  // namespace ridgeline
