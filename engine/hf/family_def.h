// What a family of models is, as data: the keys of its config.json, what each means in our text of the model, and its weights.
// A family is a file of families/ and a line of families.list.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/hf/config_keys.h"
#include "engine/hf/draft.h"
#include "engine/hf/family.h"
#include "engine/hf/graph_view.h"
#include "engine/hf/weights.h"
#include "engine/recipe/recipe.h"

namespace engine::hf {

enum class Is : std::uint8_t {
  kCount,    // a whole number from 1 on, of a dim of ours
  kNumber,   // a number of a step
  kFlag,     // true or false, of a step
  kAct,      // an activation's name
  kFixed,    // must be what it is by default, or null: nothing else is supported
  kUnread,   // the same of a key that files have and the classes do not read: it is never written
  kIgnored,  // has no effect on what is trained
};

// A key of a config.json.
struct KeyRow {
  std::string_view key;
  Is is = Is::kIgnored;
  // What the class takes where the file leaves the key out or has null. Of a count also, as text, what follows from other
  // dims: "H", "D//H", "4*D". null: the file must have it.
  nlohmann::json initial = {};
  nlohmann::json if_null =
      {};  // of a count: what it takes where the file has null, if that is something else
  // Where our text says it: "D", a dim; or the place of an attribute (Draft::Set).
  std::vector<std::string_view> to = {};
  Place from = {};             // where our graph has it, for export
  std::string_view note = {};  // of kIgnored and kFixed: why
  std::vector<std::string_view> aliases = {};
};

// A config.json on its way to a text. Rows come first, in their order, then the features'; so these find all dims.
struct Importing {
  ConfigKeys& keys;
  Draft draft;
  Sizes sizes;
  std::vector<WeightRow> rows;
  std::vector<WeightRow> other_rows;
  std::vector<std::string> ignored;  // patterns of tensors
  Remarks notes;
  Remarks* problems;
  bool long_sequences =
      false;  // of two lists of longrope's factors, the one for sequences beyond the original length

  std::int64_t Dim(std::string_view name) const { return draft.Dim(name).value_or(1); }
  void Problem(std::string text) { problems->push_back(std::move(text)); }
};

// The other way: a config.json of a graph.
struct Exporting {
  const GraphView& graph;
  const recipe::Recipe& recipe;
  nlohmann::json config = nlohmann::json::object();
  Remarks problems;  // what no config of the family could say
};

// Several keys that make up something together, or what no row can say. Each has both directions.
struct Feature {
  std::vector<std::string_view> keys;  // all that it reads or writes
  std::function<void(Importing&)> read;
  std::function<void(Exporting&)> write;
};

struct Family {
  std::string_view name;
  std::vector<std::string_view> model_types;
  std::vector<std::string_view> architectures;  // the first is written
  std::string_view blocks;                      // "engine:configs/blocks/llama.toml"
  std::vector<KeyRow> keys;
  std::vector<Feature> features = {};
  std::vector<WeightRow> weights = {};
  std::vector<std::string> ignored = {};  // tensors that are no parameters
  // The same parameters in other forms that files come in: without a prefix, or with all experts in one tensor.
  std::vector<WeightRow> other_weights = {};
  // Where the keys stand in an object of their own, beside those of an image tower: its name, and the keys that may be
  // around it. Such a family can be imported only.
  std::string_view nested = {};
  std::vector<KeyRow> around = {};
};

const std::vector<Family>& Families();  // families/registry.cpp
// null if there is none.
const Family* FindFamily(std::string_view name);

// ImportConfig, for one of a model that was trained on sequences of another kind.
absl::StatusOr<ImportedModel> ImportFor(const nlohmann::json& config, const std::string& path,
                                        bool long_sequences);

// Keys that configurations of all families have: bookkeeping, generation. They are accounted for in each family.
const std::vector<KeyRow>& CommonKeys();

// Rows with other defaults than those that they had.
std::vector<KeyRow> WithDefaults(std::vector<KeyRow> rows,
                                 std::initializer_list<std::pair<std::string_view, nlohmann::json>> defaults);
template <typename T>
std::vector<T> Joined(std::vector<T> rows, const std::vector<T>& more) {
  rows.insert(rows.end(), more.begin(), more.end());
  return rows;
}

// The activation of ours that a name of theirs stands for; empty: none. And the name that is written for one of ours, "silu".
std::string_view ActOfName(std::string_view name);
std::string_view NameOfAct(std::string_view act);

// For the graphs that are compared: of a text of ours, one sample of a few tokens, without dropout and
// without adapters, which no config speaks of.
absl::StatusOr<graph::Graph> GraphOfText(const std::string& recipe, const std::string& name);
graph::Graph GraphOfRecipe(const recipe::Recipe& recipe);

}  // namespace engine::hf
