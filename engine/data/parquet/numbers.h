// Runs of small numbers, as Parquet packs levels, indices and lengths. (apache/parquet-format: Encodings.md)
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace engine::parquet {

// Numbers of `width` bits, 0 to 32, in the hybrid of runs of one number and of packed ones.
class HybridReader {
 public:
  HybridReader() = default;
  HybridReader(std::string_view bytes, unsigned width) : bytes_(bytes), width_(width) {}

  // Bits that are packed without runs, as booleans are in plain pages.
  static HybridReader OfPackedBits(std::string_view bytes);

  // nullopt: the bytes have ended, or are damaged.
  std::optional<std::uint32_t> Next();

 private:
  bool BeginRun();

  std::string_view bytes_;
  unsigned width_ = 0;
  std::uint64_t left_ = 0;  // of the run
  bool packed_ = false;
  std::uint32_t value_ = 0;    // of a run of one number
  std::string_view run_;       // of packed ones
  std::uint64_t run_bit_ = 0;  // the next one's first bit
};

// DELTA_BINARY_PACKED at the beginning of *bytes, which is then what stands behind. At most `most` numbers; nullopt: damaged. Sums are taken
// modulo 2⁶⁴; those of numbers of 32 bits count modulo 2³².
std::optional<std::vector<std::int64_t>> TakeDeltas(std::string_view* bytes, std::int64_t most);

}  // namespace engine::parquet
