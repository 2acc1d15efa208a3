// The attributes of a step as its module reads them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/model/module.h"
#include "engine/model/parameter_table.h"
#include "engine/model/scope.h"
#include "engine/model/step_context.h"
#include "engine/recipe/document.h"

namespace engine::model {

class AttributeReader {
 public:
  AttributeReader(const ParameterTable& parameters, const recipe::Node* rotary, const BuildOptions& options,
                  std::vector<Diagnostic>* diagnostics)
      : parameters_(parameters), rotary_(rotary), options_(options), diagnostics_(diagnostics) {}

  // Adds the attributes of a step to its context, defaults too. False where one has a mistake, which is added, or reads a
  // value whose step has one.
  bool Read(const recipe::Node& step, const ModuleDef& module, Scope* scope, StepContext* context);

  // What a "$name" stands for; the node itself if it is none. Null, with a mistake, where nothing has the name.
  const recipe::Node* Substitute(const recipe::Node& node, Scope* scope);

 private:
  // False where it cannot be used.
  bool ReadOne(const recipe::Node& node, Scope* scope, AttributeValue* value);
  bool ReadDefault(const AttributeDef& def, Scope* scope, const recipe::Node& step, AttributeValue* value);
  bool ReadSizes(const recipe::Node& node, Scope* scope, AttributeValue* value);
  bool ReadParts(const recipe::Node& node, Scope* scope, AttributeValue* value);
  bool ReadNumber(const recipe::Node& node, Scope* scope, AttributeValue* value);
  bool ReadNumbers(const recipe::Node& node, Scope* scope, AttributeValue* value);
  bool ReadWord(const recipe::Node& node, AttributeValue* value);
  bool ReadInitializer(const recipe::Node& node, Scope* scope, AttributeValue* value);
  bool ReadValue(std::string_view name, const recipe::Node& at, Scope* scope, AttributeValue* value);
  bool ReadParameter(const recipe::Node& node, AttributeValue* value);
  bool ReadRotary(const recipe::Node& node, Scope* scope, AttributeValue* value);
  bool Fail(const recipe::Node& node, const std::string& message, std::string hint = "");

  const ParameterTable& parameters_;
  const recipe::Node* rotary_;  // [model.rotary]; null: there are no tables
  const BuildOptions& options_;
  std::vector<Diagnostic>* diagnostics_;
};

// "did you mean 'x'?", or what there is.
std::string NearestHint(std::string_view word, const std::vector<std::string>& words);

// The same of an attribute that a module does not have, of those that it has; and which modules have it, where those are few.
std::string AttributeHint(std::string_view word, const std::vector<std::string>& known);

}  // namespace engine::model
