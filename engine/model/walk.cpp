#include "engine/model/walk.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/status.h"
#include "engine/model/dim_table.h"
#include "engine/model/module.h"
#include "engine/model/step_context.h"
#include "engine/recipe/text.h"

namespace engine::model {
namespace {

using graph::Graph;
using graph::kNoValue;
using graph::Unit;
using graph::ValueId;
using graph::ValueIds;
using recipe::Node;

constexpr int kMostNested = 16;               // of blocks within blocks
constexpr std::int64_t kMostSteps = 500'000;  // that all layers have together

// While it lives, what is emitted belongs to the component.
class InComponent {
 public:
  InComponent(Graph* graph, graph::Component component) : graph_(*graph) {
    graph_.OpenComponent(std::move(component));
  }
  ~InComponent() { graph_.CloseComponent(); }
  InComponent(const InComponent&) = delete;
  InComponent& operator=(const InComponent&) = delete;

 private:
  Graph& graph_;
};

// "embedding" of "embedding.tokens".
std::string FirstPart(const std::string& name) { return name.substr(0, name.find('.')); }

}  // namespace

void Walk::Report(const Node& node, std::string message, std::string hint) {
  ReportText(ErrorAt(node, std::move(message), std::move(hint)), diagnostics_);
}

void Walk::Main(const Node& steps, Scope* scope) {
  for (const Node& step : steps.items) Step(step, "", scope);
  if (graph_.metrics().empty() && diagnostics_->empty())
    Report(steps, "the model has no loss", "such as { do = \"cross_entropy\", as = \"loss\" }");
  values_.ReportUnread(*scope, "");
}

const ModuleDef* Walk::ModuleOf(const Node& step, Scope* scope) {
  const Node* module_name = step.Find("do");
  if (step.kind != Node::Kind::kTable || (module_name == nullptr || !module_name->is_string())) {
    Report(step, fmt::format("a step is a table that names a module by `do`, not {}", Describe(step)),
           "{ do = \"linear\", as = \"proj\", out = [\"D\"] }");
    return nullptr;
  }
  const ModuleDef* module = FindModule(module_name->string);
  if (module == nullptr) {
    std::vector<std::string> names;
    for (const auto* list : {&Modules(), &Structures()}) {
      for (const ModuleDef* known : *list) names.emplace_back(known->name);
    }
    const std::string nearest = NearestWord(module_name->string, names);
    Report(*module_name, fmt::format("there is no module '{}'", recipe::Shown(module_name->string)),
           nearest.empty() ? "`engine modules` lists them" : fmt::format("did you mean '{}'?", nearest));
    values_.Forget(step, nullptr, scope);
    return nullptr;
  }
  if (const Node* as = step.Find("as"); as != nullptr && (!as->is_string() || as->string.empty())) {
    Report(*as, fmt::format("`as` is the step's name, not {}", Describe(*as)));
    return nullptr;
  }
  return module;
}

// Opens the unit that a step outside of stacks belongs to.
void Walk::EnterUnit(const std::string& name) {
  if (in_layer_ || open_) return;
  const Unit::Kind kind = after_stack_ ? Unit::Kind::kExit
                          : has_stack_ ? Unit::Kind::kEntry
                                       : Unit::Kind::kBlock;
  graph_.BeginUnit(FirstPart(name), kind);
  open_ = true;
}

void Walk::Step(const Node& step, const std::string& prefix, Scope* scope) {
  if (++steps_ > kMostSteps) {
    if (steps_ == kMostSteps + 1)
      Report(PlaceOf(step), fmt::format("the model has more than {} steps", kMostSteps));
    return;
  }
  const ModuleDef* module = ModuleOf(step, scope);
  if (module == nullptr) return;
  const std::string name = recipe::StepName(step);
  const std::string path = prefix.empty() ? name : prefix + "." + name;
  const InComponent component(&graph_, {.name = name});
  std::optional<ValueIds> results;
  if (module->emit != nullptr) {
    EnterUnit(name);
    results = Emit(step, *module, path, scope);
  } else {
    results = module->name == "stack" ? Stack(step, *module, path, scope) : Call(step, *module, path, scope);
  }
  if (results.has_value()) {
    values_.Name(step, *module, *results, scope);
  } else {
    values_.Forget(step, module, scope);
  }
}

std::optional<ValueIds> Walk::Emit(const Node& step, const ModuleDef& module, const std::string& path,
                                   Scope* scope) {
  StepContext context(&graph_, &parameters_, options_, diagnostics_, step, path, in_layer_);
  std::optional<ValueIds> inputs = values_.Inputs(step, module, scope);
  const bool good = attributes_.Read(step, module, scope, &context);
  if (!inputs.has_value() || !good) return std::nullopt;
  for (const ValueId input : *inputs) context.AddInput(input);
  absl::StatusOr<ValueIds> results = module.emit(context);
  if (!results.ok()) return std::nullopt;
  if (origins_ != nullptr) AddOrigin(step, context.attributes(), graph_.nodes().size(), origins_);
  return *std::move(results);
}

// The steps of a block, which reads the values of `outer`. What it gives.
std::optional<ValueId> Walk::Run(const Block& block, const std::string& path, Scope* outer) {
  Scope scope{.dims = outer->dims, .outer = outer, .last = outer->values.contains("x") ? "x" : ""};
  const std::size_t before = diagnostics_->size();
  if (depth_ == kMostNested) {
    Report(*block.node,
           fmt::format("blocks stand within each other more than {} deep; does one repeat or call itself?",
                       kMostNested));
    return std::nullopt;
  }
  ++depth_;
  for (const Node& step : block.steps.items) Step(step, path, &scope);
  --depth_;
  if (diagnostics_->size() > before) return std::nullopt;
  const auto given = scope.values.find(block.gives);
  if (given == scope.values.end()) {
    Report(block.steps, fmt::format("the block gives '{}', and none of its steps makes that", block.gives),
           "to = \"x\" in its last step; or gives = \"NAME\"");
    return std::nullopt;
  }
  values_.ReportUnread(scope, block.gives);
  if (diagnostics_->size() == before && given->second.value != kNoValue) return given->second.value;
  return std::nullopt;
}

bool Walk::CheckKeys(const Node& step, const ModuleDef& module) {
  bool good = true;
  for (const recipe::Entry& entry : step.entries) {
    std::vector<std::string> names;
    for (const AttributeDef& def : module.attributes) names.emplace_back(def.name);
    for (const StepKey& key : StepKeys()) names.emplace_back(key.name);
    if (std::find(names.begin(), names.end(), entry.key) != names.end()) continue;
    ReportText(ErrorAt(entry, fmt::format("{} has no attribute '{}'", module.name, recipe::Shown(entry.key)),
                       AttributeHint(entry.key, names)),
               diagnostics_);
    good = false;
  }
  return good;
}

void Walk::ReportUnread(const Bindings& bindings) {
  for (const auto& [name, binding] : bindings) {
    if (!binding.read && values_.AllGood())
      Report(binding.value(), fmt::format("no step of the blocks reads ${}", recipe::Shown(name)));
  }
}

std::optional<ValueIds> Walk::Stack(const Node& step, const ModuleDef& module, const std::string& path,
                                    Scope* scope) {
  if (!CheckKeys(step, module)) return std::nullopt;
  const std::optional<StackPlan> plan = PlanStack(step, blocks_, scope, &attributes_, diagnostics_);
  Scope around{.dims = scope->dims, .outer = scope};
  values_.HandIn(step, scope, &around);
  if (!plan.has_value()) return std::nullopt;
  if (!around.values.contains("x")) {
    Report(PlaceOf(step), "a stack carries a stream, and `of` gives none", "of = { x = … }");
    return std::nullopt;
  }
  around.branches = plan->branches;
  Layers(step, *plan, path, &around);
  open_ = false;
  after_stack_ = true;
  const ValueId stream = around.values["x"].value;
  if (stream == kNoValue) return std::nullopt;
  return ValueIds{stream};
}

void Walk::Layers(const Node& step, const StackPlan& plan, const std::string& path, Scope* around) {
  const bool outermost = !in_layer_;
  const auto layers = static_cast<std::int64_t>(plan.layers.size());
  Bindings read;  // in any layer
  for (std::int64_t i = 0; i < layers; ++i) {
    const Bindings bindings = BindingsOf(step, i, layers, diagnostics_);
    around->bindings = &bindings;
    const std::vector<BlockUse>& uses = plan.layers[static_cast<std::size_t>(i)];
    const InComponent layer(
        &graph_, {.name = fmt::format("{}", i), .is_layer = true, .variant = VariantOf(step, uses, i)});
    const std::string name = fmt::format("{}.{}", path, i);
    if (outermost) graph_.BeginUnit(name, Unit::Kind::kBlock);
    in_layer_ = true;
    Layer(step, uses, name, around);
    in_layer_ = !outermost;
    for (const auto& [key, binding] : bindings) {
      Binding& known = read.try_emplace(key, binding).first->second;
      known.read = known.read || binding.read;
    }
    around->bindings = nullptr;
  }
  ReportUnread(read);
}

// One layer: the stream goes through its blocks, and keeps its shape. Behind a block with a mistake the next ones are
// checked with the stream as it was.
void Walk::Layer(const Node& step, const std::vector<BlockUse>& uses, const std::string& name,
                 Scope* around) {
  for (const BlockUse& use : uses) {
    const ValueId before = around->values["x"].value;
    std::optional<ValueId> after;
    if (use.label.empty()) {
      after = Run(*use.block, name, around);
    } else {
      const InComponent labelled(&graph_, {.name = use.label});
      after = Run(*use.block, name + "." + use.label, around);
    }
    if (!after.has_value() || before == kNoValue) continue;
    const Shape& old_shape = graph_.value(before).type.shape;
    const Shape& shape = graph_.value(*after).type.shape;
    if (shape != old_shape) {
      Report(PlaceOf(step),
             fmt::format("the stream of a stack keeps its shape: {} gives {} for {}",
                         use.label.empty() ? name : name + "." + use.label, shape.ToString(),
                         old_shape.ToString()),
             fmt::format("a block's result is its '{}'", use.block->gives));
      continue;
    }
    around->values["x"] = {*after, nullptr};
  }
}

std::optional<ValueIds> Walk::Call(const Node& step, const ModuleDef& module, const std::string& path,
                                   Scope* scope) {
  if (!CheckKeys(step, module)) return std::nullopt;
  const Node* name = step.Find("block");
  const Block* block = (name != nullptr && name->is_string()) ? blocks_.Find(name->string) : nullptr;
  if (block == nullptr) {
    if ((name == nullptr || !name->is_string()) || !blocks_.Has(name->string)) {
      Report(name != nullptr ? *name : PlaceOf(step), "call needs the name of a block",
             NearestHint(name != nullptr ? name->string : "", blocks_.Names()));
    }
    return std::nullopt;
  }
  const Node* changed = step.Find("dims");
  std::optional<DimTable> dims;
  if (changed != nullptr) dims = scope->dims->With(*changed, diagnostics_);
  Scope around{.dims = dims.has_value() ? &*dims : scope->dims, .outer = scope};
  const Bindings bindings = BindingsOf(step, 0, 1, diagnostics_);
  around.bindings = &bindings;
  values_.HandIn(step, scope, &around);
  const std::optional<ValueId> result = Run(*block, path, &around);
  if (!result.has_value()) return std::nullopt;
  ReportUnread(bindings);
  return ValueIds{*result};
}

}  // namespace engine::model
