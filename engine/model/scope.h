// The names that steps of one list can read.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/model/dim_table.h"
#include "engine/recipe/document.h"

namespace engine::model {

// What `$name` stands for in a block.
struct Binding {
  const recipe::Node* node = nullptr;
  recipe::Node made = {};  // where `node` is null: a value that no text has, of a ramp
  const recipe::Node& value() const { return node != nullptr ? *node : made; }
  mutable bool read = false;
};

struct NamedValue {
  graph::ValueId value = graph::kNoValue;  // kNoValue: its step has a mistake
  const recipe::Node* step = nullptr;      // that made it; null: it came from outside
  bool read = false;
};

// The values of a list of steps; what it does not know, the list around it may.
struct Scope {
  const DimTable* dims = nullptr;
  Scope* outer = nullptr;
  std::map<std::string, NamedValue, std::less<>> values = {};
  const std::map<std::string, Binding, std::less<>>* bindings = nullptr;
  int branches = 0;       // that join the stream of the stack around it; 0: there is none
  std::string last = {};  // name of the last result; empty: there is none, or there were several

  bool lost_names = false;  // of a step with a mistake in what it calls its results

  bool LostNames() const { return lost_names || (outer != nullptr && outer->LostNames()); }
  NamedValue* Find(std::string_view name) {
    for (Scope* scope = this; scope != nullptr; scope = scope->outer) {
      if (const auto found = scope->values.find(name); found != scope->values.end()) return &found->second;
    }
    return nullptr;
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const Scope* scope = this; scope != nullptr; scope = scope->outer) {
      for (const auto& [name, value] : scope->values) names.push_back(name);
    }
    return names;
  }
};

}  // namespace engine::model
