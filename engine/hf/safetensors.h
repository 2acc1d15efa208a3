// Files of tensors as Hugging Face's `safetensors` defines them: eight bytes with the length N of a header, N bytes of JSON, and
// the tensors' data without holes, row-major and little-endian.
#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/base/shape.h"

namespace engine::hf {

// Element types, in the order in which a writer puts them, the last one first.
enum class StoredType : std::uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};
std::string_view Name(StoredType type);  // as a header has it: "BF16"
int BitsOf(StoredType type);
// The engine's type of the same numbers, where it has one.
std::optional<DType> DTypeOf(StoredType type);
std::optional<StoredType> StoredTypeOf(DType dtype);

struct StoredTensor {
  std::string name;
  StoredType type = StoredType::kF32;
  Shape shape;
  std::int64_t begin = 0, end = 0;  // bytes, within the file's data
};

// What a header may be, so that no file makes a reader work or remember without end: the reference reader's bound of
// its length, and generous ones of what can be in it.
inline constexpr std::int64_t kMostHeaderBytes = 100'000'000;
inline constexpr std::int64_t kMostTensors = 1'000'000;
inline constexpr int kMostDims = 64;

// A file, mapped into memory, read only. Constant after Open, so many threads may read at once. The size is that of the
// moment of opening: a file that another program replaces by renaming (as every writer of this format does) stays whole
// here, while one that is cut short in its place kills the process that reads what is gone (SIGBUS).
class SafetensorsFile {
 public:
  // Looks at the header wholly, and at no data. Symbolic links are followed. Nothing of a file is trusted: InvalidArgument,
  // with the file and what is wrong with it, for each that the format does not allow, for more than the bounds above, and
  // for what is no regular file; NotFound where there is none.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  const std::string& path() const { return path_; }
  // In the order of their data.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const StoredTensor* Find(std::string_view name) const;  // null if there is none
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // Of no alignment that could be relied on.
  std::span<const std::byte> DataOf(const StoredTensor& tensor) const;
  // Brings bytes [begin, begin + bytes) of a tensor's data into memory, in one request to the disk where the system can: for
  // 16 MiB or so before they are read, which is faster than to wait page by page.
  void Prefetch(const StoredTensor& tensor, std::int64_t begin, std::int64_t bytes) const;
  // Says that a tensor's data was read and won't be soon: the pages no longer count as this process's memory. It may still
  // be read, also meanwhile, and then comes from the file again.
  void Release(const StoredTensor& tensor) const;

 private:
  struct Map;
  // The pages that hold bytes [begin, end) of the data.
  std::span<std::byte> PagesOf(std::int64_t begin, std::int64_t end) const;

  std::string path_;
  std::shared_ptr<const Map> map_;
  std::int64_t data_begin_ = 0;  // byte of the file
  std::vector<StoredTensor> tensors_;
  std::map<std::string, std::string> metadata_;
  absl::flat_hash_map<std::string, int> index_;
};

}  // namespace engine::hf
