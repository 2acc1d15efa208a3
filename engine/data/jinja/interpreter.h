// Runs a template's tree. The first mistake is kept, and whatever comes behind it does nothing: callers ask failed() where they
// would go on with a value, or in a loop.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/data/jinja/lexer.h"
#include "engine/data/jinja/syntax.h"
#include "engine/data/jinja/template.h"

namespace engine::jinja {

// Variables of a block, which sees those of the blocks around it.
class Scope {
 public:
  explicit Scope(Scope* around) : around_(around) {}
  const Value* Find(std::string_view name) const;
  void Set(std::string_view name, Value value);

 private:
  Scope* around_;
  std::vector<std::pair<std::string, Value>> variables_;
};

struct Arguments {
  std::vector<Value> values;
  std::vector<std::pair<std::string, Value>> named;
};

class Interpreter {
 public:
  Interpreter(const RenderOptions& options, Scope* variables) : options_(options), scope_(variables) {}

  bool Run(const Body& body, Rendered* rendered, Mistake* mistake);

  // For filters, tests, functions and methods.
  bool failed() const { return !mistake_.what.empty(); }
  Value Fail(Place place, std::string what);
  bool Spend(Place place, std::size_t steps);     // false: the template has taken more steps than it may
  Value MadeText(Place place, std::string text);  // checked for its size
  Value MadeList(Place place, List list);         // checked for its size, its depth and what it holds
  Value MadeDict(Place place, Dict dict);
  std::string TextOf(Place place, const Value& value);          // str(value)
  std::vector<Value> ItemsOf(Place place, const Value& value);  // what a loop over the value goes through
  std::size_t most_bytes() const { return options_.most_bytes; }
  const RenderOptions& options() const { return options_; }

  Value Attribute(Place place, const Value& of, const std::string& name);
  Value Item(Place place, const Value& of, const Value& index);
  Value Path(Place place, const Value& of, const Value& path);  // "a.b.0", as filters have it in `attribute`
  Value Arithmetic(Place place, std::string_view sign, const Value& a, const Value& b);
  bool Contains(Place place, const Value& container, const Value& item);
  int Order(Place place, const Value& a, const Value& b);  // a mistake where the two have none
  Value Filter(Place place, const std::string& name, const Value& self, Arguments arguments);
  bool Test(Place place, const std::string& name, const Value& self, Arguments arguments);

 private:
  enum class Flow : std::uint8_t { kNext, kBreak, kContinue };
  // A level of what calls itself, which is bounded.
  class Deeper {
   public:
    Deeper(Interpreter* in, Place place);
    ~Deeper() { --in_->depth_; }

   private:
    Interpreter* in_;
  };

  // interpreter.cpp
  Flow Execute(const Body& body);
  Flow ExecuteOne(const Statement& statement);
  Flow ExecuteFor(const Statement& statement);
  void ExecuteSet(const Statement& statement);
  void ExecuteWith(const Statement& statement);
  void ExecuteCallBlock(const Statement& statement);
  void ExecuteGeneration(const Statement& statement);
  void Assign(const Targets& targets, Place place, const Value& value);
  void AssignOne(const Target& target, const Value& value);
  void Print(Place place, std::string_view text);
  std::string Captured(const Body& body, Scope* scope);  // what the body prints

  // evaluate.cpp
  Value Evaluate(const Expression& expression);
  Value EvaluateName(const Expression& expression);
  Value EvaluateCollection(const Expression& expression);
  Value EvaluateNumberSign(const Expression& expression);
  Value EvaluateConcat(const Expression& expression);
  Value EvaluateCompare(const Expression& expression);
  Value EvaluateSlice(const Expression& expression);
  bool EvaluateComparison(Place place, const std::string& sign, const Value& a, const Value& b);
  Value EvaluateFilter(const Expression& expression, const Value* body);
  Value RealArithmetic(Place place, std::string_view sign, double a, double b);
  Value IntegerArithmetic(Place place, std::string_view sign, std::int64_t a, std::int64_t b);
  Value Repeated(Place place, const Value& of, std::int64_t times);

  // calls.cpp
  Arguments EvaluateArguments(const std::vector<Argument>& arguments);
  Value Call(Place place, const Value& callee, Arguments arguments);
  Value CallMacro(Place place, const MacroSyntax& macro, Scope* scope, Arguments arguments);

  const RenderOptions& options_;
  Scope* scope_;
  std::string* out_ = nullptr;
  Rendered* rendered_ = nullptr;
  Mistake mistake_;
  std::size_t steps_ = 0;
  int depth_ = 0;
  int loops_ = 0;
};

// A filter, test, function or method.
struct Builtin {
  std::string_view name;
  std::vector<std::string_view> parameters;  // {"*"}: any arguments, which are given as they are
  std::size_t required = 0;
  // Values of all parameters in their order; those that are not given are undefined.
  Value (*run)(Interpreter& in, Place place, const Value& self, const Arguments& arguments) = nullptr;
};

// The builtin's call; a mistake where the arguments do not fit its parameters. `kind`: "filter", "test", "function", "method".
Value RunBuiltin(Interpreter& in, Place place, const Builtin& builtin, std::string_view kind,
                 const Value& self, Arguments arguments);

const Builtin* FindFilter(std::string_view name);
const Builtin* FindTest(std::string_view name);
const Builtin* FindFunction(std::string_view name);
// Null: the value has no such method. `is_known`: Python has it, and it is not supported.
const Builtin* FindMethod(const Value& of, std::string_view name, bool* is_known);
// Shared by filters and methods: a mistake, with its value, where letters of other alphabets would have to change case.
Value ChangedCase(Interpreter& in, Place place, const std::string& text,
                  std::string (*change)(std::string_view));

}  // namespace engine::jinja
