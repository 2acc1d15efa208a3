// A template as a tree.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/data/jinja/value.h"

namespace engine::jinja {

// A byte of the template's source.
using Place = std::uint32_t;

struct Expression;
using ExpressionPtr = std::unique_ptr<const Expression>;

struct Argument {
  std::string name;  // empty: by position
  ExpressionPtr value;
};

enum class ExpressionKind : std::uint8_t {
  kConstant,    // constant
  kName,        // name
  kList,        // parts
  kTuple,       // parts
  kDict,        // parts: key, value, key, value, …
  kNot,         // parts[0]
  kNegative,    // parts[0]
  kPositive,    // parts[0]
  kAnd,         // parts[0] and parts[1]
  kOr,          // parts[0] or parts[1]
  kArithmetic,  // parts[0] name parts[1]; name is + - * / // % **
  kConcat,      // parts, as text
  kCompare,     // parts[0] names[0] parts[1] names[1] parts[2] …; names: == != < <= > >= in "not in"
  kCondition,   // parts[0] if parts[1] else parts[2], which may be null
  kAttribute,   // parts[0].name
  kItem,        // parts[0][parts[1]]
  kSlice,       // parts[0][parts[1]:parts[2]:parts[3]], the last three may be null
  kCall,        // parts[0](arguments)
  kFilter,      // parts[0]|name(arguments); parts[0] is null in a filter block
  kTest,        // parts[0] is name(arguments)
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kConstant;
  Place place = 0;
  std::string name = {};
  Value constant = {};
  std::vector<ExpressionPtr> parts = {};
  std::vector<std::string> names = {};
  std::vector<Argument> arguments = {};
  int depth = 1;  // expressions in each other
};

// What is assigned to: names, and attributes of namespaces where `attribute` is not empty.
struct Target {
  Place place = 0;
  std::string name = {};
  std::string attribute = {};
};
struct Targets {
  bool is_tuple = false;
  std::vector<Target> all = {};
};

struct Statement;
using Body = std::vector<std::unique_ptr<const Statement>>;

struct Parameter {
  std::string name;
  ExpressionPtr otherwise = {};  // null: there is no default
};
struct MacroSyntax {
  std::string name = {};
  std::vector<Parameter> parameters = {};
  Body body = {};
  bool uses_caller = false;  // these names stand in the body
  bool uses_varargs = false;
  bool uses_kwargs = false;
};

enum class StatementKind : std::uint8_t {
  kText,        // text
  kPrint,       // value
  kIf,          // value; body, otherwise
  kFor,         // targets in value if condition; body, otherwise
  kSet,         // targets = value
  kSetBlock,    // targets = body, through the filter `value` unless it is null
  kWith,        // arguments as variables; body
  kMacro,       // macro
  kCallBlock,   // value, a call whose `caller` is the macro
  kFilter,      // body through the filter `value`
  kGeneration,  // body
  kBreak,
  kContinue,
};

struct Statement {
  StatementKind kind = StatementKind::kText;
  Place place = 0;
  std::string text = {};
  ExpressionPtr value = {};
  ExpressionPtr condition = {};
  Targets targets = {};
  std::vector<Argument> arguments = {};
  Body body = {};
  Body otherwise = {};
  MacroSyntax macro = {};
};

}  // namespace engine::jinja
