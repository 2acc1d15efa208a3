#include "engine/data/tokenizer/chars_map.h"

#include <cstring>

#include "engine/base/status.h"

namespace engine::tokenizer {

absl::StatusOr<CharsMap> CharsMap::Parse(std::string_view table) {
  CharsMap map;
  if (table.empty()) return map;
  std::uint32_t bytes = 0;
  if (table.size() < sizeof bytes)
    return DataLoss("the table of characters has {} bytes, and at least 4 are needed", table.size());
  std::memcpy(&bytes, table.data(), sizeof bytes);
  table.remove_prefix(sizeof bytes);
  if (bytes > table.size() || bytes % sizeof(std::uint32_t) != 0 || bytes == 0) {
    return DataLoss(
        "the trie of the table of characters has {} bytes, of which {} are there; it is whole units of 4",
        bytes, table.size());
  }
  map.units_.resize(bytes / sizeof(std::uint32_t));
  std::memcpy(map.units_.data(), table.data(), bytes);
  map.texts_ = std::make_shared<std::string>(table.substr(bytes));
  if (!map.texts_->empty() && map.texts_->back() != '\0')
    return DataLoss("the last text of the table of characters has no end");
  for (std::size_t c = 0; c < map.of_ascii_.size(); ++c) {
    const char text = static_cast<char>(c);
    map.of_ascii_[c] = map.Shortest({&text, 1});
  }
  return map;
}

// A unit: bits 0 to 7 the byte that leads to it (bit 31 set: it is a value), bit 8 whether a string ends here, the rest
// how far on its children are.
std::optional<CharsMap::Match> CharsMap::Find(std::string_view text, bool longest) const {
  std::optional<Match> found;
  if (units_.empty()) return found;
  const auto offset = [](std::uint32_t unit) { return (unit >> 10) << ((unit & 512) >> 6); };
  std::size_t position = offset(units_[0]);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    position ^= byte;
    if (position >= units_.size()) break;
    const std::uint32_t unit = units_[position];
    if ((unit & 0x800000FF) != byte) break;
    position ^= offset(unit);
    if ((unit & 256) == 0) continue;
    if (position >= units_.size()) break;
    const std::uint32_t value = units_[position] & 0x7FFFFFFF;
    if (value >= texts_->size()) break;
    found = {i + 1, std::string_view(texts_->c_str() + value)};
    if (!longest) break;
  }
  return found;
}

}  // namespace engine::tokenizer
