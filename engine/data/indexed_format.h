// Byte positions of the .idx layout (drawn in indexed_dataset.h) and the names of the two files: shared by
// the reader and the writer, used by nobody else.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace engine::data {

inline constexpr std::string_view kMagic{"MMIDIDX\0\0", 9};
inline constexpr std::uint64_t kVersion = 1;
inline constexpr std::size_t kVersionAt = 9;
inline constexpr std::size_t kTypeAt = 17;
inline constexpr std::size_t kSequencesAt = 18;
inline constexpr std::size_t kDocumentsAt = 26;
inline constexpr std::size_t kHeaderBytes = 34;
inline constexpr std::size_t kSequenceBytes = 12;  // i32 length and i64 pointer
inline constexpr std::size_t kDocumentBytes = 8;

inline std::string BinPath(const std::string& prefix) { return prefix + ".bin"; }
inline std::string IdxPath(const std::string& prefix) { return prefix + ".idx"; }
// The data set that is the mask of the loss of this one, where there is one (source.h).
inline std::string LossMaskPrefix(const std::string& prefix) { return prefix + "_loss_mask"; }

}  // namespace engine::data
