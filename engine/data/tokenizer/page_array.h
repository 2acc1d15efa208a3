// Zeroed memory straight from the system, in large pages where there are some: a table that is read at random places then
// costs few walks through page tables. Pages that are never touched cost nothing.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

namespace engine::tokenizer {

template <typename T>
class PageArray {
 public:
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

  PageArray() = default;
  explicit PageArray(std::size_t size) : size_(size) {
    if (size == 0) return;
    // A large page begins at a multiple of its size.
    const std::size_t extra = bytes() >= kLargePage ? kLargePage : 0;
    mapped_bytes_ = bytes() + extra;
    mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped_ == MAP_FAILED) throw std::bad_alloc();
    char* begin = static_cast<char*>(mapped_);
    if (extra > 0) {
      const std::size_t behind = reinterpret_cast<std::size_t>(begin) % kLargePage;
      if (behind > 0) begin += kLargePage - behind;
#ifdef MADV_HUGEPAGE
      madvise(begin, bytes(), MADV_HUGEPAGE);  // where it is refused, small pages do
#endif
    }
    data_ = reinterpret_cast<T*>(begin);
  }
  PageArray(const PageArray& other) : PageArray(other.size_) {
    if (size_ > 0) std::memcpy(data_, other.data_, bytes());
  }
  PageArray(PageArray&& other) noexcept { *this = std::move(other); }
  PageArray& operator=(const PageArray& other) { return *this = PageArray(other); }
  PageArray& operator=(PageArray&& other) noexcept {
    std::swap(mapped_, other.mapped_);
    std::swap(mapped_bytes_, other.mapped_bytes_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~PageArray() {
    if (mapped_ != nullptr) munmap(mapped_, mapped_bytes_);
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }

 private:
  static constexpr std::size_t kLargePage = std::size_t{2} << 20;
  std::size_t bytes() const { return size_ * sizeof(T); }

  void* mapped_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace engine::tokenizer
