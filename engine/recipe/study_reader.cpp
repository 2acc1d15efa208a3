#include "engine/recipe/study_reader.h"

#include <fmt/format.h>

#include <utility>

namespace engine::recipe {

void StudyReader::Error(const Mark& mark, std::string message, std::string hint) {
  diagnostics_.push_back(source_->Error(mark, std::move(message), std::move(hint)));
}

void StudyReader::Unknown(const Entry& entry, const char* what, const std::string& table,
                          const std::vector<std::string>& known) {
  const std::string nearest = NearestWord(entry.key, known);
  Error(entry.key_mark,
        fmt::format("unknown {} '{}'{}", what, Shown(entry.key),
                    table.empty() ? " of a study" : fmt::format(" in [{}]", table)),
        nearest.empty() ? "" : fmt::format("did you mean '{}'?", nearest));
}

std::optional<Settings> StudyReader::Checked(const Node& table) {
  const std::size_t before = diagnostics_.size();
  Settings settings = ParseSettings({source_, table}, Provenance::Origin::kSet, nullptr, &diagnostics_);
  if (diagnostics_.size() == before) return settings;
  return std::nullopt;
}

std::optional<Settings> StudyReader::SettingsOf(const std::vector<std::string>& keys, const Mark& key_mark,
                                                const Node& leaf) {
  Node node = leaf;
  for (auto key = keys.rbegin(); key != keys.rend(); ++key) {
    Node table;
    table.kind = Node::Kind::kTable;
    table.source = leaf.source;
    table.mark = leaf.mark;
    table.entries.push_back({*key, key == keys.rbegin() ? key_mark : leaf.mark, std::move(node)});
    node = std::move(table);
  }
  return Checked(node);
}

}  // namespace engine::recipe
