#include "engine/model/dim_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "engine/base/status.h"
#include "engine/model/expression.h"

namespace engine::model {
namespace {

using graph::Dim;
using recipe::Entry;
using recipe::Node;

// In place of a size that is not known, so that few others become mistakes by it.
constexpr std::int64_t kUnknown = 1 << 20;

struct Meaning {
  std::string_view word;
  Dim dim;
};
constexpr std::array<Meaning, 8> kMeanings = {{{"other", Dim::kOther},
                                               {"sample", Dim::kSample},
                                               {"sequence", Dim::kSequence},
                                               {"causal_sequence", Dim::kCausalSequence},
                                               {"head", Dim::kHead},
                                               {"feature", Dim::kFeature},
                                               {"vocabulary", Dim::kVocab},
                                               {"expert", Dim::kExpert}}};

std::vector<std::string> MeaningWords() {
  std::vector<std::string> words;
  words.reserve(kMeanings.size());
  for (const Meaning& meaning : kMeanings) words.emplace_back(meaning.word);
  return words;
}

bool IsGiven(std::string_view name) { return name == "B" || name == "S"; }

}  // namespace

std::vector<std::string> DimTable::Names() const {
  std::vector<std::string> names = {"B", "S"};
  for (const auto& [name, size] : sizes_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<std::int64_t> DimTable::ValueOf(std::string_view name) const {
  read_->emplace(name);
  if (name == "B") return options_.batch;
  if (name == "S") return options_.sequence;
  if (const auto found = sizes_.find(name); found != sizes_.end()) return found->second;
  const std::string nearest = name.size() > 1 ? NearestWord(name, Names()) : "";
  return InvalidArgument("there is no dim '{}'{}; the dims are {}", name,
                         nearest.empty() ? "" : fmt::format(" (did you mean '{}'?)", nearest),
                         fmt::join(Names(), ", "));
}

absl::StatusOr<std::int64_t> DimTable::Integer(const Node& node) const {
  if (node.kind == Node::Kind::kInteger) return node.integer;
  if (!node.is_string())
    return InvalidArgument("an integer or an expression over dims, not {}", Describe(node));
  return EvaluateInteger(node.string, [&](std::string_view name) { return ValueOf(name); });
}

absl::StatusOr<double> DimTable::Real(const Node& node) const {
  if (node.kind == Node::Kind::kInteger) return static_cast<double>(node.integer);
  if (node.kind == Node::Kind::kFloat) return node.number;
  if (!node.is_string())
    return InvalidArgument("a number or an expression over dims, not {}", Describe(node));
  return EvaluateReal(node.string, [&](std::string_view name) { return ValueOf(name); });
}

absl::StatusOr<std::int64_t> DimTable::Size(const Node& node) const {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  ASSIGN_OR_RETURN(const std::int64_t size, Integer(node));
  if (size >= 1 && size <= kMost) return size;
  return InvalidArgument("a dim of {} elements; at least 1, and at most {}", size, kMost);
}

Dim DimTable::MeaningByName(std::string_view name) const {
  if (const auto found = means_.find(name); found != means_.end()) return found->second;
  if (name == "B") return Dim::kSample;
  if (name == "S" || name == "T") return causal_ ? Dim::kCausalSequence : Dim::kSequence;
  if (name == "H" || name == "K") return Dim::kHead;
  if (name == "V") return Dim::kVocab;
  if (name == "X") return Dim::kExpert;
  return name == "E" ? Dim::kOther : Dim::kFeature;
}

Dim DimTable::MeaningOf(const Node& node) const {
  return node.is_string() && IsName(node.string) ? MeaningByName(node.string) : Dim::kOther;
}

absl::Status DimTable::Append(const Node& node, Sizes* sizes) const {
  constexpr int kMostDims = 7;
  ASSIGN_OR_RETURN(const std::int64_t size, Size(node));
  if (sizes->shape.rank() == kMostDims) return InvalidArgument("more than {} dims", kMostDims);
  const Dim means = MeaningOf(node);
  const std::int64_t multiple = means == Dim::kVocab ? options_.vocab_multiple : 1;
  sizes->Append((size + multiple - 1) / multiple * multiple, size, means);
  return absl::OkStatus();
}

absl::StatusOr<Sizes> DimTable::SizesOf(const Node& node) const {
  Sizes sizes;
  if (node.kind != Node::Kind::kArray) {
    RETURN_IF_ERROR(Append(node, &sizes));
    return sizes;
  }
  for (const Node& dim : node.items) RETURN_IF_ERROR(Append(dim, &sizes));
  if (sizes.shape.rank() == 0) return InvalidArgument("a shape without dims");
  return sizes;
}

// Dims that its expression names are evaluated first.
void DimTable::Evaluate(const Entry& entry, std::vector<std::string>* open, const Node& all,
                        std::vector<Diagnostic>* diagnostics) {
  if (sizes_.contains(entry.key)) return;
  if (std::find(open->begin(), open->end(), entry.key) != open->end()) {
    ReportText(ErrorAt(entry, fmt::format("the dim {} is made of itself: {} → {}", entry.key,
                                          fmt::join(*open, " → "), entry.key)),
               diagnostics);
    sizes_[entry.key] = kUnknown;
    return;
  }
  open->push_back(entry.key);
  absl::StatusOr<std::int64_t> size = 1;
  if (entry.value.is_string()) {
    size = EvaluateInteger(entry.value.string, [&](std::string_view name) -> absl::StatusOr<std::int64_t> {
      for (const Entry& other : all.entries) {
        if (other.key == name) Evaluate(other, open, all, diagnostics);
      }
      return ValueOf(name);
    });
  } else {
    size = Size(entry.value);
  }
  open->pop_back();
  if (!size.ok() || *size < 1) {
    ReportText(ErrorAt(entry.value, fmt::format("dims.{}: {}", recipe::Shown(entry.key),
                                                size.ok() ? fmt::format("a dim of {} elements", *size)
                                                          : Message(size.status()))),
               diagnostics);
  }
  sizes_[entry.key] = size.ok() && *size >= 1 ? *size : kUnknown;
}

void DimTable::Read(const Node* dims, const Node* means, std::vector<Diagnostic>* diagnostics) {
  if (dims != nullptr) {
    std::vector<std::string> open;
    for (const Entry& entry : dims->entries) {
      if (!IsName(entry.key)) {
        ReportText(ErrorAt(entry, fmt::format("'{}' is no name of a dim", recipe::Shown(entry.key)),
                           "letters, digits and _, and a letter first"),
                   diagnostics);
      } else if (IsGiven(entry.key)) {
        ReportText(
            ErrorAt(entry,
                    fmt::format("{} is the {}, which follows from the recipe", entry.key,
                                entry.key == "B" ? "samples of a microbatch" : "tokens of a sample"),
                    entry.key == "B" ? "training.micro_batch says it" : "data.sequence_length says it"),
            diagnostics);
      } else {
        Evaluate(entry, &open, *dims, diagnostics);
      }
    }
  }
  if (means == nullptr) return;
  for (const Entry& entry : means->entries) {
    const auto found = std::find_if(kMeanings.begin(), kMeanings.end(), [&](const Meaning& meaning) {
      return entry.value.is_string() && meaning.word == entry.value.string;
    });
    if (found == kMeanings.end()) {
      ReportText(ErrorAt(entry.value, fmt::format("means.{} is one of {}, not {}", recipe::Shown(entry.key),
                                                  fmt::join(MeaningWords(), ", "), Describe(entry.value))),
                 diagnostics);
    } else if (!IsGiven(entry.key) && !sizes_.contains(entry.key)) {
      ReportText(ErrorAt(entry, Message(ValueOf(entry.key).status())), diagnostics);
    } else {
      means_[entry.key] = found->dim;
    }
  }
}

DimTable DimTable::With(const Node& dims, std::vector<Diagnostic>* diagnostics) const {
  DimTable table = *this;
  for (const Entry& entry : dims.entries) {
    const absl::StatusOr<std::int64_t> size = Size(entry.value);
    if (!size.ok()) ReportText(ErrorAt(entry.value, Message(size.status())), diagnostics);
    if (!sizes_.contains(entry.key)) {
      ReportText(ErrorAt(entry, Message(ValueOf(entry.key).status())), diagnostics);
      continue;
    }
    table.sizes_[entry.key] = size.value_or(1);
  }
  return table;
}

}  // namespace engine::model
