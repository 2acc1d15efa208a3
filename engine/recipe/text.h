// The keys of a recipe that are no single values but text: a model's dims, steps and blocks, and the optimizer's groups.
// What a step means, engine/model says; here the texts of several files become one.
//
// A text is kept as a tree whose root has an entry for each of these keys ("model.main", "block"). Where a later file says
// a key again,
//   tables merge key by key; a block that brings its list of steps, or `like`, replaces the one of its name;
//   a list of steps is replaced by a list, and patched by a table: main.layers = { repeat = 12 } sets that attribute of the
//     step called "layers";
//   [[model.replace]], [[model.before]], [[model.after]] and [[model.remove]] edit a list of steps, once.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/recipe/document.h"

namespace engine::recipe {

struct TextKey {
  std::string_view key;  // "model.main"
  bool edits = false;    // it edits a list of steps, and is gone then
  std::string_view doc;
};

const std::vector<TextKey>& TextKeys();
const TextKey* FindTextKey(std::string_view key);  // null if there is none

// Adds what a later file says. Mistakes of its edits are added to `diagnostics`.
void MergeText(const Node& later, Node* into, std::vector<Diagnostic>* diagnostics);

// Sets attributes of steps by their names, as `patch` says: { layers = { repeat = 12 } }.
void PatchSteps(const Node& patch, Node* steps, std::vector<Diagnostic>* diagnostics);

// What a step is called: its `as`, else its `do`.
std::string StepName(const Node& step);

// As TOML writes it on one line.
std::string InlineToml(const Node& node);

// The keys of the text that belong to the table [model], as lines of it, and the tables behind it.
std::string ModelLines(const Node& root);
std::string TextTables(const Node& root);

// "model.dims.D" → "4096", "block.mlp.fc1" → the step: what a text comes to. A step goes by its name.
std::vector<std::pair<std::string, std::string>> TextRows(const Node& root);

// The value of a key as TextChanges names it, within this tree. Of an attribute that a step does not have, the step; of a step that
// a list does not have, the list. Null where the text has nothing around the key either.
const Node* FindInText(const Node& root, std::string_view key);

struct TextChange {
  std::string key;            // "model.dims.D", "block.mlp.router.top_k"
  std::string before, after;  // "none" where that text has no such row or attribute
};

// What differs between two texts, in the order of the first one's rows. Of a step that both have, and that is the same module
// in both, each attribute that differs; of others the whole step.
std::vector<TextChange> TextChanges(const Node& before, const Node& after);

}  // namespace engine::recipe
