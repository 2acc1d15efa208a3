#include <fmt/format.h>

#include <algorithm>

#include "engine/base/shown.h"
#include "engine/data/jinja/names.h"
#include "engine/data/jinja/parser.h"

namespace engine::jinja {
namespace {

constexpr int kMostExpressionDepth = 300;  // as in a sum of so many terms

}  // namespace

ExpressionPtr Parser::Made(Expression expression) {
  for (const ExpressionPtr& part : expression.parts)
    if (part != nullptr) expression.depth = std::max(expression.depth, 1 + part->depth);
  for (const Argument& argument : expression.arguments)
    if (argument.value != nullptr) expression.depth = std::max(expression.depth, 1 + argument.value->depth);
  if (expression.depth > kMostExpressionDepth)
    Fail(expression.place,
         fmt::format("the expression has more than {} parts within each other", kMostExpressionDepth));
  return std::make_unique<const Expression>(std::move(expression));
}

ExpressionPtr Parser::ParseTuple(bool with_condition, bool in_parentheses) {
  Expression tuple{.kind = ExpressionKind::kTuple, .place = now().place};
  bool is_tuple = false;
  const auto ends = [this] {
    return now().kind == TokenKind::kBlockEnd || now().kind == TokenKind::kPrintEnd || IsSign(")");
  };
  while (!failed()) {
    if (ends()) break;
    tuple.parts.push_back(with_condition ? ParseExpression() : ParseOr());
    if (!TakeSign(",")) break;
    is_tuple = true;
  }
  if (is_tuple || (in_parentheses && tuple.parts.empty())) return Made(std::move(tuple));
  if (!tuple.parts.empty()) return std::move(tuple.parts[0]);
  Fail(now().place, fmt::format("{} stands where an expression has to", ShownNow()));
  return nullptr;
}

ExpressionPtr Parser::ParseExpression() {
  if (!Enter()) return nullptr;
  ExpressionPtr value = ParseOr();
  while (IsName("if") && !failed()) {
    const Place place = Take().place;
    ExpressionPtr condition = ParseOr();
    ExpressionPtr otherwise = TakeName("else") ? ParseExpression() : nullptr;
    value = Made(ExpressionKind::kCondition, place, "", std::move(value), std::move(condition),
                 std::move(otherwise));
  }
  Leave();
  return value;
}

ExpressionPtr Parser::ParseOr() {
  ExpressionPtr left = ParseAnd();
  while (IsName("or")) {
    const Place place = Take().place;
    left = Made(ExpressionKind::kOr, place, "", std::move(left), ParseAnd());
  }
  return left;
}

ExpressionPtr Parser::ParseAnd() {
  ExpressionPtr left = ParseNot();
  while (IsName("and")) {
    const Place place = Take().place;
    left = Made(ExpressionKind::kAnd, place, "", std::move(left), ParseNot());
  }
  return left;
}

ExpressionPtr Parser::ParseNot() {
  if (!IsName("not")) return ParseCompare();
  if (!Enter()) return nullptr;
  const Place place = Take().place;
  ExpressionPtr made = Made(ExpressionKind::kNot, place, "", ParseNot());
  Leave();
  return made;
}

ExpressionPtr Parser::ParseCompare() {
  Expression compare{.kind = ExpressionKind::kCompare, .place = now().place};
  compare.parts.push_back(ParseSum());
  while (!failed()) {
    constexpr std::string_view kSigns[] = {"==", "!=", "<", "<=", ">", ">="};
    const bool is_sign = now().kind == TokenKind::kSign &&
                         std::find(std::begin(kSigns), std::end(kSigns), now().text) != std::end(kSigns);
    const bool is_not_in = IsName("not") && next().kind == TokenKind::kName && next().text == "in";
    if (!is_sign && !is_not_in && !IsName("in")) break;
    if (compare.names.empty()) compare.place = now().place;
    std::string name = Take().text;
    if (is_not_in) name += " " + Take().text;
    compare.names.push_back(std::move(name));
    compare.parts.push_back(ParseSum());
  }
  if (compare.names.empty()) return std::move(compare.parts[0]);
  return Made(std::move(compare));
}

ExpressionPtr Parser::ParseSum() {
  ExpressionPtr left = ParseConcat();
  while (IsSign("+") || IsSign("-")) {
    const Token sign = Take();
    left = Made(ExpressionKind::kArithmetic, sign.place, sign.text, std::move(left), ParseConcat());
  }
  return left;
}

ExpressionPtr Parser::ParseConcat() {
  Expression concat{.kind = ExpressionKind::kConcat, .place = now().place};
  concat.parts.push_back(ParseProduct());
  while (TakeSign("~")) concat.parts.push_back(ParseProduct());
  if (concat.parts.size() == 1) return std::move(concat.parts[0]);
  return Made(std::move(concat));
}

ExpressionPtr Parser::ParseProduct() {
  ExpressionPtr left = ParsePower();
  while (IsSign("*") || IsSign("/") || IsSign("//") || IsSign("%")) {
    const Token sign = Take();
    left = Made(ExpressionKind::kArithmetic, sign.place, sign.text, std::move(left), ParsePower());
  }
  return left;
}

ExpressionPtr Parser::ParsePower() {
  ExpressionPtr left = ParseUnary(true);
  while (IsSign("**")) {
    const Token sign = Take();
    left = Made(ExpressionKind::kArithmetic, sign.place, sign.text, std::move(left), ParseUnary(true));
  }
  return left;
}

ExpressionPtr Parser::ParseUnary(bool with_filters) {
  if (!Enter()) return nullptr;
  ExpressionPtr value;
  if (IsSign("-") || IsSign("+")) {
    const Token sign = Take();
    value = Made(sign.text == "-" ? ExpressionKind::kNegative : ExpressionKind::kPositive, sign.place, "",
                 ParseUnary(false));
  } else {
    value = ParsePrimary();
  }
  value = ParseMembers(std::move(value));
  if (with_filters) value = ParseFiltersAndTests(std::move(value));
  Leave();
  return value;
}

ExpressionPtr Parser::ParsePrimary() {
  switch (now().kind) {
    case TokenKind::kName:
      return ParseNameOrConstant();
    case TokenKind::kString: {
      const Token first = Take();
      std::string text = first.text;
      while (now().kind == TokenKind::kString) text += Take().text;
      return Made({.place = first.place, .constant = Value(std::move(text))});
    }
    case TokenKind::kInteger:
    case TokenKind::kFloat: {
      const Token number = Take();
      return Made({.place = number.place, .constant = number.number});
    }
    default:
      break;
  }
  if (TakeSign("(")) {
    ExpressionPtr inner = ParseTuple(true, true);
    Expect(")");
    return inner;
  }
  if (IsSign("[") || IsSign("{")) return ParseListOrDict();
  Fail(now().place, fmt::format("{} stands where an expression has to", ShownNow()));
  return nullptr;
}

ExpressionPtr Parser::ParseNameOrConstant() {
  const Token name = Take();
  if (name.text == "true" || name.text == "True" || name.text == "false" || name.text == "False")
    return Made({.place = name.place, .constant = Value(name.text == "true" || name.text == "True")});
  if (name.text == "none" || name.text == "None")
    return Made({.place = name.place, .constant = Value(None{})});
  for (MacroSyntax* macro : macros_) {
    macro->uses_caller = macro->uses_caller || name.text == "caller";
    macro->uses_varargs = macro->uses_varargs || name.text == "varargs";
    macro->uses_kwargs = macro->uses_kwargs || name.text == "kwargs";
  }
  return Made({.kind = ExpressionKind::kName, .place = name.place, .name = name.text});
}

ExpressionPtr Parser::ParseListOrDict() {
  const Token open = Take();
  const bool is_list = open.text == "[";
  const std::string_view close = is_list ? "]" : "}";
  Expression made{.kind = is_list ? ExpressionKind::kList : ExpressionKind::kDict, .place = open.place};
  while (!IsSign(close) && !failed()) {
    if (!made.parts.empty()) Expect(",");
    if (IsSign(close)) break;
    made.parts.push_back(ParseExpression());
    if (is_list) continue;
    Expect(":");
    made.parts.push_back(ParseExpression());
  }
  Expect(close);
  return Made(std::move(made));
}

// Attributes, items and calls.
ExpressionPtr Parser::ParseMembers(ExpressionPtr of) {
  while (!failed()) {
    const Place place = now().place;
    if (TakeSign(".")) {
      if (now().kind == TokenKind::kInteger) {
        const Token number = Take();
        of = Made(ExpressionKind::kItem, place, "", std::move(of),
                  Made({.place = number.place, .constant = number.number}));
      } else {
        of = Made(ExpressionKind::kAttribute, place, TakeAnyName("the name of an attribute"), std::move(of));
      }
    } else if (TakeSign("[")) {
      of = ParseSubscript(std::move(of));
    } else if (IsSign("(")) {
      Expression call{.kind = ExpressionKind::kCall, .place = place};
      call.parts.push_back(std::move(of));
      call.arguments = ParseArguments();
      of = Made(std::move(call));
    } else {
      break;
    }
  }
  return of;
}

// Reads what stands behind "[".
ExpressionPtr Parser::ParseSubscript(ExpressionPtr of) {
  const Place place = now().place;
  ExpressionPtr bounds[3];
  int count = 0;
  bool is_slice = false;
  while (!IsSign("]") && !failed()) {
    if (IsSign(",")) Fail(now().place, "items of several indices are not supported");
    if (TakeSign(":")) {
      is_slice = true;
      if (++count > 2) Fail(place, "a slice has at most three parts, [from:to:step]");
    } else {
      if (bounds[count] != nullptr) Expect("]");
      bounds[count] = ParseExpression();
    }
  }
  Expect("]");
  if (failed()) return nullptr;
  if (!is_slice && bounds[0] == nullptr) Fail(place, "an index is missing");
  if (is_slice) {
    return Made(ExpressionKind::kSlice, place, "", std::move(of), std::move(bounds[0]), std::move(bounds[1]),
                std::move(bounds[2]));
  }
  return Made(ExpressionKind::kItem, place, "", std::move(of), std::move(bounds[0]));
}

ExpressionPtr Parser::ParseFiltersAndTests(ExpressionPtr of) {
  while (!failed()) {
    if (TakeSign("|")) {
      of = ParseFilter(std::move(of));
    } else if (IsName("is")) {
      of = ParseTest(std::move(of));
    } else if (IsSign("(")) {
      of = ParseMembers(std::move(of));
    } else {
      break;
    }
  }
  return of;
}

// Reads what stands behind "|".
ExpressionPtr Parser::ParseFilter(ExpressionPtr of) {
  Expression filter{.kind = ExpressionKind::kFilter, .place = now().place};
  filter.name = TakeAnyName("the name of a filter");
  if (!failed() && !IsFilter(filter.name))
    Fail(filter.place,
         fmt::format("the filter \"{}\" is not supported; there are {}", Shown(filter.name), FilterNames()));
  filter.parts.push_back(std::move(of));
  if (IsSign("(")) filter.arguments = ParseArguments();
  return Made(std::move(filter));
}

ExpressionPtr Parser::ParseFilters(ExpressionPtr of) {
  of = ParseFilter(std::move(of));
  while (TakeSign("|")) of = ParseFilter(std::move(of));
  return of;
}

ExpressionPtr Parser::ParseTest(ExpressionPtr of) {
  const Place place = Take().place;  // "is"
  const bool is_not = TakeName("not");
  Expression test{.kind = ExpressionKind::kTest, .place = now().place};
  test.name = TakeAnyName("the name of a test");
  if (!failed() && !IsTest(test.name))
    Fail(test.place,
         fmt::format("the test \"{}\" is not supported; there are {}", Shown(test.name), TestNames()));
  test.parts.push_back(std::move(of));
  const bool has_value = now().kind == TokenKind::kName || now().kind == TokenKind::kString ||
                         now().kind == TokenKind::kInteger || now().kind == TokenKind::kFloat ||
                         IsSign("[") || IsSign("{");
  if (IsSign("(")) {
    test.arguments = ParseArguments();
  } else if (has_value && !IsName("else") && !IsName("or") && !IsName("and")) {
    if (IsName("is")) Fail(now().place, "tests cannot follow each other; parentheses or \"and\" part them");
    test.arguments.push_back({"", ParseMembers(ParsePrimary())});
  }
  ExpressionPtr made = Made(std::move(test));
  return is_not ? Made(ExpressionKind::kNot, place, "", std::move(made)) : std::move(made);
}

std::vector<Argument> Parser::ParseArguments() {
  std::vector<Argument> arguments;
  Expect("(");
  while (!IsSign(")") && !failed()) {
    if (!arguments.empty()) Expect(",");
    if (IsSign(")")) break;
    if (IsSign("*") || IsSign("**")) {
      Fail(now().place, "arguments that a list or a dict holds, \"*\" and \"**\", are not supported");
      break;
    }
    Argument argument;
    const Place place = now().place;
    if (now().kind == TokenKind::kName && next().kind == TokenKind::kSign && next().text == "=") {
      argument.name = Take().text;
      Take();
    } else if (!arguments.empty() && !arguments.back().name.empty()) {
      Fail(place, "an argument without a name stands behind one with a name");
    }
    argument.value = ParseExpression();
    arguments.push_back(std::move(argument));
  }
  Expect(")");
  return arguments;
}

}  // namespace engine::jinja
