// A module is what a step of a model text does: which values it reads, which attributes and parameters it has, which nodes
// it emits. One ModuleDef a module, in engine/model/modules/<name>.cpp, listed in modules.list. From the definitions follow
// the checks of a text, docs/modules.md, `engine modules` and the steps in schemas/recipe.schema.json.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/model/build.h"

namespace engine::model {

class StepContext;

enum class AttributeKind : std::uint8_t {
  kInteger,      // 4, "H/K+2"
  kNumber,       // 0.1, "D**-0.5"
  kFlag,         // true
  kWord,         // one of AttributeDef::words
  kShape,        // ["K", "H/K+2", "E"]
  kInitializer,  // a standard deviation, or a word of kInitializerWords
  kValue,        // the name of a value
  kParameter,    // the whole name of a parameter that a step before has made
  kRotary,       // the name of a table of [model.rotary], or "none"
  kParts,        // { u = ["F"], g = ["F"] }: named shapes
  kNumbers,      // [1.0, 1.02]
  kTable,        // of a structure: a table that it reads itself
  kNames,        // of a structure: a list of strings
};

// What an initializer's word means. branch: σ / √n, with n branches that join the stream in all layers of the stack (GPT-2;
// Megatron-LM's scaled init).
inline constexpr std::string_view kInitializerWords[] = {"normal", "branch", "zeros", "ones"};

struct AttributeDef {
  std::string_view name;
  AttributeKind kind = AttributeKind::kInteger;
  std::string_view initial = {};  // as a step would say it; empty: none
  std::string_view doc = {};
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool open = false;                         // min and max are out of range themselves: above 0
  bool open_end = false;                     // max alone is: 0 to below 1
  std::vector<std::string_view> words = {};  // of kWord
  bool required = false;
  bool may_lack = false;  // of kValue: where no value is called as `initial` says, the step has none
};

struct ModuleDef {
  std::string_view name;
  std::string_view doc;         // what it gives, with its formula and source
  std::string_view reads = {};  // its inputs, with their shapes
  std::string_view parameters = {};
  std::string_view gives = {};
  int least_inputs = 1;
  int most_inputs = 1;  // −1: any number
  // How many results; −1: as its attributes say. 0: none, a loss.
  int results = 1;
  std::vector<AttributeDef> attributes = {};
  absl::StatusOr<graph::ValueIds> (*emit)(StepContext& step) = nullptr;
};

// In the order of modules.list.
const std::vector<const ModuleDef*>& Modules();
// "at least 0 and less than 1"; empty where all numbers are lawful.
std::string RangeText(const AttributeDef& def);
bool InRange(const AttributeDef& def, double number);

const ModuleDef* FindModule(std::string_view name);  // null if there is none

// Keys of every step, beside the attributes of its module.
struct StepKey {
  std::string_view name;
  std::string_view doc;
};
const std::vector<StepKey>& StepKeys();

// Steps that are no modules: they place others. Same form, for checks and pages; their emit is null.
const std::vector<const ModuleDef*>& Structures();

// The keys of a table of [model.rotary].
const std::vector<AttributeDef>& RotaryKeys();

}  // namespace engine::model
