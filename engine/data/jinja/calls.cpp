// Calls: macros, and what is built in.
#include <fmt/format.h>

#include <algorithm>

#include "engine/base/shown.h"
#include "engine/data/jinja/interpreter.h"
#include "engine/data/jinja/names.h"

namespace engine::jinja {

Arguments Interpreter::EvaluateArguments(const std::vector<Argument>& arguments) {
  Arguments values;
  for (const Argument& argument : arguments) {
    Value value = Evaluate(*argument.value);
    if (argument.name.empty()) {
      values.values.push_back(std::move(value));
    } else {
      values.named.emplace_back(argument.name, std::move(value));
    }
  }
  return values;
}

Value Interpreter::Call(Place place, const Value& callee, Arguments arguments) {
  if (failed()) return {};
  const Callable* callable = callee.callable();
  if (callable == nullptr) {
    if (callee.is_undefined() && callee.undefined().what != nullptr)
      return Fail(place, *callee.undefined().what);
    return Fail(place, fmt::format("a {} cannot be called", TypeName(callee)));
  }
  if (callable->macro != nullptr)
    return CallMacro(place, *callable->macro, callable->scope, std::move(arguments));
  if (!callable->is_method)
    return RunBuiltin(*this, place, *FindFunction(callable->name), "function", {}, std::move(arguments));
  bool is_known = false;
  const Builtin* method = FindMethod(callable->self, callable->name, &is_known);
  if (method == nullptr)
    return Fail(place, fmt::format("the method \"{}\" of a {} is not supported", callable->name,
                                   TypeName(callable->self)));
  return RunBuiltin(*this, place, *method, "method", callable->self, std::move(arguments));
}

Value Interpreter::CallMacro(Place place, const MacroSyntax& macro, Scope* scope, Arguments arguments) {
  Scope inner(scope);
  List rest{.kind = Sequence::kTuple};
  for (std::size_t i = macro.parameters.size(); i < arguments.values.size(); ++i)
    rest.Add(arguments.values[i]);
  if (!rest.items.empty() && !macro.uses_varargs) {
    return Fail(place, fmt::format("the macro \"{}\" takes {} arguments, and is given {}", macro.name,
                                   macro.parameters.size(), arguments.values.size()));
  }
  Scope* const around = std::exchange(scope_, &inner);
  for (std::size_t i = 0; i < macro.parameters.size() && !failed(); ++i) {
    const Parameter& parameter = macro.parameters[i];
    const auto named = std::find_if(arguments.named.begin(), arguments.named.end(),
                                    [&](const auto& entry) { return entry.first == parameter.name; });
    if (named != arguments.named.end()) {
      if (i < arguments.values.size())
        Fail(place, fmt::format("the macro \"{}\" is given \"{}\" twice", macro.name, parameter.name));
      inner.Set(parameter.name, named->second);
      arguments.named.erase(named);
    } else if (i < arguments.values.size()) {
      inner.Set(parameter.name, arguments.values[i]);
    } else if (parameter.otherwise != nullptr) {
      inner.Set(parameter.name, Evaluate(*parameter.otherwise));
    } else {
      inner.Set(parameter.name,
                Value::UndefinedBecause(fmt::format("parameter \"{}\" was not given", parameter.name)));
    }
  }
  Dict named;
  for (auto& [name, value] : arguments.named) {
    if (name == "caller" && macro.uses_caller) {
      inner.Set(name, std::move(value));
    } else if (macro.uses_kwargs) {
      named.Set(name, std::move(value));
    } else {
      Fail(place, fmt::format("the macro \"{}\" has no parameter \"{}\"", macro.name, Shown(name)));
    }
  }
  if (macro.uses_varargs) inner.Set("varargs", MadeList(place, std::move(rest)));
  if (macro.uses_kwargs) inner.Set("kwargs", MadeDict(place, std::move(named)));
  scope_ = around;
  if (failed()) return {};
  return MadeText(place, Captured(macro.body, &inner));
}

Value Interpreter::Filter(Place place, const std::string& name, const Value& self, Arguments arguments) {
  return RunBuiltin(*this, place, *FindFilter(name), "filter", self, std::move(arguments));
}

bool Interpreter::Test(Place place, const std::string& name, const Value& self, Arguments arguments) {
  return IsTrue(RunBuiltin(*this, place, *FindTest(name), "test", self, std::move(arguments)));
}

Value RunBuiltin(Interpreter& in, Place place, const Builtin& builtin, std::string_view kind,
                 const Value& self, Arguments arguments) {
  if (in.failed()) return {};
  const auto& parameters = builtin.parameters;
  if (parameters.size() == 1 && parameters[0] == "*") return builtin.run(in, place, self, arguments);
  if (arguments.values.size() > parameters.size()) {
    return in.Fail(place, fmt::format("the {} \"{}\" takes {} arguments, and is given {}", kind, builtin.name,
                                      parameters.size(), arguments.values.size()));
  }
  // Python's strings take nothing undefined for one of their arguments, not even where there is a default.
  for (const Value& value : arguments.values)
    if (self.text() != nullptr && kind == "method" && value.is_undefined())
      return in.Fail(place, fmt::format("an argument of \"{}\" is undefined", builtin.name));
  std::vector<bool> given(parameters.size(), false);
  std::fill_n(given.begin(), arguments.values.size(), true);
  arguments.values.resize(parameters.size());
  for (auto& [name, value] : arguments.named) {
    const auto found = std::find(parameters.begin(), parameters.end(), name);
    const auto at = static_cast<std::size_t>(found - parameters.begin());
    if (found == parameters.end() || given[at]) {
      return in.Fail(
          place, fmt::format("the {} \"{}\" {} \"{}\"", kind, builtin.name,
                             found == parameters.end() ? "has no parameter" : "is given twice", Shown(name)));
    }
    given[at] = true;
    arguments.values[at] = std::move(value);
  }
  for (std::size_t i = 0; i < builtin.required; ++i)
    if (!given[i])
      return in.Fail(place, fmt::format("the {} \"{}\" needs \"{}\"", kind, builtin.name, parameters[i]));
  return builtin.run(in, place, self, arguments);
}

}  // namespace engine::jinja
