// The formats of keys and values in pages, and what a head takes in a page. See KvLayer for the order of the values.
#pragma once
#include <cstddef>
#include <stdexcept>
#include <string>

#include "kernels.h"

namespace ridgeline {

struct KvHeadBytes {
  size_t k, v;
};

inline KvHeadBytes kv_head_bytes(KvFormat format, int head_dim) {
  const size_t element = format == KvFormat::kBf16 ? 2 : 4;
  return {element * head_dim * kPageSize, element * padded_head_dim(head_dim) * kPageSize};
}

constexpr const char* kKvFormatNames[kNumKvFormats] = {"fp32", "bf16"};

inline const char* kv_format_name(KvFormat format) { return kKvFormatNames[static_cast<int>(format)]; }

inline KvFormat parse_kv_format(const std::string& name) {
  for (int i = 0; i < kNumKvFormats; ++i)
    if (name == kKvFormatNames[i]) return static_cast<KvFormat>(i);
  throw std::invalid_argument("KV format '" + name + "': fp32 or bf16");
}

}  // namespace ridgeline
