// How steps read values and name their results.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/model/attributes.h"
#include "engine/model/module.h"
#include "engine/model/scope.h"
#include "engine/recipe/document.h"

namespace engine::model {

class StepValues {
 public:
  StepValues(AttributeReader* attributes, std::vector<Diagnostic>* diagnostics)
      : attributes_(*attributes), diagnostics_(diagnostics) {}

  // What a step's `of` names, else the last result. nullopt where one is missing, which is a mistake, or where its step has
  // one.
  std::optional<graph::ValueIds> Inputs(const recipe::Node& step, const ModuleDef& module, Scope* scope);

  // What `of` = { x = …, bias = … } of a structure hands in by name; a name, or none, hands in x. What is missing or has a
  // mistake is known in there, without a value.
  void HandIn(const recipe::Node& step, Scope* scope, Scope* into);

  // Gives a step's results their names: `to`, else the parts' names, else the step's. A result becomes the last one, but that
  // of a module that reads nothing: it stands beside the chain of steps, not in it.
  void Name(const recipe::Node& step, const ModuleDef& module, const graph::ValueIds& results, Scope* scope);
  // The step has a mistake: what reads its results is not blamed. module: null where it is not known.
  void Forget(const recipe::Node& step, const ModuleDef* module, Scope* scope);

  // Values that no step has read are mistakes; `gives` is read by who called the block.
  // Nothing is said where there are other mistakes: the step that would have read them may have one.
  void ReportUnread(const Scope& scope, std::string_view gives);
  // There is no mistake but values that nobody reads.
  bool AllGood() const { return diagnostics_->size() == unread_; }

 private:
  std::optional<graph::ValueId> ReadName(const recipe::Node& name, Scope* scope);
  std::optional<graph::ValueId> Read(const std::string& name, const recipe::Node& at, Scope* scope);
  std::vector<std::string> ResultNames(const recipe::Node& step, std::size_t count) const;
  void Set(const std::string& name, NamedValue value, Scope* scope);
  void ReportUnread(const std::string& name, const NamedValue& value);
  void Report(const recipe::Node& node, std::string message, std::string hint = "");

  AttributeReader& attributes_;
  std::vector<Diagnostic>* diagnostics_;
  std::size_t unread_ = 0;  // of the mistakes
};

}  // namespace engine::model
