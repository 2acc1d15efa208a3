// The steps that place others, and the keys of every step, for checks and pages.
#include <fmt/format.h>

#include <cmath>
#include <string>

#include "engine/model/module.h"

namespace engine::model {
namespace {

const ModuleDef kStack{
    .name = "stack",
    .doc =
        "Repeats blocks. Each reads the stream as x and gives the next one's; what else a block reads and "
        "does not make, "
        "it finds among the values around the stack. A pipeline may be cut between layers.",
    .reads = "the stream x; by `of` = { x = …, bias = … } more, by name",
    .parameters = "NAME.LAYER.BLOCK.STEP…: layers.3.attention.qkv.weight",
    .gives = "the stream",
    .attributes = {
        {.name = "repeat", .kind = AttributeKind::kInteger, .doc = "How many layers.", .min = 1, .max = 2000},
        {.name = "layer",
         .kind = AttributeKind::kNames,
         .doc = "Its blocks in order: [\"gqa as attention\", \"mlp\"]; the name behind `as` stands in "
                "parameters' names."},
        {.name = "pattern",
         .kind = AttributeKind::kWord,
         .doc = "In place of repeat and layer: a letter a layer, \"M-M*-\"."},
        {.name = "letters", .kind = AttributeKind::kTable, .doc = "The blocks of each letter."},
        {.name = "set",
         .kind = AttributeKind::kTable,
         .doc = "Values that blocks read as $name, the same in all layers."},
        {.name = "cycle",
         .kind = AttributeKind::kTable,
         .doc = "Lists of values that layers take in turn: { window = [4096, 0] }."},
        {.name = "ramp",
         .kind = AttributeKind::kTable,
         .doc = "Two numbers each: values go evenly from the first layer's to the last one's: { p = [0.0, "
                "0.1] }."}}};

const ModuleDef kCall{
    .name = "call",
    .doc = "A block, once.",
    .reads = "x; by `of` = { pixels = … } others, by name",
    .parameters = "NAME.STEP…",
    .gives = "what the block gives",
    .least_inputs = 0,
    .attributes = {
        {.name = "block", .kind = AttributeKind::kWord, .doc = "Its name.", .required = true},
        {.name = "set", .kind = AttributeKind::kTable, .doc = "Values that the block reads as $name."},
        {.name = "dims",
         .kind = AttributeKind::kTable,
         .doc = "Dims that are others within the block: { D = 1024 }."}}};

}  // namespace

const std::vector<const ModuleDef*>& Structures() {
  static const std::vector<const ModuleDef*> structures = {&kStack, &kCall};
  return structures;
}

std::string RangeText(const AttributeDef& def) {
  if (std::isinf(def.min) && std::isinf(def.max)) return "";
  std::string low = fmt::format("{} {}", def.open ? "above" : "at least", def.min);
  if (std::isinf(def.max)) return low;
  return fmt::format("{} and {} {}", low, def.open || def.open_end ? "less than" : "at most", def.max);
}

bool InRange(const AttributeDef& def, double number) {
  if (!std::isfinite(number) || number < def.min || number > def.max) return false;
  if (def.open && (number == def.min || number == def.max)) return false;
  return !(def.open_end && number == def.max);
}

const std::vector<StepKey>& StepKeys() {
  static const std::vector<StepKey> keys = {
      {"do", "The module."},
      {"as", "Its name, by which parameters, checkpoints and other steps know it; else the module's."},
      {"of", "The values that it reads: a name, or a list; else the last result."},
      {"to", "What its results are called: a name, or a list; else its own name."}};
  return keys;
}

}  // namespace engine::model
