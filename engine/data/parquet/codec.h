// What Parquet's pages are compressed by.
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <memory>
#include <string_view>

#include "engine/data/parquet/metadata.h"

namespace engine::parquet {

// Bytes that nobody sets to anything before they are written.
class Bytes {
 public:
  Bytes() = default;
  explicit Bytes(std::size_t size) : data_(new char[size]), size_(size) {}
  char* data() { return data_.get(); }
  std::size_t size() const { return size_; }
  std::string_view view() const { return {data_.get(), size_}; }

 private:
  std::unique_ptr<char[]> data_;
  std::size_t size_ = 0;
};

std::string_view Name(Codec codec);  // "zstd"

// Writes exactly `size` bytes to `out`; data that has more, fewer or other ones is an error. LZO and the old LZ4, whose framing
// writers disagreed on, are not read.
absl::Status Decompress(Codec codec, std::string_view compressed, char* out, std::size_t size);

}  // namespace engine::parquet
