// Zeroed memory in huge pages where the system grants them: weights, KV pages and buffers.
#pragma once
#include <cstddef>
#include <utility>

namespace ridgeline {

class Memory {
 public:
  Memory() = default;
  explicit Memory(size_t bytes);  // throws std::bad_alloc
  ~Memory();
  Memory(Memory&& other) noexcept { swap(other); }
  Memory& operator=(Memory&& other) noexcept {
    swap(other);
    return *this;
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  void swap(Memory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace ridgeline
