#include "engine/recipe/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "engine/recipe/fields.h"

namespace engine::recipe {
namespace {

constexpr std::string_view kMain = "model.main";
constexpr std::string_view kBlocks = "block";
constexpr std::string_view kGroups = "optimizer.group";
constexpr std::string_view kModelTable = "model.";

void ReportEdit(Diagnostic diagnostic, std::vector<Diagnostic>* diagnostics) {
  diagnostic.code = "E208";
  diagnostics->push_back(std::move(diagnostic));
}

std::vector<std::string> StepNames(const Node& steps) {
  std::vector<std::string> names;
  for (const Node& step : steps.items) names.push_back(StepName(step));
  return names;
}

Node* FindStep(std::string_view name, Node* steps) {
  for (Node& step : steps->items) {
    if (step.is_table() && StepName(step) == name) return &step;
  }
  return nullptr;
}

// Key by key, and tables within tables.
void MergeTables(const Node& later, Node* into) {
  for (const Entry& entry : later.entries) {
    Node* known = into->Find(entry.key);
    if (known == nullptr) {
      into->entries.push_back(entry);
    } else if (known->is_table() && entry.value.is_table()) {
      MergeTables(entry.value, known);
    } else {
      *known = entry.value;
    }
  }
}

std::string DidYouMean(std::string_view name, const std::vector<std::string>& names) {
  const std::string nearest = NearestWord(name, names);
  if (!nearest.empty()) return fmt::format("did you mean '{}'?", nearest);
  return names.empty() ? "" : fmt::format("the steps are {}", fmt::join(names, ", "));
}

// `before` are the keys that have led here: names of steps may have dots.
void PatchBelow(const std::string& before, const Node& patch, Node* steps,
                std::vector<Diagnostic>* diagnostics) {
  for (const Entry& entry : patch.entries) {
    const std::string name = before + entry.key;
    Node* step = FindStep(name, steps);
    if (step != nullptr && entry.value.is_table()) {
      MergeTables(entry.value, step);
      continue;
    }
    const std::vector<std::string> names = StepNames(*steps);
    const bool leads_on =
        entry.value.is_table() && std::any_of(names.begin(), names.end(), [&](const std::string& known) {
          return known.starts_with(name + ".");
        });
    if (step == nullptr && leads_on) {
      PatchBelow(name + ".", entry.value, steps, diagnostics);
    } else if (step == nullptr) {
      ReportEdit(ErrorAt(entry, fmt::format("there is no step '{}' to change", Shown(name)),
                         DidYouMean(name, names)),
                 diagnostics);
    } else {
      ReportEdit(ErrorAt(entry.value,
                         fmt::format("the step '{}' is changed by a table of its attributes, found {}",
                                     Shown(name), Describe(entry.value)),
                         "such as { repeat = 12 }"),
                 diagnostics);
    }
  }
}

void MergeSteps(const Node& later, Node* into, std::vector<Diagnostic>* diagnostics) {
  if (into->is_array() && later.is_table()) {
    PatchSteps(later, into, diagnostics);
  } else if (into->is_table() && later.is_table()) {
    MergeTables(later, into);
  } else {
    *into = later;
  }
}

void MergeBlock(const Node& later, Node* into, std::vector<Diagnostic>* diagnostics) {
  const Node* steps = later.Find("steps");
  const bool anew = (steps != nullptr && steps->is_array()) || later.Find("like") != nullptr;
  if (anew || !later.is_table() || !into->is_table()) {
    *into = later;
    return;
  }
  for (const Entry& entry : later.entries) {
    Node* known = into->Find(entry.key);
    if (known == nullptr) {
      into->entries.push_back(entry);
    } else if (entry.key == "steps") {
      MergeSteps(entry.value, known, diagnostics);
    } else {
      *known = entry.value;
    }
  }
}

void MergeBlocks(const Node& later, Node* into, std::vector<Diagnostic>* diagnostics) {
  if (!later.is_table() || !into->is_table()) {
    *into = later;
    return;
  }
  for (const Entry& entry : later.entries) {
    Node* known = into->Find(entry.key);
    if (known == nullptr) {
      into->entries.push_back(entry);
    } else {
      MergeBlock(entry.value, known, diagnostics);
    }
  }
}

// The list that an edit is of: main, or that of a block.
Node* StepsToEdit(const Node& edit, Node* root, std::vector<Diagnostic>* diagnostics) {
  Node* steps = root->Find(kMain);
  if (const Node* block = edit.Find("block"); block != nullptr) {
    Node* blocks = root->Find(kBlocks);
    Node* found = blocks == nullptr || (block == nullptr || !block->is_string())
                      ? nullptr
                      : blocks->Find(block->string);
    steps = found == nullptr ? nullptr : found->Find("steps");
    if (steps == nullptr || !steps->is_array()) {
      ReportEdit(
          ErrorAt(*block, fmt::format("there is no block '{}' with a list of steps", Shown(block->string))),
          diagnostics);
      return nullptr;
    }
  }
  if (steps == nullptr || !steps->is_array()) {
    ReportEdit(
        ErrorAt(edit, "there is no model.main whose steps could be edited", "extend a file that has one"),
        diagnostics);
    return nullptr;
  }
  return steps;
}

// [[model.replace]] and its kin: { step = "layers", with = { … } or [ … ], block = "gqa" }.
void Edit(std::string_view how, const Node& edit, Node* root, std::vector<Diagnostic>* diagnostics) {
  if (!edit.is_table()) {
    ReportEdit(ErrorAt(edit, fmt::format("{} is a list of tables, found {}", how, Describe(edit)),
                       fmt::format("write [[{}]], and step and with below", how)),
               diagnostics);
    return;
  }
  const bool removes = how == "model.remove";
  const Node* name = edit.Find("step");
  const Node* with = edit.Find("with");
  for (const Entry& entry : edit.entries) {
    const bool known = entry.key == "step" || entry.key == "block" || (entry.key == "with" && !removes);
    if (!known) {
      ReportEdit(ErrorAt(entry, fmt::format("unknown key '{}' in [[{}]]", Shown(entry.key), how),
                         DidYouMean(entry.key, {"step", "with", "block"})),
                 diagnostics);
    }
  }
  const bool complete = (name != nullptr && name->is_string()) &&
                        (removes || (with != nullptr && (with->is_table() || with->is_array())));
  if (!complete) {
    ReportEdit(ErrorAt(edit, fmt::format("[[{}]] needs step = \"NAME\"{}", how,
                                         removes ? "" : " and with = { a step } or [ steps ]")),
               diagnostics);
    return;
  }
  Node* steps = StepsToEdit(edit, root, diagnostics);
  if (steps == nullptr) return;
  const Node* found = FindStep(name->string, steps);
  if (found == nullptr) {
    ReportEdit(ErrorAt(*name, fmt::format("there is no step '{}'", Shown(name->string)),
                       DidYouMean(name->string, StepNames(*steps))),
               diagnostics);
    return;
  }
  auto at = steps->items.begin() + (found - steps->items.data());
  const std::vector<Node> added = removes            ? std::vector<Node>{}
                                  : with->is_array() ? with->items
                                                     : std::vector<Node>{*with};
  if (how == "model.replace" || removes) at = steps->items.erase(at);
  if (how == "model.after") ++at;
  steps->items.insert(at, added.begin(), added.end());
}

std::string KeyToml(std::string_view key) {
  const bool bare = !key.empty() && std::all_of(key.begin(), key.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-';
  });
  return bare ? std::string(key) : QuoteToml(key);
}

std::string StepLines(const Node& steps) {
  if (!steps.is_array()) return InlineToml(steps);
  std::string text = "[\n";
  for (const Node& step : steps.items) text += fmt::format("  {},\n", InlineToml(step));
  return text + "]";
}

struct TextRow {
  std::string key;
  std::string text;
  const Node* node = nullptr;  // the value
  const Node* step = nullptr;  // null where it is none
};

void AddStepRows(const std::string& prefix, const Node& steps, std::vector<TextRow>* rows) {
  if (!steps.is_array()) {
    rows->push_back({prefix, InlineToml(steps), &steps});
    return;
  }
  std::map<std::string, int> seen;
  std::vector<std::string> order;
  for (const Node& step : steps.items) {
    std::string name = StepName(step);
    if (const int count = ++seen[name]; count > 1) name += fmt::format("#{}", count);
    rows->push_back({fmt::format("{}.{}", prefix, name), InlineToml(step), &step, &step});
    order.push_back(std::move(name));
  }
  rows->push_back({prefix, fmt::format("[{}]", fmt::join(order, ", ")), &steps});  // their order
}

std::vector<TextRow> AllRows(const Node& root) {
  std::vector<TextRow> rows;
  for (const Entry& part : root.entries) {
    if (part.key == kMain) {
      AddStepRows(part.key, part.value, &rows);
    } else if (part.key == kBlocks) {
      for (const Entry& block : part.value.entries) {
        for (const Entry& entry : block.value.entries) {
          const std::string key = fmt::format("{}.{}", part.key, block.key);
          if (entry.key == "steps") {
            AddStepRows(key, entry.value, &rows);
          } else {
            rows.push_back({key + "." + entry.key, InlineToml(entry.value), &entry.value});
          }
        }
      }
    } else if (part.value.is_table()) {
      for (const Entry& entry : part.value.entries)
        rows.push_back({fmt::format("{}.{}", part.key, entry.key), InlineToml(entry.value), &entry.value});
    } else {
      rows.push_back({part.key, InlineToml(part.value), &part.value});
    }
  }
  return rows;
}

constexpr const char* kNothing = "none";

// Whether both are steps of one module.
bool AreOneModule(const TextRow& a, const TextRow& b) {
  if (a.step == nullptr || b.step == nullptr || !a.step->is_table() || !b.step->is_table()) return false;
  const Node* of_a = a.step->Find("do");
  const Node* of_b = b.step->Find("do");
  return of_a != nullptr && of_b != nullptr && InlineToml(*of_a) == InlineToml(*of_b);
}

void AddAttributeChanges(const TextRow& before, const TextRow& after, std::vector<TextChange>* changes) {
  for (const Entry& entry : before.step->entries) {
    const Node* other = after.step->Find(entry.key);
    std::string a = InlineToml(entry.value);
    std::string b = other != nullptr ? InlineToml(*other) : kNothing;
    if (a != b) changes->push_back({before.key + "." + entry.key, std::move(a), std::move(b)});
  }
  for (const Entry& entry : after.step->entries) {
    if (before.step->Find(entry.key) == nullptr)
      changes->push_back({after.key + "." + entry.key, kNothing, InlineToml(entry.value)});
  }
}

}  // namespace

const std::vector<TextKey>& TextKeys() {
  static const std::vector<TextKey> keys = {
      {"model.dims", false, "Named integers, and expressions over them, of which every shape is made."},
      {"model.means", false,
       "What a dim means, where its name does not say it: sample, sequence, head, feature, vocabulary, "
       "other."},
      {"model.inputs", false, "What a batch brings, by name: \"i32[B,S]\"."},
      {"model.rotary", false, "Tables of rotary frequencies, by name."},
      {kMain, false, "The steps of the model."},
      {"model.replace", true, "Puts steps in the place of one."},
      {"model.before", true, "Puts steps before one."},
      {"model.after", true, "Puts steps behind one."},
      {"model.remove", true, "Removes a step."},
      {kBlocks, false, "Blocks: named lists of steps."},
      {kGroups, false, "Settings of the optimizer for the parameters whose names match."},
  };
  return keys;
}

const TextKey* FindTextKey(std::string_view key) {
  const auto found = std::find_if(TextKeys().begin(), TextKeys().end(),
                                  [&](const TextKey& known) { return known.key == key; });
  return found == TextKeys().end() ? nullptr : &*found;
}

void MergeText(const Node& later, Node* into, std::vector<Diagnostic>* diagnostics) {
  for (const Entry& entry : later.entries) {
    if (FindTextKey(entry.key)->edits) continue;
    Node* known = into->Find(entry.key);
    if (known == nullptr) {
      into->entries.push_back(entry);
    } else if (entry.key == kMain) {
      MergeSteps(entry.value, known, diagnostics);
    } else if (entry.key == kBlocks) {
      MergeBlocks(entry.value, known, diagnostics);
    } else if (known->is_table() && entry.value.is_table()) {
      MergeTables(entry.value, known);
    } else {
      *known = entry.value;
    }
  }
  for (const Entry& entry : later.entries) {
    if (!FindTextKey(entry.key)->edits) continue;
    const std::vector<Node> edits =
        entry.value.is_array() ? entry.value.items : std::vector<Node>{entry.value};
    for (const Node& edit : edits) Edit(entry.key, edit, into, diagnostics);
  }
}

void PatchSteps(const Node& patch, Node* steps, std::vector<Diagnostic>* diagnostics) {
  PatchBelow("", patch, steps, diagnostics);
}

std::string StepName(const Node& step) {
  for (const char* key : {"as", "do"}) {
    if (const Node* name = step.Find(key); (name != nullptr && name->is_string())) return name->string;
  }
  return "";
}

std::string InlineToml(const Node& node) {
  std::string text;
  switch (node.kind) {
    case Node::Kind::kTable:
      for (const Entry& entry : node.entries) {
        text +=
            fmt::format("{}{} = {}", text.empty() ? " " : ", ", KeyToml(entry.key), InlineToml(entry.value));
      }
      return "{" + text + (text.empty() ? "}" : " }");
    case Node::Kind::kArray:
      for (const Node& item : node.items) text += (text.empty() ? "" : ", ") + InlineToml(item);
      return "[" + text + "]";
    case Node::Kind::kString:
      return QuoteToml(node.string);
    case Node::Kind::kInteger:
      return ToToml(FieldValue(node.integer));
    case Node::Kind::kFloat:
      return ToToml(FieldValue(node.number));
    case Node::Kind::kBoolean:
      return ToToml(FieldValue(node.boolean));
    case Node::Kind::kDateTime:
      break;
  }
  return "\"\"";
}

std::string ModelLines(const Node& root) {
  std::string text;
  for (const TextKey& key : TextKeys()) {
    const Node* node = root.Find(key.key);
    if (node == nullptr || !key.key.starts_with(kModelTable)) continue;
    text += fmt::format("{} = {}\n", key.key.substr(kModelTable.size()), StepLines(*node));
  }
  return text;
}

std::string TextTables(const Node& root) {
  std::string text;
  if (const Node* blocks = root.Find(kBlocks); blocks != nullptr && blocks->is_table()) {
    for (const Entry& block : blocks->entries) {
      text += fmt::format("\n[block.{}]\n", KeyToml(block.key));
      for (const Entry& entry : block.value.entries) {
        text += fmt::format("{} = {}\n", KeyToml(entry.key), StepLines(entry.value));
      }
    }
  }
  if (const Node* groups = root.Find(kGroups); groups != nullptr && groups->is_array()) {
    for (const Node& group : groups->items) {
      text += "\n[[optimizer.group]]\n";
      for (const Entry& entry : group.entries)
        text += fmt::format("{} = {}\n", KeyToml(entry.key), InlineToml(entry.value));
    }
  }
  return text;
}

std::vector<std::pair<std::string, std::string>> TextRows(const Node& root) {
  std::vector<std::pair<std::string, std::string>> rows;
  for (TextRow& row : AllRows(root)) rows.emplace_back(std::move(row.key), std::move(row.text));
  return rows;
}

const Node* FindInText(const Node& root, std::string_view key) {
  const std::vector<TextRow> rows = AllRows(root);
  const TextRow* nearest = nullptr;
  for (const TextRow& row : rows) {
    const bool is_around = key == row.key || (key.starts_with(row.key) && key[row.key.size()] == '.');
    if (is_around && (nearest == nullptr || row.key.size() > nearest->key.size())) nearest = &row;
  }
  if (nearest == nullptr) return nullptr;
  if (nearest->step == nullptr || key == nearest->key) return nearest->node;
  const Node* attribute = nearest->step->Find(key.substr(nearest->key.size() + 1));
  return attribute != nullptr ? attribute : nearest->step;
}

std::vector<TextChange> TextChanges(const Node& before, const Node& after) {
  const std::vector<TextRow> rows_before = AllRows(before);
  const std::vector<TextRow> rows_after = AllRows(after);
  const auto find = [](const std::vector<TextRow>& rows, const std::string& key) {
    const auto found =
        std::find_if(rows.begin(), rows.end(), [&](const TextRow& row) { return row.key == key; });
    return found == rows.end() ? nullptr : &*found;
  };
  std::vector<TextChange> changes;
  for (const TextRow& row : rows_before) {
    const TextRow* other = find(rows_after, row.key);
    if (other != nullptr && other->text == row.text) continue;
    if (other != nullptr && AreOneModule(row, *other)) {
      AddAttributeChanges(row, *other, &changes);
    } else {
      changes.push_back({row.key, row.text, other != nullptr ? other->text : kNothing});
    }
  }
  for (const TextRow& row : rows_after) {
    if (find(rows_before, row.key) == nullptr) changes.push_back({row.key, kNothing, row.text});
  }
  return changes;
}

}  // namespace engine::recipe
