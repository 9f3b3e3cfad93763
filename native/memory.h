// Zeroed memory in huge pages where the system grants them: weights, KV pages and buffers; or bytes of a mapped file.
#pragma once
#include <cstddef>
#include <memory>
#include <utility>

namespace ridgeline {

class Memory {
 public:
  Memory() = default;
  explicit Memory(size_t bytes);  // throws std::bad_alloc
  // Somebody else's bytes, which are there as long as a copy of `data` is.
  Memory(std::shared_ptr<void> data, size_t bytes) : data_(std::move(data)), bytes_(bytes) {}
  Memory(Memory&&) noexcept = default;
  Memory& operator=(Memory&&) noexcept = default;

  template <class T>
  T* as() const {
    return static_cast<T*>(data_.get());
  }
  size_t bytes() const { return bytes_; }
  const std::shared_ptr<void>& shared() const { return data_; }

 private:
  std::shared_ptr<void> data_;
  size_t bytes_ = 0;
};

}  // namespace ridgeline
