#include "engine/metrics/wandb_log.h"

#include <zlib.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/base/status.h"
#include "engine/metrics/protobuf.h"

namespace engine::metrics {
namespace {

constexpr std::int64_t kBlockBytes = 32768;
constexpr std::int64_t kHeaderBytes = 7;  // of the file, and of a fragment

enum FragmentType : char { kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4 };

std::uint32_t Checksum(std::string_view type_and_data) {
  return static_cast<std::uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(type_and_data.data()),
                                          static_cast<uInt>(type_and_data.size())));
}

std::uint64_t NumberAt(std::string_view bytes, std::size_t at, int count) {
  std::uint64_t number = 0;
  for (int i = count - 1; i >= 0; --i)
    number = number << 8 | static_cast<unsigned char>(bytes[at + static_cast<std::size_t>(i)]);
  return number;
}

// What is left of the block that byte `offset` of the file lies in.
std::int64_t LeftOfBlock(std::int64_t offset) { return kBlockBytes - offset % kBlockBytes; }

// A fragment that begins where there is room for its header.
struct Fragment {
  char type = 0;
  std::string data;
};

// nullopt: it is not whole.
absl::StatusOr<std::optional<Fragment>> FragmentAt(const File& file, std::int64_t file_bytes,
                                                   std::int64_t offset) {
  const std::int64_t left = file_bytes - offset;
  if (left < kHeaderBytes) return std::nullopt;
  std::string header(kHeaderBytes, '\0');
  RETURN_IF_ERROR(file.ReadAt(header.data(), kHeaderBytes, offset));
  const std::size_t length = NumberAt(header, 4, 2);
  if (left - kHeaderBytes < static_cast<std::int64_t>(length)) return std::nullopt;
  std::string data(length, '\0');
  RETURN_IF_ERROR(file.ReadAt(data.data(), static_cast<std::int64_t>(length), offset + kHeaderBytes));
  if (Checksum(header[6] + data) != NumberAt(header, 0, 4)) return std::nullopt;
  return Fragment{header[6], std::move(data)};
}

absl::StatusOr<bool> HasWandbHeader(const File& file, std::int64_t file_bytes) {
  if (file_bytes < kHeaderBytes) return false;
  std::string header(kHeaderBytes, '\0');
  RETURN_IF_ERROR(file.ReadAt(header.data(), kHeaderBytes, 0));
  return header == WandbFileHeader();
}

}  // namespace

std::string WandbFileHeader() { return ":W&B" + LittleEndian(0xBEE1, 2) + LittleEndian(0, 1); }

std::string WandbFragments(std::string_view record, std::int64_t offset) {
  std::string out;
  bool first = true;
  bool last = false;
  while (!last) {
    std::int64_t left = LeftOfBlock(offset + static_cast<std::int64_t>(out.size()));
    if (left < kHeaderBytes) {
      out.append(static_cast<std::size_t>(left), '\0');
      left = kBlockBytes;
    }
    const std::size_t length = std::min(record.size(), static_cast<std::size_t>(left - kHeaderBytes));
    last = length == record.size();
    const char type = first ? (last ? kFull : kFirst) : (last ? kLast : kMiddle);
    const std::string checked = type + std::string(record.substr(0, length));
    out += LittleEndian(Checksum(checked), 4) + LittleEndian(length, 2) + checked;
    record.remove_prefix(length);
    first = false;
  }
  return out;
}

absl::Status VisitWandbRecords(const File& file,
                               const std::function<bool(std::string_view record, std::int64_t end)>& visit) {
  ASSIGN_OR_RETURN(const std::int64_t file_bytes, file.Size());
  ASSIGN_OR_RETURN(const bool is_log, HasWandbHeader(file, file_bytes));
  if (!is_log) return absl::OkStatus();
  std::string record;
  for (std::int64_t at = kHeaderBytes;;) {
    if (LeftOfBlock(at) < kHeaderBytes) at += LeftOfBlock(at);
    ASSIGN_OR_RETURN(const std::optional<Fragment> fragment, FragmentAt(file, file_bytes, at));
    if (!fragment) return absl::OkStatus();
    at += kHeaderBytes + static_cast<std::int64_t>(fragment->data.size());
    if (fragment->type == kFull || fragment->type == kFirst) record.clear();
    record += fragment->data;
    const bool ends = fragment->type == kFull || fragment->type == kLast;
    if (ends && !visit(record, at)) return absl::OkStatus();
  }
}

}  // namespace engine::metrics
