// Shape: the sizes of a tensor's dims, outermost first (row-major).
#pragma once

#include <absl/container/inlined_vector.h>

#include <cstdint>
#include <initializer_list>
#include <string>

namespace engine {

class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims) : dims_(dims) {}

  int rank() const { return static_cast<int>(dims_.size()); }
  std::int64_t operator[](int dim) const { return dims_[dim]; }
  std::int64_t& operator[](int dim) { return dims_[dim]; }
  void push_back(std::int64_t size) { dims_.push_back(size); }
  auto begin() const { return dims_.begin(); }
  auto end() const { return dims_.end(); }

  // Number of elements; 1 for a scalar (rank 0).
  std::int64_t elements() const { return elements(0, rank()); }
  // Product of the sizes of dims [from, to).
  std::int64_t elements(int from, int to) const {
    std::int64_t product = 1;
    for (int dim = from; dim < to; ++dim) product *= dims_[dim];
    return product;
  }

  bool operator==(const Shape& other) const { return dims_ == other.dims_; }
  bool operator!=(const Shape& other) const { return !(*this == other); }

  std::string ToString() const {  // "[2, 128, 768]"
    std::string text = "[";
    for (int dim = 0; dim < rank(); ++dim) {
      if (dim > 0) text += ", ";
      text += std::to_string(dims_[dim]);
    }
    return text + "]";
  }

 private:
  absl::InlinedVector<std::int64_t, 5> dims_;
};

}  // namespace engine
