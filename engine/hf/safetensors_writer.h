// Writing files of tensors (safetensors.h), byte for byte as the reference writer does: widest types first, then by name; a
// header without blanks, padded to a multiple of 8 bytes.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/base/shape.h"
#include "engine/hf/safetensors.h"

namespace engine::hf {

struct TensorDeclaration {
  std::string name;
  StoredType type = StoredType::kF32;  // of whole bytes
  Shape shape;

  std::int64_t rows() const { return shape.rank() == 0 ? 1 : shape[0]; }
  std::int64_t bytes() const { return shape.elements() * (BitsOf(type) / 8); }
};

// Fills `out` with rows [row, row + rows) of a tensor, row-major and little-endian: a row is an index of the first dim with
// all of the others, and a scalar is one row. Called from one thread, in the order of the file's data, each row once; calls
// are of about 16 MiB, or of one row if that is larger.
using FillRows = std::function<absl::Status(const TensorDeclaration& tensor, std::int64_t row,
                                            std::int64_t rows, std::span<std::byte> out)>;

// What every file of a model's weights must say, or `transformers` refuses it.
inline const std::map<std::string, std::string> kPtMetadata = {{"format", "pt"}};

// Writes and syncs PATH.new, which is then renamed: a reader, or a crash, sees the old file or the whole new one. The disk's
// space is taken before the first row is asked for. Errors: InvalidArgument, where the declarations are no file (a name that
// stands twice or is no UTF-8, a type of part of a byte, a header beyond the reader's bounds); what `fill` returns; the
// system's, with the path. After an error PATH is as it was and PATH.new is gone.
absl::Status WriteSafetensors(const std::string& path, std::vector<TensorDeclaration> tensors,
                              const std::map<std::string, std::string>& metadata, const FillRows& fill);

}  // namespace engine::hf
