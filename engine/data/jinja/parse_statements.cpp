#include <fmt/format.h>

#include <algorithm>

#include "engine/base/shown.h"
#include "engine/data/jinja/parser.h"

namespace engine::jinja {
namespace {

constexpr int kMostNesting = 200;
constexpr std::string_view kStatements =
    "if, for, set, with, macro, call, filter, generation, break, continue and raw";

bool IsKeyword(std::string_view name) {
  constexpr std::string_view kKeywords[] = {"true", "false", "none", "True", "False", "None"};
  return std::find(std::begin(kKeywords), std::end(kKeywords), name) != std::end(kKeywords);
}

}  // namespace

bool Parser::Parse(Body* body, Mistake* mistake) {
  *body = ParseBody({});
  *mistake = mistake_;
  return !failed();
}

void Parser::Fail(Place place, std::string what) {
  if (!failed()) mistake_ = {place, std::move(what)};
  at_ = tokens_.size() - 1;
}

bool Parser::Enter() {
  if (++depth_ > kMostNesting)
    Fail(now().place, fmt::format("is nested deeper than {} levels", kMostNesting));
  return !failed();
}

Token Parser::Take() {
  Token token = now();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool Parser::TakeName(std::string_view name) {
  const bool found = IsName(name);
  if (found) Take();
  return found;
}

bool Parser::TakeSign(std::string_view sign) {
  const bool found = IsSign(sign);
  if (found) Take();
  return found;
}

std::string Parser::ShownNow() const {
  switch (now().kind) {
    case TokenKind::kEnd:
      return "the end of the template";
    case TokenKind::kText:
      return "text";
    case TokenKind::kBlockEnd:
      return "the end of the tag, \"%}\",";
    case TokenKind::kPrintEnd:
      return "the end of the tag, \"}}\",";
    case TokenKind::kString:
      return fmt::format("the string \"{}\"", Shown(now().text, 40));
    default:
      return fmt::format("\"{}\"", Shown(now().text, 40));
  }
}

void Parser::Expect(std::string_view sign) {
  if (!TakeSign(sign)) Fail(now().place, fmt::format("{} stands where \"{}\" has to", ShownNow(), sign));
}

void Parser::ExpectName(std::string_view name) {
  if (!TakeName(name)) Fail(now().place, fmt::format("{} stands where \"{}\" has to", ShownNow(), name));
}

void Parser::ExpectBlockEnd() {
  if (now().kind != TokenKind::kBlockEnd)
    return Fail(now().place, fmt::format("{} stands where the tag has to end", ShownNow()));
  Take();
}

std::string Parser::TakeAnyName(std::string_view what) {
  if (now().kind != TokenKind::kName)
    Fail(now().place, fmt::format("{} stands where {} has to", ShownNow(), what));
  return Take().text;
}

// Up to a block tag whose name is one of `ends`, which is the next token then.
Body Parser::ParseBody(const std::vector<std::string_view>& ends) {
  Body body;
  const Place begin = now().place;
  const auto add = [&body](Statement statement) {
    body.push_back(std::make_unique<const Statement>(std::move(statement)));
  };
  if (!Enter()) return body;
  while (!failed()) {
    Token token = Take();
    if (token.kind == TokenKind::kText) {
      add({.kind = StatementKind::kText, .place = token.place, .text = std::move(token.text)});
    } else if (token.kind == TokenKind::kPrintBegin) {
      Statement print{.kind = StatementKind::kPrint, .place = token.place};
      print.value = ParseTuple(true);
      if (now().kind != TokenKind::kPrintEnd)
        Fail(now().place, fmt::format("{} stands where the tag has to end", ShownNow()));
      Take();
      add(std::move(print));
    } else if (token.kind == TokenKind::kBlockBegin) {
      const bool is_end =
          now().kind == TokenKind::kName && std::find(ends.begin(), ends.end(), now().text) != ends.end();
      if (is_end) break;
      if (std::unique_ptr<const Statement> statement = ParseStatement()) body.push_back(std::move(statement));
    } else {
      if (!ends.empty()) Fail(begin, fmt::format("what begins here has no end \"{}\"", ends.back()));
      break;
    }
  }
  Leave();
  return body;
}

// The rest of a block's first tag, and its body.
Body Parser::ParseBlock(const std::vector<std::string_view>& ends) {
  TakeSign(":");
  ExpectBlockEnd();
  return ParseBody(ends);
}

// Reads a statement from behind its name to the end of its last tag.
std::unique_ptr<const Statement> Parser::ParseStatement() {
  Statement statement{.place = now().place};
  const std::string name = TakeAnyName("the name of a statement");
  if (name == "if") {
    ParseIf(&statement);
  } else if (name == "for") {
    ParseFor(&statement);
  } else if (name == "set") {
    ParseSet(&statement);
  } else if (name == "with") {
    ParseWith(&statement);
  } else if (name == "macro") {
    ParseMacro(&statement);
  } else if (name == "call") {
    ParseCallBlock(&statement);
  } else if (name == "filter") {
    statement.kind = StatementKind::kFilter;
    statement.value = ParseFilters(nullptr);
    statement.body = ParseCaptured("endfilter");
  } else if (name == "generation") {
    ParseGeneration(&statement);
  } else if (name == "break" || name == "continue") {
    statement.kind = name == "break" ? StatementKind::kBreak : StatementKind::kContinue;
    if (loops_ == 0) Fail(statement.place, fmt::format("\"{}\" stands in no loop", name));
  } else {
    Fail(statement.place,
         fmt::format("the statement \"{}\" is not supported; there are {}", Shown(name), kStatements));
  }
  ExpectBlockEnd();
  if (failed()) return nullptr;
  return std::make_unique<const Statement>(std::move(statement));
}

void Parser::ParseIf(Statement* statement) {
  statement->kind = StatementKind::kIf;
  if (!Enter()) return;
  statement->value = ParseTuple(false);
  statement->body = ParseBlock({"elif", "else", "endif"});
  const Place place = now().place;
  if (TakeName("elif")) {
    Statement inner{.place = place};
    ParseIf(&inner);
    statement->otherwise.push_back(std::make_unique<const Statement>(std::move(inner)));
  } else {
    if (TakeName("else")) statement->otherwise = ParseBlock({"endif"});
    ExpectName("endif");
  }
  Leave();
}

void Parser::ParseFor(Statement* statement) {
  statement->kind = StatementKind::kFor;
  statement->targets = ParseTargets(false);
  ExpectName("in");
  statement->value = ParseTuple(false);
  if (TakeName("if")) statement->condition = ParseExpression();
  if (IsName("recursive")) Fail(now().place, "loops that call themselves, \"recursive\", are not supported");
  ++loops_;
  statement->body = ParseBlock({"else", "endfor"});
  --loops_;
  if (TakeName("else")) statement->otherwise = ParseBlock({"endfor"});
  ExpectName("endfor");
}

void Parser::ParseSet(Statement* statement) {
  statement->targets = ParseTargets(true);
  if (TakeSign("=")) {
    statement->kind = StatementKind::kSet;
    statement->value = ParseTuple(true);
    return;
  }
  statement->kind = StatementKind::kSetBlock;
  if (TakeSign("|")) statement->value = ParseFilters(nullptr);
  statement->body = ParseCaptured("endset");
}

// A body whose output goes elsewhere than into the text, and its end.
Body Parser::ParseCaptured(std::string_view end) {
  const bool was_captured = std::exchange(is_captured_, true);
  Body body = ParseBlock({end});
  is_captured_ = was_captured;
  ExpectName(end);
  return body;
}

void Parser::ParseGeneration(Statement* statement) {
  if (is_captured_) {
    Fail(statement->place,
         "a generation block stands inside a macro, a call, a filter, a set or another generation block, "
         "where its "
         "place in the text is not known");
  }
  statement->kind = StatementKind::kGeneration;
  const int loops = std::exchange(loops_, 0);
  statement->body = ParseCaptured("endgeneration");
  loops_ = loops;
}

void Parser::ParseWith(Statement* statement) {
  statement->kind = StatementKind::kWith;
  while (now().kind != TokenKind::kBlockEnd && !failed()) {
    if (!statement->arguments.empty()) Expect(",");
    const Target target = ParseTarget(false);
    Expect("=");
    statement->arguments.push_back({target.name, ParseExpression()});
  }
  statement->body = ParseBlock({"endwith"});
  ExpectName("endwith");
}

void Parser::ParseSignature(MacroSyntax* macro) {
  Expect("(");
  while (!IsSign(")") && !failed()) {
    if (!macro->parameters.empty()) Expect(",");
    const Place place = now().place;
    Parameter parameter{.name = TakeAnyName("the name of a parameter")};
    if (TakeSign("=")) {
      parameter.otherwise = ParseExpression();
    } else if (!macro->parameters.empty() && macro->parameters.back().otherwise != nullptr) {
      Fail(place, "a parameter without a default stands behind one with a default");
    }
    macro->parameters.push_back(std::move(parameter));
  }
  Expect(")");
}

void Parser::ParseMacroBody(MacroSyntax* macro, std::string_view end) {
  const int loops = std::exchange(loops_, 0);
  macros_.push_back(macro);
  macro->body = ParseCaptured(end);
  macros_.pop_back();
  loops_ = loops;
}

void Parser::ParseMacro(Statement* statement) {
  statement->kind = StatementKind::kMacro;
  statement->macro.name = ParseTarget(false).name;
  ParseSignature(&statement->macro);
  ParseMacroBody(&statement->macro, "endmacro");
}

void Parser::ParseCallBlock(Statement* statement) {
  statement->kind = StatementKind::kCallBlock;
  statement->macro.name = "caller";
  if (IsSign("(")) ParseSignature(&statement->macro);
  const Place place = now().place;
  statement->value = ParseExpression();
  if (!failed() && statement->value->kind != ExpressionKind::kCall)
    Fail(place, "a call block needs a call, as \"call name(...)\"");
  ParseMacroBody(&statement->macro, "endcall");
}

Target Parser::ParseTarget(bool with_attributes) {
  Target target{.place = now().place};
  if (now().kind == TokenKind::kName && IsKeyword(now().text))
    Fail(now().place, fmt::format("nothing can be assigned to {}", ShownNow()));
  target.name = TakeAnyName("a name to assign to");
  if (with_attributes && TakeSign(".")) target.attribute = TakeAnyName("the name of an attribute");
  return target;
}

Targets Parser::ParseTargets(bool with_attributes) {
  Targets targets;
  const bool in_parentheses = TakeSign("(");
  targets.all.push_back(ParseTarget(with_attributes));
  while (TakeSign(",")) {
    targets.is_tuple = true;
    if (now().kind != TokenKind::kName || IsName("in")) break;
    targets.all.push_back(ParseTarget(with_attributes));
  }
  if (in_parentheses) Expect(")");
  return targets;
}

}  // namespace engine::jinja
