#include "engine/data/jinja/interpreter.h"

#include <fmt/format.h>

#include <utility>

#include "engine/base/shown.h"
#include "engine/data/jinja/names.h"
#include "engine/data/jinja/text.h"

namespace engine::jinja {
namespace {

constexpr int kMostValueDepth = 200;
constexpr int kMostDepth = 1000;  // of statements and expressions in each other, through calls of macros too
constexpr std::size_t kBytesOfAStep = 64;
constexpr std::size_t kBytesOfAnItem = 64;

}  // namespace

const Value* Scope::Find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->around_)
    for (const auto& [known, value] : scope->variables_)
      if (known == name) return &value;
  return nullptr;
}

void Scope::Set(std::string_view name, Value value) {
  for (auto& [known, old] : variables_) {
    if (known != name) continue;
    old = std::move(value);
    return;
  }
  variables_.emplace_back(std::string(name), std::move(value));
}

bool Interpreter::Run(const Body& body, Rendered* rendered, Mistake* mistake) {
  rendered_ = rendered;
  out_ = &rendered->text;
  Execute(body);
  *mistake = mistake_;
  return !failed();
}

Value Interpreter::Fail(Place place, std::string what) {
  if (!failed()) mistake_ = {place, std::move(what)};
  return {};
}

bool Interpreter::Spend(Place place, std::size_t steps) {
  if (failed()) return false;
  steps_ += steps;
  if (steps_ <= options_.most_steps) return true;
  Fail(place, fmt::format("the template has taken more than {} steps", options_.most_steps));
  mistake_.is_bound = true;
  return false;
}

Value Interpreter::MadeText(Place place, std::string text) {
  if (!Spend(place, text.size() / kBytesOfAStep)) return {};
  if (text.size() <= options_.most_bytes) return Value(std::move(text));
  Fail(place, fmt::format("a text of more than {} bytes", options_.most_bytes));
  mistake_.is_bound = true;
  return {};
}

Value Interpreter::MadeList(Place place, List list) {
  if (!Spend(place, list.items.size())) return {};
  for (const Value& item : list.items)
    if (!item.is_data()) return Fail(place, fmt::format("a list cannot hold a {} here", TypeName(item)));
  if (list.depth <= kMostValueDepth && list.items.size() <= options_.most_bytes / kBytesOfAnItem)
    return Value(std::move(list));
  Fail(place, fmt::format("a list of more than {} items, or {} lists in each other",
                          options_.most_bytes / kBytesOfAnItem, kMostValueDepth));
  mistake_.is_bound = true;
  return {};
}

Value Interpreter::MadeDict(Place place, Dict dict) {
  if (!Spend(place, dict.entries.size())) return {};
  for (const auto& [key, value] : dict.entries)
    if (!value.is_data()) return Fail(place, fmt::format("a dict cannot hold a {} here", TypeName(value)));
  if (dict.depth <= kMostValueDepth) return Value(std::move(dict));
  Fail(place, fmt::format("more than {} dicts in each other", kMostValueDepth));
  mistake_.is_bound = true;
  return {};
}

Interpreter::Deeper::Deeper(Interpreter* in, Place place) : in_(in) {
  if (++in->depth_ <= kMostDepth || in->failed()) return;
  in->Fail(place,
           fmt::format("the template goes deeper than {} levels: does a macro call itself without end?",
                       kMostDepth));
  in->mistake_.is_bound = true;
}

std::string Interpreter::TextOf(Place place, const Value& value) {
  std::string text;
  if (failed()) return text;
  if (!AppendString(value, options_.most_bytes, &text)) {
    Fail(place, fmt::format("a {} cannot become text here", TypeName(value)));
  } else if (value.text() == nullptr) {
    Spend(place, text.size() / kBytesOfAStep);
  }
  return text;
}

std::vector<Value> Interpreter::ItemsOf(Place place, const Value& value) {
  std::vector<Value> items;
  if (failed() || value.is_undefined()) return items;
  if (const List* list = value.list()) {
    if (list->kind == Sequence::kGenerator && std::exchange(list->is_spent, true)) return items;
    if (Spend(place, list->items.size())) items = list->items;
  } else if (const Dict* dict = value.dict()) {
    for (const auto& [key, inner] : dict->entries) items.emplace_back(key);
    Spend(place, items.size());
  } else if (const std::string* text = value.text()) {
    if (!Spend(place, text->size())) return items;
    for (const std::string_view character : Characters(*text)) items.emplace_back(std::string(character));
  } else {
    Fail(place, fmt::format("a {} has no items to go through", TypeName(value)));
  }
  return items;
}

void Interpreter::Print(Place place, std::string_view text) {
  if (failed()) return;
  if (out_->size() + text.size() > options_.most_bytes) {
    Fail(place, fmt::format("the text has more than {} bytes", options_.most_bytes));
    mistake_.is_bound = true;
    return;
  }
  if (Spend(place, text.size() / kBytesOfAStep)) *out_ += text;
}

std::string Interpreter::Captured(const Body& body, Scope* scope) {
  std::string text;
  std::string* const out = std::exchange(out_, &text);
  Scope* const around = std::exchange(scope_, scope);
  Execute(body);
  scope_ = around;
  out_ = out;
  return text;
}

Interpreter::Flow Interpreter::Execute(const Body& body) {
  for (const auto& statement : body) {
    if (!Spend(statement->place, 1)) break;
    if (const Flow flow = ExecuteOne(*statement); flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::ExecuteOne(const Statement& statement) {
  const Deeper deeper(this, statement.place);
  if (failed()) return Flow::kNext;
  switch (statement.kind) {
    case StatementKind::kText:
      Print(statement.place, statement.text);
      break;
    case StatementKind::kPrint: {
      const Value value = Evaluate(*statement.value);
      if (const std::string* text = value.text()) {
        Print(statement.place, *text);
      } else {
        Print(statement.place, TextOf(statement.place, value));
      }
      break;
    }
    case StatementKind::kIf:
      return Execute(IsTrue(Evaluate(*statement.value)) ? statement.body : statement.otherwise);
    case StatementKind::kFor:
      return ExecuteFor(statement);
    case StatementKind::kSet:
    case StatementKind::kSetBlock:
      ExecuteSet(statement);
      break;
    case StatementKind::kWith:
      ExecuteWith(statement);
      break;
    case StatementKind::kMacro: {
      Callable macro{.name = statement.macro.name, .macro = &statement.macro, .scope = scope_};
      scope_->Set(statement.macro.name, Value(std::move(macro)));
      break;
    }
    case StatementKind::kCallBlock:
      ExecuteCallBlock(statement);
      break;
    case StatementKind::kFilter: {
      Scope inner(scope_);
      const Value body = MadeText(statement.place, Captured(statement.body, &inner));
      Print(statement.place, TextOf(statement.place, EvaluateFilter(*statement.value, &body)));
      break;
    }
    case StatementKind::kGeneration:
      ExecuteGeneration(statement);
      break;
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::ExecuteFor(const Statement& statement) {
  auto loop = std::make_shared<Loop>();
  loop->items = ItemsOf(statement.place, Evaluate(*statement.value));
  if (statement.condition != nullptr) {
    std::vector<Value> kept;
    for (const Value& item : loop->items) {
      Scope inner(scope_);
      Scope* const around = std::exchange(scope_, &inner);
      Assign(statement.targets, statement.place, item);
      if (IsTrue(Evaluate(*statement.condition))) kept.push_back(item);
      scope_ = around;
      if (failed()) break;
    }
    loop->items = std::move(kept);
  }
  if (failed()) return Flow::kNext;
  loop->depth = ++loops_;
  Scope* const around = scope_;
  Flow flow = Flow::kNext;
  bool any_whole = false;  // as Jinja has it, "else" is for loops of which no round came to its end
  for (std::size_t i = 0; i < loop->items.size() && flow != Flow::kBreak && Spend(statement.place, 1); ++i) {
    Scope inner(around);
    scope_ = &inner;
    loop->index = i;
    inner.Set("loop", Value(loop));
    Assign(statement.targets, statement.place, loop->items[i]);
    flow = Execute(statement.body);
    any_whole = any_whole || flow == Flow::kNext;
  }
  --loops_;
  if (!any_whole) {
    Scope inner(around);
    scope_ = &inner;
    flow = Execute(statement.otherwise);
  } else {
    flow = Flow::kNext;
  }
  scope_ = around;
  return flow;
}

void Interpreter::AssignOne(const Target& target, const Value& value) {
  if (target.attribute.empty()) return scope_->Set(target.name, value);
  const Value* found = scope_->Find(target.name);
  Namespace* space = found == nullptr ? nullptr : found->space();
  if (space == nullptr) {
    Fail(target.place, fmt::format("\"{}\" is no namespace, so its attribute \"{}\" cannot be set",
                                   target.name, target.attribute));
  } else if (!value.is_data()) {
    Fail(target.place, fmt::format("a namespace cannot hold a {} here", TypeName(value)));
  } else {
    space->attributes.Set(target.attribute, value);
  }
}

void Interpreter::Assign(const Targets& targets, Place place, const Value& value) {
  if (failed()) return;
  if (!targets.is_tuple) return AssignOne(targets.all[0], value);
  if (value.is_undefined()) {
    Fail(place, "an undefined value cannot be taken apart");
    return;
  }
  const std::vector<Value> items = ItemsOf(place, value);
  if (failed()) return;
  if (items.size() != targets.all.size()) {
    Fail(place, fmt::format("{} values are assigned to {} names", items.size(), targets.all.size()));
    return;
  }
  for (std::size_t i = 0; i < items.size(); ++i) AssignOne(targets.all[i], items[i]);
}

void Interpreter::ExecuteSet(const Statement& statement) {
  if (statement.kind == StatementKind::kSet)
    return Assign(statement.targets, statement.place, Evaluate(*statement.value));
  Scope inner(scope_);
  Value body = MadeText(statement.place, Captured(statement.body, &inner));
  if (statement.value != nullptr) body = EvaluateFilter(*statement.value, &body);
  Assign(statement.targets, statement.place, body);
}

void Interpreter::ExecuteWith(const Statement& statement) {
  Scope inner(scope_);
  for (const Argument& argument : statement.arguments) inner.Set(argument.name, Evaluate(*argument.value));
  Scope* const around = std::exchange(scope_, &inner);
  Execute(statement.body);
  scope_ = around;
}

void Interpreter::ExecuteCallBlock(const Statement& statement) {
  const Expression& call = *statement.value;
  const Value callee = Evaluate(*call.parts[0]);
  Arguments arguments = EvaluateArguments(call.arguments);
  arguments.named.emplace_back("caller",
                               Value(Callable{.name = "caller", .macro = &statement.macro, .scope = scope_}));
  const Value result = Call(statement.place, callee, std::move(arguments));
  Print(statement.place, TextOf(statement.place, result));
}

void Interpreter::ExecuteGeneration(const Statement& statement) {
  Scope inner(scope_);
  const std::size_t begin = out_->size();
  Scope* const around = std::exchange(scope_, &inner);
  Execute(statement.body);
  scope_ = around;
  if (!failed() && out_->size() > begin) rendered_->generated.emplace_back(begin, out_->size());
}

}  // namespace engine::jinja
