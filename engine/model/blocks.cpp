#include "engine/model/blocks.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/model/step_context.h"
#include "engine/recipe/text.h"

namespace engine::model {
namespace {

using recipe::Entry;
using recipe::Node;

const std::vector<std::string>& Keys() {
  static const std::vector<std::string> keys = {"steps", "like", "without", "gives"};
  return keys;
}

std::string Nearest(std::string_view word, const std::vector<std::string>& words) {
  const std::string nearest = NearestWord(word, words);
  if (!nearest.empty()) return fmt::format("did you mean '{}'?", nearest);
  return words.empty() ? "" : fmt::format("there are {}", fmt::join(words, ", "));
}

void Remove(const Node& names, Node* steps, std::vector<Diagnostic>* diagnostics) {
  if (names.kind != Node::Kind::kArray) {
    ReportText(ErrorAt(names, fmt::format("`without` is a list of names of steps, not {}", Describe(names))),
               diagnostics);
    return;
  }
  for (const Node& name : names.items) {
    const auto found = std::find_if(steps->items.begin(), steps->items.end(), [&](const Node& step) {
      return name.is_string() && recipe::StepName(step) == name.string;
    });
    if (found != steps->items.end()) {
      steps->items.erase(found);
      continue;
    }
    std::vector<std::string> known;
    for (const Node& step : steps->items) known.push_back(recipe::StepName(step));
    ReportText(ErrorAt(name, fmt::format("there is no step {} to leave out", Named(name)),
                       Nearest(name.string, known)),
               diagnostics);
  }
}

}  // namespace

Blocks::Blocks(const Node* blocks, std::vector<Diagnostic>* diagnostics) : node_(blocks) {
  if (blocks == nullptr) return;
  if (blocks->kind != Node::Kind::kTable) {
    ReportText(ErrorAt(*blocks, fmt::format("block is a table of blocks, not {}", Describe(*blocks)),
                       "write [block.NAME], and its steps below"),
               diagnostics);
    node_ = nullptr;
    return;
  }
  std::vector<std::string> open;
  for (const Entry& entry : blocks->entries) Read(entry, &open, diagnostics);
}

const Block* Blocks::Find(std::string_view name) const {
  found_.emplace(name);
  const auto found = blocks_.find(name);
  return found == blocks_.end() || found->second.node == nullptr ? nullptr : &found->second;
}

std::vector<std::string> Blocks::Names() const {
  std::vector<std::string> names;
  if (node_ == nullptr) return names;
  for (const Entry& entry : node_->entries) names.push_back(entry.key);
  return names;
}

std::vector<const Entry*> Blocks::Unused() const {
  std::vector<const Entry*> unused;
  if (node_ == nullptr) return unused;
  for (const Entry& entry : node_->entries) {
    if (!found_.contains(entry.key)) unused.push_back(&entry);
  }
  return unused;
}

void Blocks::Read(const Entry& entry, std::vector<std::string>* open, std::vector<Diagnostic>* diagnostics) {
  if (blocks_.contains(entry.key)) return;
  Block& block = blocks_[entry.key];  // without a node until it is known to be good
  const Node& node = entry.value;
  if (node.kind != Node::Kind::kTable) {
    ReportText(
        ErrorAt(node, fmt::format("block.{} is a table, not {}", recipe::Shown(entry.key), Describe(node)),
                fmt::format("write [block.{}], and its steps below", entry.key)),
        diagnostics);
    return;
  }
  const std::size_t before = diagnostics->size();
  for (const Entry& key : node.entries) {
    if (std::find(Keys().begin(), Keys().end(), key.key) != Keys().end()) continue;
    ReportText(ErrorAt(key, fmt::format("unknown key '{}' of a block", recipe::Shown(key.key)),
                       Nearest(key.key, Keys())),
               diagnostics);
  }
  if (const Node* gives = node.Find("gives"); gives != nullptr) {
    if ((gives != nullptr && gives->is_string())) {
      block.gives = gives->string;
    } else {
      ReportText(ErrorAt(*gives, fmt::format("`gives` is the name of a value, not {}", Describe(*gives))),
                 diagnostics);
    }
  }
  if (node.Find("like") != nullptr) {
    ReadDerived(entry, open, &block, diagnostics);
  } else if (const Node* steps = node.Find("steps"); steps != nullptr && steps->kind == Node::Kind::kArray) {
    block.steps = *steps;
  } else {
    ReportText(ErrorAt(entry, fmt::format("block.{} has no list of steps", recipe::Shown(entry.key)),
                       "steps = [ { do = … }, … ]; or like = \"another block\""),
               diagnostics);
  }
  if (diagnostics->size() == before) block.node = &node;
}

void Blocks::ReadDerived(const Entry& entry, std::vector<std::string>* open, Block* block,
                         std::vector<Diagnostic>* diagnostics) {
  const Node& like = *entry.value.Find("like");
  const auto from = std::find_if(node_->entries.begin(), node_->entries.end(), [&](const Entry& other) {
    return like.is_string() && other.key == like.string;
  });
  if (from == node_->entries.end()) {
    ReportText(ErrorAt(like, fmt::format("there is no block {}", Named(like)), Nearest(like.string, Names())),
               diagnostics);
    return;
  }
  open->push_back(entry.key);
  if (std::find(open->begin(), open->end(), from->key) != open->end()) {
    ReportText(ErrorAt(like, fmt::format("blocks that are like each other in a circle: {} → {}",
                                         fmt::join(*open, " → "), from->key)),
               diagnostics);
    open->pop_back();
    return;
  }
  Read(*from, open, diagnostics);
  open->pop_back();
  const Block* base = Find(from->key);
  if (base == nullptr) {
    ReportText(ErrorAt(like, fmt::format("block.{}, which it is like, has a mistake", from->key)),
               diagnostics);
    return;
  }
  block->steps = base->steps;
  if (entry.value.Find("gives") == nullptr) block->gives = base->gives;
  if (const Node* without = entry.value.Find("without")) Remove(*without, &block->steps, diagnostics);
  if (const Node* steps = entry.value.Find("steps"); steps != nullptr) {
    if (steps->kind == Node::Kind::kArray) {
      ReportText(ErrorAt(*steps,
                         "a block that is like another changes its steps by name, and has no list of its own",
                         "steps.NAME = { attribute = … }"),
                 diagnostics);
    } else {
      recipe::PatchSteps(*steps, &block->steps, diagnostics);
    }
  }
}

}  // namespace engine::model
