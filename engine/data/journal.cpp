#include "engine/data/journal.h"

#include <optional>
#include <string_view>

#include "engine/base/hash.h"
#include "engine/base/status.h"

namespace engine::data {
namespace {

constexpr std::size_t kChecksumDigits = 32;

std::optional<nlohmann::ordered_json> ParseRecord(std::string_view line) {
  if (line.size() <= kChecksumDigits || line[kChecksumDigits] != ' ') return std::nullopt;
  const std::string_view json = line.substr(kChecksumDigits + 1);
  if (HashHex(json) != line.substr(0, kChecksumDigits)) return std::nullopt;
  nlohmann::ordered_json record = nlohmann::ordered_json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (record.is_discarded()) return std::nullopt;
  return record;
}

}  // namespace

absl::StatusOr<Journal> Journal::Open(const std::string& path) {
  ASSIGN_OR_RETURN(File file, OpenForWriting(path));
  ASSIGN_OR_RETURN(const std::int64_t bytes, file.Size());
  std::string content(static_cast<std::size_t>(bytes), '\0');
  RETURN_IF_ERROR(file.ReadAt(content.data(), bytes, 0));
  Journal journal(std::move(file));
  for (std::string_view rest = content; !rest.empty();) {
    const std::size_t end = rest.find('\n');
    if (end == std::string_view::npos) break;
    std::optional<nlohmann::ordered_json> record = ParseRecord(rest.substr(0, end));
    if (!record.has_value()) break;
    journal.records_.push_back(*std::move(record));
    journal.bytes_ += static_cast<std::int64_t>(end) + 1;
    rest.remove_prefix(end + 1);
  }
  if (journal.bytes_ < bytes) RETURN_IF_ERROR(journal.file_.Resize(journal.bytes_));
  return journal;
}

absl::Status Journal::Append(const nlohmann::ordered_json& record) {
  const std::string json = record.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const std::string line = HashHex(json) + ' ' + json + '\n';
  RETURN_IF_ERROR(file_.WriteAt(line.data(), static_cast<std::int64_t>(line.size()), bytes_));
  RETURN_IF_ERROR(file_.Sync());
  bytes_ += static_cast<std::int64_t>(line.size());
  return absl::OkStatus();
}

}  // namespace engine::data
