#include "engine/recipe/parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#include "engine/base/units.h"
#include "engine/recipe/text.h"

namespace engine::recipe {
namespace {

constexpr std::size_t kMaxErrors = 100;  // of one source; a file with more is no recipe

std::string Quoted(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + QuoteToml(word);
  return text;
}

std::string WithArticle(const std::string& noun) { return (noun.front() == 'i' ? "an " : "a ") + noun; }

bool IsTable(const std::string& name) {
  return std::any_of(Tables().begin(), Tables().end(), [&](const TableDoc& t) { return t.name == name; });
}

// What other programs call it, and the key that means it here.
struct OtherName {
  std::string_view name, here;
};
constexpr std::array<OtherName, 27> kOtherNames = {{{"lr", "optimizer.learning_rate"},
                                                    {"max_lr", "optimizer.learning_rate"},
                                                    {"min_lr", "schedule.min_learning_rate"},
                                                    {"warmup_steps", "schedule.warmup_iterations"},
                                                    {"warmup", "schedule.warmup_iterations"},
                                                    {"clip_grad", "optimizer.clip_grad_norm"},
                                                    {"grad_clip", "optimizer.clip_grad_norm"},
                                                    {"max_grad_norm", "optimizer.clip_grad_norm"},
                                                    {"max_steps", "training.iterations"},
                                                    {"train_iters", "training.iterations"},
                                                    {"batch_size", "training.global_batch"},
                                                    {"per_device_train_batch_size", "training.micro_batch"},
                                                    {"seq_length", "data.sequence_length"},
                                                    {"seq_len", "data.sequence_length"},
                                                    {"max_seq_len", "data.sequence_length"},
                                                    {"num_layers", "model.layers"},
                                                    {"n_layer", "model.layers"},
                                                    {"hidden_size", "model.hidden"},
                                                    {"n_embd", "model.hidden"},
                                                    {"d_model", "model.hidden"},
                                                    {"num_attention_heads", "model.attention.heads"},
                                                    {"n_head", "model.attention.heads"},
                                                    {"hidden_dropout", "model.dropout.hidden"},
                                                    {"attention_dropout", "model.dropout.attention"},
                                                    {"zero", "parallelism.zero_stage"},
                                                    {"save_interval", "checkpoint.interval"},
                                                    {"eval_interval", "evaluation.interval"}}};

// What a decoder has no key for: attributes of steps, which are looked for among its keys.
struct StepAttribute {
  std::string_view table, name;
  std::string_view step;  // the module (engine/model/modules/)
};
constexpr std::array<StepAttribute, 5> kStepAttributes = {{{"model.attention", "alibi", "attention"},
                                                           {"model.attention", "mask", "attention"},
                                                           {"model.attention", "scale", "attention"},
                                                           {"model.attention", "sinks", "attention"},
                                                           {"model.attention", "softcap", "attention"}}};

class Parser {
 public:
  Parser(const Source& source, Provenance::Origin origin, std::vector<ExtendsEntry>* extends,
         std::vector<Diagnostic>* diagnostics)
      : source_(source), origin_(origin), extends_(extends), diagnostics_(diagnostics) {}

  Settings Parse(const Node& root) {
    const Entry* study = extends_ == nullptr ? nullptr : StudyOf(root);
    if (study != nullptr) {
      settings_.broken.insert(kExtendsKey);  // what is missing of a recipe is not to be said
      Error(study->key_mark, "this is a study, not a recipe",
            fmt::format("`engine ablate {0}` trains its variants, `engine check {0}` checks them",
                        source_.name()));
    } else {
      ParseTable(root, "");
    }
    return std::move(settings_);
  }

 private:
  void Error(const Mark& mark, std::string message, std::string hint = "") {
    if (errors_ == kMaxErrors) {
      Add(source_.Error({}, fmt::format("more than {} mistakes; the rest is not shown", kMaxErrors)));
    }
    if (errors_++ < kMaxErrors) Add(source_.Error(mark, std::move(message), std::move(hint)));
  }

  void Add(Diagnostic diagnostic) {
    diagnostic.code = "E102";
    diagnostics_->push_back(std::move(diagnostic));
  }

  Provenance ProvenanceOf(const Mark& mark) const {
    return {origin_, source_.Span(mark), source_.Line(mark.line)};
  }

  void ParseTable(const Node& table, const std::string& name) {
    settings_.headers.emplace(name,
                              ProvenanceOf(name.empty() ? Mark{source_.first_line(), 1, 1} : table.mark));
    for (const Entry& entry : table.entries) {
      if (errors_ > kMaxErrors) return;
      const std::string key = name.empty() ? entry.key : name + "." + entry.key;
      const bool quoted = entry.key.find('.') != std::string::npos;  // "a.b" in quotes is no path of keys
      const Field* field = quoted ? nullptr : FindField(CurrentKey(key));
      if (!quoted && FindTextKey(key) != nullptr) {
        settings_.text.entries.push_back({key, entry.key_mark, entry.value});
      } else if (name.empty() && entry.key == kExtendsKey && extends_ != nullptr) {
        ParseExtends(entry);
      } else if (!quoted && IsTable(std::string(CurrentKey(key)))) {
        if (entry.value.kind == Node::Kind::kTable) {
          ParseTable(entry.value, key);
        } else {
          Error(entry.value.mark, fmt::format("{} must be a table, found {}", key, Describe(entry.value)),
                fmt::format("write [{}], and its keys below", key));
          BreakTable(key);
        }
      } else if (field != nullptr) {
        ParseField(*field, entry.value);
      } else {
        UnknownKey(entry, name);
      }
    }
  }

  void BreakTable(const std::string& name) {
    for (const Field& field : Fields()) {
      if (field.key.rfind(name + ".", 0) == 0) settings_.broken.insert(field.key);
    }
  }

  void ParseExtends(const Entry& entry) {
    const Node& value = entry.value;
    settings_.headers.emplace(kExtendsKey, ProvenanceOf(entry.key_mark));
    if (value.kind == Node::Kind::kString) {
      extends_->push_back({value.string, value.mark});
      return;
    }
    if (value.kind != Node::Kind::kArray) {
      Error(value.mark, fmt::format("extends must be a path or a list of paths, found {}", Describe(value)));
      settings_.broken.insert(kExtendsKey);
      return;
    }
    for (const Node& item : value.items) {
      if (item.kind == Node::Kind::kString) {
        extends_->push_back({item.string, item.mark});
      } else {
        Error(item.mark, fmt::format("extends must be a list of paths, found {} in it", Describe(item)));
        settings_.broken.insert(kExtendsKey);
      }
    }
  }

  void UnknownKey(const Entry& entry, const std::string& table) {
    std::vector<std::string> siblings;
    for (const Field& field : Fields()) {
      if (field.table() == table) siblings.push_back(field.name());
    }
    for (const TableDoc& known : Tables()) {
      const std::size_t dot = known.name.rfind('.');
      const std::string parent = dot == std::string::npos ? "" : known.name.substr(0, dot);
      if (parent == table)
        siblings.push_back(dot == std::string::npos ? known.name : known.name.substr(dot + 1));
    }
    for (const TextKey& known : TextKeys()) {
      const std::size_t dot = known.key.rfind('.');
      const std::string_view parent = dot == std::string_view::npos ? "" : known.key.substr(0, dot);
      if (parent == table)
        siblings.emplace_back(known.key.substr(dot == std::string_view::npos ? 0 : dot + 1));
    }
    if (table.empty() && extends_ != nullptr) siblings.emplace_back(kExtendsKey);
    std::string hint = NearestWord(entry.key, siblings);
    if (hint == kExtendsKey) settings_.broken.insert(kExtendsKey);
    if (!hint.empty()) {
      hint = fmt::format("did you mean '{}'?", hint);
    } else {
      hint = ElsewhereHint(entry.key, table);
    }
    const bool is_section = table.empty() && entry.value.kind == Node::Kind::kTable;
    Error(entry.key_mark,
          fmt::format("unknown {} '{}'{}", is_section ? "section" : "key", Shown(entry.key),
                      table.empty() ? "" : fmt::format(" in [{}]", table)),
          std::move(hint));
  }

  // An attribute of a step, a key that another table has, or one that goes by another name here.
  static std::string ElsewhereHint(const std::string& name, const std::string& table) {
    const auto attribute =
        std::find_if(kStepAttributes.begin(), kStepAttributes.end(),
                     [&](const StepAttribute& one) { return one.table == table && one.name == name; });
    if (attribute != kStepAttributes.end())
      return fmt::format(
          "'{}' is an attribute of the step `{}` of a model that is written as steps: `engine resolve "
          "--expand` prints "
          "this one so, and docs/custom-models.md says more",
          name, attribute->step);
    const auto other = std::find_if(kOtherNames.begin(), kOtherNames.end(),
                                    [&](const OtherName& one) { return one.name == name; });
    if (other != kOtherNames.end()) return fmt::format("'{}' is called {} here", name, other->here);
    std::string tables;
    for (const Field& field : Fields()) {
      if (field.name() == name) tables += fmt::format("{}[{}]", tables.empty() ? "" : ", ", field.table());
    }
    return tables.empty() ? "" : fmt::format("'{}' is a key of {}", name, tables);
  }

  void ParseField(const Field& field, const Node& node) {
    std::optional<FieldValue> value =
        std::visit([&](const auto& sample) { return Read(field, node, sample); }, DefaultOf(field));
    if (!value.has_value()) {
      settings_.broken.insert(field.key);
      return;
    }
    settings_.values[field.key] = {*std::move(value), ProvenanceOf(node.mark)};
  }

  // `sample` only chooses the type.
  template <typename T>
  std::optional<FieldValue> Read(const Field& field, const Node& node, const T& /*sample*/) {
    std::optional<T> value = ReadScalar<T>(field, node);
    if (!value.has_value()) return std::nullopt;
    return FieldValue(*std::move(value));
  }

  template <typename T>
  std::optional<FieldValue> Read(const Field& field, const Node& node, const std::vector<T>& /*sample*/) {
    if (node.kind != Node::Kind::kArray) {
      WrongType(field, node);
      return std::nullopt;
    }
    std::vector<T> values;
    bool good = true;
    for (const Node& item : node.items) {
      std::optional<T> value = ReadScalar<T>(field, item);
      if (value.has_value()) {
        values.push_back(*std::move(value));
      } else {
        good = false;
      }
    }
    if (!good) return std::nullopt;
    return FieldValue(std::move(values));
  }

  template <typename T>
  std::optional<T> ReadScalar(const Field& field, const Node& node) {
    if constexpr (std::is_same_v<T, std::string>) {
      if (node.kind == Node::Kind::kString) return CheckWord(field, node);
    } else if constexpr (std::is_same_v<T, bool>) {
      if (node.kind == Node::Kind::kBoolean) return node.boolean;
    } else if constexpr (std::is_same_v<T, std::int64_t>) {
      if (node.kind == Node::Kind::kInteger) return CheckRange(field, node, node.integer);
      if (field.bytes && node.kind == Node::Kind::kString) return ReadBytes(field, node);
    } else {
      if (node.kind == Node::Kind::kFloat) return CheckRange(field, node, node.number);
      if (node.kind == Node::Kind::kInteger)
        return CheckRange(field, node, static_cast<double>(node.integer));
    }
    WrongType(field, node);
    return std::nullopt;
  }

  void WrongType(const Field& field, const Node& node) {
    Error(node.mark,
          fmt::format("{} must be {}, found {}", field.key, WithArticle(field.type_name()), Describe(node)),
          field.bytes ? "write an integer, or a string such as \"141 GB\" or \"64 MiB\"" : "");
  }

  std::optional<std::string> CheckWord(const Field& field, const Node& node) {
    if (field.words.empty() ||
        std::find(field.words.begin(), field.words.end(), node.string) != field.words.end()) {
      return node.string;
    }
    const std::string nearest = NearestWord(node.string, field.words);
    Error(node.mark,
          field.words.size() == 1
              ? fmt::format("{} must be {}, found {}", field.key, Quoted(field.words), Describe(node))
              : fmt::format("{} must be one of {}, found {}", field.key, Quoted(field.words), Describe(node)),
          nearest.empty() ? "" : fmt::format("did you mean \"{}\"?", nearest));
    return std::nullopt;
  }

  template <typename T>
  std::optional<T> CheckRange(const Field& field, const Node& node, T value) {
    if (!std::isfinite(static_cast<double>(value))) {
      Error(node.mark, fmt::format("{} must be a finite number, found {}", field.key, value));
      return std::nullopt;
    }
    if (field.range.Contains(static_cast<double>(value))) return value;
    Error(node.mark, fmt::format("{} must be {}, found {}", field.key, field.range.ToText(), value));
    return std::nullopt;
  }

  std::optional<std::int64_t> ReadBytes(const Field& field, const Node& node) {
    const std::optional<std::int64_t> bytes = ParseBytes(node.string);
    if (bytes.has_value()) return CheckRange(field, node, *bytes);
    Error(node.mark, fmt::format("{} is {}, which is no size", field.key, Describe(node)),
          "write an integer, or a string such as \"141 GB\" or \"64 MiB\"");
    return std::nullopt;
  }

  const Source& source_;
  Provenance::Origin origin_;
  std::vector<ExtendsEntry>* extends_;
  std::vector<Diagnostic>* diagnostics_;
  Settings settings_;
  std::size_t errors_ = 0;
};

}  // namespace

void Settings::Override(const Settings& later) {
  OverrideValues(later);
  for (const auto& [table, provenance] : later.headers) headers[table] = provenance;
}

void Settings::OverrideValues(const Settings& later) {
  for (const auto& [key, setting] : later.values) values[key] = setting;
  broken.insert(later.broken.begin(), later.broken.end());
  text_mistakes.insert(text_mistakes.end(), later.text_mistakes.begin(), later.text_mistakes.end());
  MergeText(later.text, &text, &text_mistakes);
}

Provenance Settings::PlaceFor(const std::string& key) const {
  std::vector<std::string> candidates;
  for (std::size_t dot = key.rfind('.'); dot != std::string::npos && dot > 0; dot = key.rfind('.', dot - 1)) {
    candidates.push_back(key.substr(0, dot));
  }
  candidates.insert(candidates.end(), {kExtendsKey, ""});
  for (const std::string& candidate : candidates) {
    const auto header = headers.find(candidate);
    if (header == headers.end()) continue;
    return {Provenance::Origin::kDefault, header->second.span, header->second.source_line};
  }
  return {};
}

const Entry* StudyOf(const Node& root) {
  const auto found = std::find_if(root.entries.begin(), root.entries.end(), [](const Entry& entry) {
    return entry.key == kStudyKey && entry.value.kind == Node::Kind::kTable;
  });
  return found == root.entries.end() ? nullptr : &*found;
}

Settings ParseSettings(const Document& document, Provenance::Origin origin,
                       std::vector<ExtendsEntry>* extends, std::vector<Diagnostic>* diagnostics) {
  return Parser(*document.source, origin, extends, diagnostics).Parse(document.root);
}

}  // namespace engine::recipe
