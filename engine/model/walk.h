// The steps of a text, one after the other, from main down into blocks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/graph/graph.h"
#include "engine/model/attributes.h"
#include "engine/model/blocks.h"
#include "engine/model/build.h"
#include "engine/model/origins.h"
#include "engine/model/parameter_table.h"
#include "engine/model/scope.h"
#include "engine/model/stack.h"
#include "engine/model/step_values.h"
#include "engine/recipe/document.h"

namespace engine::model {

// Emits the nodes of the steps that it is given into `graph`, by units: an entry, the layers of stacks, what stands behind
// them.
class Walk {
 public:
  // `has_stack`: main has one. `origins`: of the nodes, where not null.
  Walk(const recipe::Node* blocks, const recipe::Node* rotary, bool has_stack, const BuildOptions& options,
       graph::Graph* graph, Origins* origins, std::vector<Diagnostic>* diagnostics)
      : options_(options),
        graph_(*graph),
        origins_(origins),
        diagnostics_(diagnostics),
        blocks_(blocks, diagnostics),
        attributes_(parameters_, rotary, options, diagnostics),
        values_(&attributes_, diagnostics),
        has_stack_(has_stack) {}

  // The steps of main.
  void Main(const recipe::Node& steps, Scope* scope);
  const Blocks& blocks() const { return blocks_; }

 private:
  void Step(const recipe::Node& step, const std::string& prefix, Scope* scope);
  // The module of a step that is well-formed; null, with a mistake, of one that is not.
  const ModuleDef* ModuleOf(const recipe::Node& step, Scope* scope);
  void EnterUnit(const std::string& name);
  std::optional<graph::ValueIds> Emit(const recipe::Node& step, const ModuleDef& module,
                                      const std::string& path, Scope* scope);
  std::optional<graph::ValueIds> Stack(const recipe::Node& step, const ModuleDef& module,
                                       const std::string& path, Scope* scope);
  void Layers(const recipe::Node& step, const StackPlan& plan, const std::string& path, Scope* around);
  void Layer(const recipe::Node& step, const std::vector<BlockUse>& uses, const std::string& name,
             Scope* around);
  std::optional<graph::ValueIds> Call(const recipe::Node& step, const ModuleDef& module,
                                      const std::string& path, Scope* scope);
  std::optional<graph::ValueId> Run(const Block& block, const std::string& path, Scope* outer);
  bool CheckKeys(const recipe::Node& step, const ModuleDef& module);
  void ReportUnread(const Bindings& bindings);
  void Report(const recipe::Node& node, std::string message, std::string hint = "");

  const BuildOptions& options_;
  graph::Graph& graph_;
  Origins* origins_;  // null: nobody asks for them
  std::vector<Diagnostic>* diagnostics_;
  ParameterTable parameters_;
  Blocks blocks_;
  AttributeReader attributes_;
  StepValues values_;
  bool has_stack_;
  bool after_stack_ = false;
  bool in_layer_ = false;
  bool open_ = false;       // a unit outside of layers
  int depth_ = 0;           // of blocks within blocks
  std::int64_t steps_ = 0;  // walked so far
};

}  // namespace engine::model
