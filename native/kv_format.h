// The formats of keys and values in pages, and what a head takes in a page. See KvLayer for the order of the values.
#pragma once
#include <cstddef>
#include <stdexcept>
#include <string>

#include "kernels.h"

namespace ridgeline {

constexpr const char* kKvFormatNames[kNumKvFormats] = {"fp32", "bf16", "int8"};

inline const char* kv_format_name(KvFormat format) { return kKvFormatNames[static_cast<int>(format)]; }

inline KvFormat parse_kv_format(const std::string& name) {
  for (int i = 0; i < kNumKvFormats; ++i)
    if (name == kKvFormatNames[i]) return static_cast<KvFormat>(i);
  throw std::invalid_argument("KV format '" + name + "': fp32, bf16 or int8");
}

// Keys of int8 are padded to whole groups of four. Behind a page's codes stand its 32 scales.
constexpr int int8_key_dim(int head_dim) { return (head_dim + 3) / 4 * 4; }

inline float* int8_scales(char* codes, int padded_dim) {  // of a head in a page
  return reinterpret_cast<float*>(codes + padded_dim * kPageSize);
}

struct KvHeadBytes {
  size_t k, v;
};

inline KvHeadBytes kv_head_bytes(KvFormat format, int head_dim) {
  const size_t padded = padded_head_dim(head_dim);
  if (format == KvFormat::kInt8)
    return {(int8_key_dim(head_dim) + sizeof(float)) * kPageSize, (padded + sizeof(float)) * kPageSize};
  const size_t element = format == KvFormat::kBf16 ? 2 : 4;
  return {element * head_dim * kPageSize, element * padded * kPageSize};
}

}  // namespace ridgeline
