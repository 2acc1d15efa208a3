#include "engine/recipe/study_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/recipe/parse.h"
#include "engine/recipe/study_reader.h"

namespace engine::recipe {
namespace {

constexpr std::array<const char*, 4> kSections = {kStudyKey, "variants", "grid", "one_at_a_time"};

const std::vector<std::string> kHeadKeys = {"base", "title", "metric", "metric_iterations", "seeds"};

bool IsSection(const std::string& key) {
  return std::find(kSections.begin(), kSections.end(), key) != kSections.end();
}

bool Is(const Entry& entry, Node::Kind kind, const char* what, StudyReader* reader) {
  if (entry.value.kind == kind) return true;
  reader->Error(entry.value.mark,
                fmt::format("study.{} must be {}, found {}", entry.key, what, Describe(entry.value)));
  return false;
}

void ParseMetric(const Node& value, StudyReader* reader, StudyHead* head) {
  head->metric = value.string;
  head->metric_mark = value.mark;
  if (head->metric == kValidationLoss || head->metric == kTrainLoss) return;
  const std::string nearest = NearestWord(head->metric, {kValidationLoss, kTrainLoss});
  reader->Error(value.mark,
                fmt::format("study.metric must be one of \"{}\", \"{}\", found {}", kValidationLoss,
                            kTrainLoss, Describe(value)),
                nearest.empty() ? "" : fmt::format("did you mean \"{}\"?", nearest));
}

std::vector<std::int64_t> ParseSeeds(const Node& list, StudyReader* reader) {
  if (list.items.empty())
    reader->Error(list.mark, "study.seeds is empty", "leave it out to train with the base's seed");
  std::vector<std::int64_t> seeds;
  for (const Node& item : list.items) {
    const std::optional<Settings> seed = reader->SettingsOf({"training", "seed"}, item.mark, item);
    if (!seed) continue;
    const std::int64_t number = std::get<std::int64_t>(seed->values.at("training.seed").value);
    if (std::find(seeds.begin(), seeds.end(), number) != seeds.end()) {
      reader->Error(item.mark, fmt::format("seed {} is there twice", number));
    }
    seeds.push_back(number);
  }
  return seeds;
}

StudyHead ParseHead(const Node& table, StudyReader* reader) {
  StudyHead head;
  for (const Entry& entry : table.entries) {
    const Node& value = entry.value;
    if (entry.key == "base") {
      if (!Is(entry, Node::Kind::kString, "a path", reader)) continue;
      head.base = value.string;
      head.base_mark = value.mark;
      if (head.metric_mark.line == 0) head.metric_mark = value.mark;
    } else if (entry.key == "title") {
      if (Is(entry, Node::Kind::kString, "a string", reader)) head.title = value.string;
    } else if (entry.key == "metric") {
      if (Is(entry, Node::Kind::kString, "a string", reader)) ParseMetric(value, reader, &head);
    } else if (entry.key == "metric_iterations") {
      if (!Is(entry, Node::Kind::kInteger, "an integer", reader)) continue;
      head.metric_iterations = value.integer;
      head.metric_iterations_mark = value.mark;
      if (value.integer < 1) {
        reader->Error(value.mark,
                      fmt::format("study.metric_iterations must be at least 1, found {}", value.integer));
      }
    } else if (entry.key == "seeds") {
      if (Is(entry, Node::Kind::kArray, "a list of integers", reader)) head.seeds = ParseSeeds(value, reader);
    } else {
      reader->Unknown(entry, "key", kStudyKey, kHeadKeys);
    }
  }
  if (head.metric_iterations_mark.line == 0) head.metric_iterations_mark = head.metric_mark;
  return head;
}

}  // namespace

StudyText ParseStudy(const Document& document, std::vector<Diagnostic>* diagnostics) {
  StudyReader reader(document, diagnostics);
  StudyText text;
  Mark head{1, 1, 1};
  const Entry* variants = nullptr;
  for (const Entry& entry : document.root.entries) {
    const bool table = entry.value.kind == Node::Kind::kTable;
    if (std::find(kHeadKeys.begin(), kHeadKeys.end(), entry.key) != kHeadKeys.end()) {
      reader.Error(entry.key_mark, fmt::format("unknown key '{}' of a study", entry.key),
                   fmt::format("it is a key of [{}]: write that line above it", kStudyKey));
    } else if (!IsSection(entry.key)) {
      reader.Unknown(entry, table ? "section" : "key", "", {kSections.begin(), kSections.end()});
    } else if (!table) {
      reader.Error(entry.value.mark,
                   fmt::format("{} must be a table, found {}", entry.key, Describe(entry.value)),
                   fmt::format("write [{}], and its keys below", entry.key));
    } else if (entry.key == kStudyKey) {
      head = entry.value.mark;
      text.head = ParseHead(entry.value, &reader);
    } else if (variants != nullptr) {
      reader.Error(entry.key_mark,
                   fmt::format("[{}] beside [{}]: a study has one of them", entry.key, variants->key));
    } else {
      variants = &entry;
      text.variants = ParseStudyVariants(entry, &reader);
    }
  }
  if (reader.broken()) return text;
  if (text.head.base.empty())
    reader.Error(head, "study.base is required", "the path of a recipe, relative to the study");
  if (variants == nullptr) {
    reader.Error(head, "a study needs variants", "one of [variants.NAME], [grid] and [one_at_a_time]");
  }
  return text;
}

}  // namespace engine::recipe
