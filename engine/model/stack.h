// The structural steps `stack` and `call`, as their tables say.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/model/attributes.h"
#include "engine/model/blocks.h"
#include "engine/model/scope.h"

namespace engine::model {

struct BlockUse {
  const Block* block = nullptr;
  std::string label;  // "attention" of "gqa as attention"; empty: none
  std::string text;   // "gqa as attention"
};

using Bindings = std::map<std::string, Binding, std::less<>>;

// A stack's layers, from the first to the last.
struct StackPlan {
  std::vector<std::vector<BlockUse>> layers;
  int branches = 0;  // that join its stream: inputs of the residual steps of its blocks, but for the stream
};

// What a stack repeats; nullopt, with mistakes, where that cannot be said.
std::optional<StackPlan> PlanStack(const recipe::Node& step, const Blocks& blocks, Scope* scope,
                                   AttributeReader* attributes, std::vector<Diagnostic>* diagnostics);

// What `set`, `cycle` and `ramp` give the i-th of n layers; names go to the same values in each call.
Bindings BindingsOf(const recipe::Node& step, std::int64_t layer, std::int64_t layers,
                    std::vector<Diagnostic>* diagnostics);

// What sets a layer apart from others of its stack: the blocks that a pattern gives it, the values of its cycles. Empty where
// there are neither. The numbers of a ramp, which differ from layer to layer, set none apart.
std::string VariantOf(const recipe::Node& step, const std::vector<BlockUse>& uses, std::int64_t layer);

}  // namespace engine::model
