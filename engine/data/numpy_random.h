// numpy's legacy generator, bit for bit: RandomState(seed), its bounded draw and its shuffle (numpy 1.24,
// numpy/random/mtrand.pyx and src/distributions). Sample orders of GPT data sets are defined by it.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace engine::data {

class NumpyRandom {
 public:
  // RandomState(seed) with an integer seed uses Knuth's initialisation, which is std::mt19937's.
  explicit NumpyRandom(std::uint32_t seed) : generator_(seed) {}

  std::uint32_t Next32() { return static_cast<std::uint32_t>(generator_()); }

  // Uniform in [0, max] by masked rejection; draws nothing for max = 0.
  std::uint64_t Interval(std::uint64_t max);

  // RandomState.shuffle of a one-dimensional array.
  template <typename T>
  void Shuffle(std::span<T> values) {
    for (std::size_t i = values.size(); i-- > 1;) std::swap(values[i], values[Interval(i)]);
  }

 private:
  std::mt19937 generator_;
};

}  // namespace engine::data
