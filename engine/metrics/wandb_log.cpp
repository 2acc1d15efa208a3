#include "engine/metrics/wandb_log.h"

#include <zlib.h>

#include <algorithm>

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
  std::string_view data;
};

// nullopt: it is not whole.
std::optional<Fragment> FragmentAt(std::string_view file, std::int64_t offset) {
  const std::string_view rest = file.substr(static_cast<std::size_t>(offset));
  if (rest.size() < kHeaderBytes) return std::nullopt;
  const std::size_t length = NumberAt(rest, 4, 2);
  if (rest.size() < kHeaderBytes + length) return std::nullopt;
  if (Checksum(rest.substr(6, 1 + length)) != NumberAt(rest, 0, 4)) return std::nullopt;
  return Fragment{rest[6], rest.substr(kHeaderBytes, length)};
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

std::optional<std::vector<WandbRecord>> ReadWandbRecords(std::string_view file) {
  if (!file.starts_with(WandbFileHeader())) return std::nullopt;
  std::vector<WandbRecord> records;
  std::string data;
  for (std::int64_t at = kHeaderBytes;;) {
    if (LeftOfBlock(at) < kHeaderBytes) at += LeftOfBlock(at);
    if (at >= static_cast<std::int64_t>(file.size())) break;
    const std::optional<Fragment> fragment = FragmentAt(file, at);
    if (!fragment) break;
    at += kHeaderBytes + static_cast<std::int64_t>(fragment->data.size());
    if (fragment->type == kFull || fragment->type == kFirst) data.clear();
    data += fragment->data;
    if (fragment->type == kFull || fragment->type == kLast) records.push_back({at, data});
  }
  return records;
}

}  // namespace engine::metrics
