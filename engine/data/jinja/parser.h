// Tokens to a tree. What Jinja has and this subset has not is a mistake that names it.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/jinja/lexer.h"
#include "engine/data/jinja/syntax.h"

namespace engine::jinja {

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  // The whole template; false: *mistake says why it is none.
  bool Parse(Body* body, Mistake* mistake);

 private:
  bool failed() const { return !mistake_.what.empty(); }
  void Fail(Place place, std::string what);
  const Token& now() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token Take();
  bool IsName(std::string_view name) const { return now().kind == TokenKind::kName && now().text == name; }
  bool IsSign(std::string_view sign) const { return now().kind == TokenKind::kSign && now().text == sign; }
  bool TakeName(std::string_view name);
  bool TakeSign(std::string_view sign);
  void Expect(std::string_view sign);
  void ExpectName(std::string_view name);
  void ExpectBlockEnd();
  std::string TakeAnyName(std::string_view what);
  std::string ShownNow() const;

  // parse_statements.cpp
  Body ParseBody(const std::vector<std::string_view>& ends);
  Body ParseBlock(const std::vector<std::string_view>& ends);
  std::unique_ptr<const Statement> ParseStatement();
  Body ParseCaptured(std::string_view end);
  void ParseGeneration(Statement* statement);
  void ParseIf(Statement* statement);
  void ParseFor(Statement* statement);
  void ParseSet(Statement* statement);
  void ParseWith(Statement* statement);
  void ParseMacro(Statement* statement);
  void ParseCallBlock(Statement* statement);
  void ParseSignature(MacroSyntax* macro);
  void ParseMacroBody(MacroSyntax* macro, std::string_view end);
  Targets ParseTargets(bool with_attributes);
  Target ParseTarget(bool with_attributes);

  // parse_expressions.cpp
  ExpressionPtr ParseTuple(bool with_condition, bool in_parentheses = false);
  ExpressionPtr ParseExpression();
  ExpressionPtr ParseOr();
  ExpressionPtr ParseAnd();
  ExpressionPtr ParseNot();
  ExpressionPtr ParseCompare();
  ExpressionPtr ParseSum();
  ExpressionPtr ParseConcat();
  ExpressionPtr ParseProduct();
  ExpressionPtr ParsePower();
  ExpressionPtr ParseUnary(bool with_filters);
  ExpressionPtr ParsePrimary();
  ExpressionPtr ParseNameOrConstant();
  ExpressionPtr ParseListOrDict();
  ExpressionPtr ParseMembers(ExpressionPtr of);
  ExpressionPtr ParseSubscript(ExpressionPtr of);
  ExpressionPtr ParseFiltersAndTests(ExpressionPtr of);
  ExpressionPtr ParseFilter(ExpressionPtr of);
  ExpressionPtr ParseFilters(ExpressionPtr of);  // behind the sign "|" of the first one
  ExpressionPtr ParseTest(ExpressionPtr of);
  std::vector<Argument> ParseArguments();
  ExpressionPtr Made(Expression expression);
  template <typename... Parts>
  ExpressionPtr Made(ExpressionKind kind, Place place, std::string name, Parts... parts) {
    Expression expression{.kind = kind, .place = place, .name = std::move(name)};
    (expression.parts.push_back(std::move(parts)), ...);
    return Made(std::move(expression));
  }
  bool Enter();
  void Leave() { --depth_; }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  Mistake mistake_;
  int depth_ = 0;
  int loops_ = 0;                     // around the place, inside the macro or the generation block
  bool is_captured_ = false;          // the place's output goes elsewhere than into the text
  std::vector<MacroSyntax*> macros_;  // around the place
};

}  // namespace engine::jinja
