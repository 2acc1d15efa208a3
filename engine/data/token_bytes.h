// The bytes of a data set's .bin: a file that is mapped, or an object that is read by ranges.
#pragma once

#include <absl/functional/function_ref.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "engine/data/mapped_file.h"
#include "engine/storage/block_reader.h"

namespace engine::data {

class TokenBytes {
 public:
  static absl::StatusOr<TokenBytes> Open(const std::string& name);

  std::int64_t size() const;
  // Whether reading means asking a server.
  bool is_remote() const { return remote_.has_value(); }

  // Bytes [offset, offset + bytes), which are there, in one piece or several, one behind the other: all but the last one have a multiple
  // of 8 bytes. Of an object the next pieces are under way meanwhile. Callable from any thread.
  absl::Status Visit(std::int64_t offset, std::int64_t bytes,
                     absl::FunctionRef<void(std::span<const std::byte>)> visit) const;
  // Bytes that will be visited soon. Returns at once.
  void Prefetch(std::int64_t offset, std::int64_t bytes, storage::When when) const;

  // FingerprintOfBlocks of a file; of an object its size and version, which a server tells without giving its bytes.
  std::string Fingerprint() const;

 private:
  std::optional<MappedFile> file_;
  std::optional<storage::BlockReader> remote_;
};

}  // namespace engine::data
