// TOML text as a tree in which every key and value knows its place. The only door to toml++.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/recipe/source.h"

namespace engine::recipe {

struct Entry;

struct Node {
  enum class Kind { kTable, kArray, kString, kInteger, kFloat, kBoolean, kDateTime };
  Kind kind = Kind::kTable;
  Mark mark;         // of the value; of the header for a [table]
  SourcePtr source;  // which the mark is of: trees of several files are merged (recipe/text.h)
  std::string string;
  std::int64_t integer = 0;
  double number = 0.0;
  bool boolean = false;
  std::vector<Node> items;     // kArray
  std::vector<Entry> entries;  // kTable, in order of place

  bool is_table() const { return kind == Kind::kTable; }
  bool is_array() const { return kind == Kind::kArray; }
  bool is_string() const { return kind == Kind::kString; }
  const Node* Find(std::string_view key) const;  // the value of a table's key; null where there is none
  Node* Find(std::string_view key);
};

struct Entry {
  std::string key;
  Mark key_mark;
  Node value;
};

struct Document {
  SourcePtr source;
  Node root;
};

// Limits on what is handed to the parser, so that it neither recurses deeply nor fills the memory.
constexpr int kMaxNesting = 64;
constexpr int kMaxTokens = 200'000;

// nullopt, with the reason in `diagnostics`, where the text is not TOML or is beyond the limits.
std::optional<Document> ParseToml(SourcePtr source, std::vector<Diagnostic>* diagnostics);

// "the integer 12", "the string \"12\"", "a table": what was found, for messages.
std::string Describe(const Node& node);

// A mistake at a value, or at a key of its table.
Diagnostic ErrorAt(const Node& node, std::string message, std::string hint = "");
Diagnostic ErrorAt(const Entry& entry, std::string message, std::string hint = "");

}  // namespace engine::recipe
