#include "engine/evaluate/task.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <variant>

#include "engine/base/diagnostic.h"
#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/recipe/document.h"

namespace engine::evaluate {
namespace {

namespace fs = std::filesystem;

struct Form {
  const char* name;
  TaskSettings settings;
};

const std::vector<Form>& Forms() {
  static const std::vector<Form> forms = {
      {"perplexity", {.name = "perplexity", .kind = TaskKind::kPerplexity, .file = ""}},
      {"wikitext", {.name = "wikitext", .kind = TaskKind::kPerplexity, .file = "", .detokenize = "wikitext"}},
      {"wikitext103",
       {.name = "wikitext103",
        .kind = TaskKind::kPerplexity,
        .file = "",
        .windows = "strided",
        .detokenize = "wikitext"}},
      {"lambada", {.name = "lambada", .kind = TaskKind::kLastWord, .file = ""}},
      {"multiple_choice", {.name = "multiple_choice", .kind = TaskKind::kMultipleChoice, .file = ""}}};
  return forms;
}

const Form* FindForm(std::string_view name) {
  const auto found =
      std::find_if(Forms().begin(), Forms().end(), [&](const Form& f) { return f.name == name; });
  return found == Forms().end() ? nullptr : &*found;
}

// A key of a task's file, and where its value goes.
struct Key {
  const char* name;
  std::variant<std::string TaskSettings::*, std::int64_t TaskSettings::*> field;
  std::vector<std::string> values = {};         // of a text that is one of these; empty: any
  std::optional<TaskKind> kind = std::nullopt;  // that has it; nullopt: all
};

const std::vector<Key>& Keys() {
  static const std::vector<Key> keys = {
      {"name", &TaskSettings::name},
      {"file", &TaskSettings::file},
      {"windows", &TaskSettings::windows, {"rolling", "strided"}, TaskKind::kPerplexity},
      {"detokenize", &TaskSettings::detokenize, {"none", "wikitext"}, TaskKind::kPerplexity},
      {"window", &TaskSettings::window, {}, TaskKind::kPerplexity},
      {"stride", &TaskSettings::stride, {}, TaskKind::kPerplexity},
      {"target", &TaskSettings::target, {"word", "strict", "token"}, TaskKind::kLastWord},
      {"delimiter", &TaskSettings::delimiter, {}, TaskKind::kMultipleChoice}};
  return keys;
}

// The keys of a task's file, and what is wrong with them.
class TaskReader {
 public:
  explicit TaskReader(std::vector<Diagnostic>* diagnostics) : diagnostics_(*diagnostics) {}

  TaskSettings Read(const recipe::Node& root) {
    TaskSettings task = FormOf(root);
    for (const recipe::Entry& entry : root.entries) {
      if (entry.key == kForm) continue;
      const auto key =
          std::find_if(Keys().begin(), Keys().end(), [&](const Key& k) { return k.name == entry.key; });
      const bool known = key != Keys().end() && (!key->kind || *key->kind == task.kind);
      if (known) {
        Take(*key, entry.value, &task);
      } else {
        Unknown(entry, task.kind);
      }
    }
    if (root.Find("file") == nullptr)
      Error(root, "the task has no file of examples", "file = \"examples.jsonl\"");
    if (task.windows != "strided" && root.Find("stride") != nullptr)
      Error(*root.Find("stride"), "rolling windows have no stride", "windows = \"strided\"");
    return task;
  }

 private:
  static constexpr const char* kForm = "form";

  void Error(const recipe::Node& node, std::string message, std::string hint = "") {
    diagnostics_.push_back(recipe::ErrorAt(node, std::move(message), std::move(hint)));
  }

  TaskSettings FormOf(const recipe::Node& root) {
    const recipe::Node* form = root.Find(kForm);
    const std::string all = fmt::format("one of {}", fmt::join(TaskForms(), ", "));
    if (form == nullptr) {
      Error(root, "the task has no form", fmt::format("form = {}", all));
      return {};
    }
    const Form* found = form->is_string() ? FindForm(form->string) : nullptr;
    if (found != nullptr) return found->settings;
    Error(*form, fmt::format("{} is no form of a task", recipe::Describe(*form)), all);
    return {};
  }

  void Take(const Key& key, const recipe::Node& value, TaskSettings* task) {
    if (const auto* number = std::get_if<std::int64_t TaskSettings::*>(&key.field)) {
      const bool lawful = value.kind == recipe::Node::Kind::kInteger && value.integer >= 1;
      if (!lawful)
        return Error(
            value, fmt::format("{} is {}, but must be an integer from 1", key.name, recipe::Describe(value)));
      task->*(*number) = value.integer;
      return;
    }
    const bool one_of = key.values.empty() ||
                        std::find(key.values.begin(), key.values.end(), value.string) != key.values.end();
    if (value.is_string() && one_of) {
      task->*std::get<std::string TaskSettings::*>(key.field) = value.string;
      return;
    }
    Error(value,
          fmt::format("{} is {}, but must be {}", key.name, recipe::Describe(value),
                      key.values.empty() ? "a text" : fmt::format("one of {}", fmt::join(key.values, ", "))));
  }

  void Unknown(const recipe::Entry& entry, TaskKind kind) {
    std::vector<std::string> known = {kForm};
    for (const Key& key : Keys()) {
      if (!key.kind || *key.kind == kind) known.emplace_back(key.name);
    }
    diagnostics_.push_back(
        recipe::ErrorAt(entry, fmt::format("a task of this form has no key '{}'", Shown(entry.key)),
                        fmt::format("there are {}", fmt::join(known, ", "))));
  }

  std::vector<Diagnostic>& diagnostics_;
};

absl::StatusOr<TaskSettings> ReadTaskFile(const std::string& path) {
  ASSIGN_OR_RETURN(std::string text, recipe::ReadRecipeFile(path, path));
  std::vector<Diagnostic> diagnostics;
  const auto source = std::make_shared<recipe::Source>(path, std::move(text));
  const std::optional<recipe::Document> document = recipe::ParseToml(source, &diagnostics);
  TaskSettings task;
  if (document) task = TaskReader(&diagnostics).Read(document->root);
  SortAndUnique(&diagnostics);
  RETURN_IF_ERROR(ErrorOf(diagnostics));
  if (document->root.Find("name") == nullptr) task.name = fs::path(path).stem().string();
  if (fs::path(task.file).is_relative()) task.file = (fs::path(path).parent_path() / task.file).string();
  return task;
}

// A name is a part of the names of metrics, and of a file in which they are found again.
bool IsName(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

}  // namespace

std::vector<std::string> TaskForms() {
  std::vector<std::string> names;
  for (const Form& form : Forms()) names.emplace_back(form.name);
  return names;
}

absl::StatusOr<TaskSettings> ReadTask(const std::string& given) {
  const std::size_t equals = given.find('=');
  TaskSettings task;
  if (equals != std::string::npos) {
    const Form* form = FindForm(std::string_view(given).substr(0, equals));
    if (form == nullptr || equals + 1 == given.size()) {
      return InvalidArgument("task \"{}\": before = stands the form of a task, {}, and behind it a file",
                             Shown(given), fmt::join(TaskForms(), ", "));
    }
    task = form->settings;
    task.file = given.substr(equals + 1);
  } else if (given.ends_with(".toml")) {
    ASSIGN_OR_RETURN(task, ReadTaskFile(given));
  } else {
    return InvalidArgument("task \"{}\": a task is FORM=FILE or a file that ends in .toml; FORM is one of {}",
                           Shown(given), fmt::join(TaskForms(), ", "));
  }
  if (!IsName(task.name)) {
    return InvalidArgument("task \"{}\": a task's name has letters, digits, _, - and . alone",
                           Shown(task.name));
  }
  return task;
}

absl::StatusOr<std::vector<TaskSettings>> ReadTasks(const std::vector<std::string>& given) {
  std::vector<TaskSettings> tasks;
  for (const std::string& one : given) {
    ASSIGN_OR_RETURN(TaskSettings task, ReadTask(one));
    for (const TaskSettings& other : tasks) {
      if (other.name != task.name) continue;
      return InvalidArgument(
          "two tasks are called {}: of {} and {}\n    hint: a .toml file gives a task a name of its own",
          task.name, other.file, task.file);
    }
    tasks.push_back(std::move(task));
  }
  return tasks;
}

}  // namespace engine::evaluate
