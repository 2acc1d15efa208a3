#include "engine/data/jinja/template.h"

#include <algorithm>

#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/base/utf8.h"
#include "engine/data/jinja/interpreter.h"
#include "engine/data/jinja/parser.h"

namespace engine::jinja {

struct Syntax {
  std::string name;
  std::string source;
  Body body;
};

namespace {

constexpr std::size_t kMostSourceBytes = std::size_t{1} << 20;

// The text with "\n" as its only line break, and without one at the end.
std::string WithPlainNewlines(std::string_view source) {
  std::string plain;
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      plain += source[i];
    } else {
      plain += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (plain.ends_with('\n')) plain.pop_back();
  return plain;
}

std::string Located(const Syntax& syntax, const Mistake& mistake) {
  const auto [line, column] = LineAndColumn(syntax.source, mistake.place);
  return fmt::format("{}:{}:{}: error: {}", syntax.name, line, column, mistake.what);
}

bool HasGeneration(const Body& body) {
  return std::any_of(body.begin(), body.end(), [](const auto& statement) {
    return statement->kind == StatementKind::kGeneration || HasGeneration(statement->body) ||
           HasGeneration(statement->otherwise);
  });
}

}  // namespace

Template::Template(std::unique_ptr<const Syntax> syntax) : syntax_(std::move(syntax)) {}
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;
Template::~Template() = default;

absl::StatusOr<Template> Template::Parse(std::string_view source, std::string name) {
  if (source.size() > kMostSourceBytes)
    return InvalidArgument("{}: error: a template has at most {} bytes, and this one has {}", name,
                           kMostSourceBytes, source.size());
  if (const std::size_t valid = ValidUtf8Prefix(source); valid < source.size())
    return InvalidArgument("{}: error: is not UTF-8 from byte {} on", name, valid);
  auto syntax = std::make_unique<Syntax>();
  syntax->name = std::move(name);
  syntax->source = WithPlainNewlines(source);
  std::vector<Token> tokens;
  Mistake mistake;
  if (!CutIntoTokens(syntax->source, &tokens, &mistake) ||
      !Parser(std::move(tokens)).Parse(&syntax->body, &mistake))
    return InvalidArgument("{}", Located(*syntax, mistake));
  return Template(std::move(syntax));
}

absl::StatusOr<Rendered> Template::Render(const Dict& variables, const RenderOptions& options) const {
  Scope scope(nullptr);
  for (const auto& [name, value] : variables.entries) scope.Set(name, value);
  Scope inner(&scope);
  Rendered rendered;
  Mistake mistake;
  if (Interpreter(options, &inner).Run(syntax_->body, &rendered, &mistake)) return rendered;
  if (mistake.is_bound) return ResourceExhausted("{}", Located(*syntax_, mistake));
  return InvalidArgument("{}", Located(*syntax_, mistake));
}

bool Template::marks_generation() const { return HasGeneration(syntax_->body); }

}  // namespace engine::jinja
