#include "engine/train/fault.h"

#include <absl/container/flat_hash_set.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/base/shown.h"
#include "engine/train/save.h"

namespace engine::train {
namespace {

using At = Fault::At;
using Kind = Fault::Kind;

constexpr double kEndlessSeconds = 1e9;
constexpr std::size_t kMostFaultShown = 300;  // bytes of a fault, in messages
constexpr std::string_view kGradientPrefix = "gradient:";

// What may follow a kind's name, after a colon.
enum class Parameter : std::uint8_t { kNone, kTensor, kCode, kFactor, kSeconds };

struct KindFacts {
  Kind kind;
  std::string_view name;
  Parameter parameter = Parameter::kNone;
  double number = 0;           // where none is said
  std::string_view form = {};  // with its parameter, for messages; empty: the name
};

constexpr std::array kKinds = {
    KindFacts{Kind::kKill, "kill"},
    KindFacts{Kind::kStop, "stop"},
    KindFacts{Kind::kExit, "exit", Parameter::kCode, 1, "exit:CODE"},
    KindFacts{Kind::kThrow, "throw"},
    KindFacts{Kind::kNan, "nan", Parameter::kTensor, 0, "nan:TENSOR"},
    KindFacts{Kind::kBitflip, "bitflip", Parameter::kTensor, 0, "bitflip:TENSOR"},
    KindFacts{Kind::kSlow, "slow", Parameter::kFactor, 2, "slow:2x"},
    KindFacts{Kind::kHang, "hang", Parameter::kSeconds, kEndlessSeconds, "hang:SECONDS"},
    KindFacts{Kind::kEnospc, "enospc"},
    KindFacts{Kind::kDropConnection, "drop-connection"},
};

constexpr std::array<std::pair<At, std::string_view>, 5> kPlaces = {{{At::kData, "data"},
                                                                     {At::kForward, "forward"},
                                                                     {At::kExchange, "exchange"},
                                                                     {At::kUpdate, "update"},
                                                                     {At::kSave, "save"}}};

const KindFacts& FactsOf(Kind kind) { return kKinds[static_cast<std::size_t>(kind)]; }
std::string_view NameOf(At at) { return kPlaces[static_cast<std::size_t>(at)].second; }

std::string KindForms() {
  std::vector<std::string_view> forms;
  forms.reserve(std::size(kKinds));
  for (const KindFacts& facts : kKinds) forms.push_back(facts.form.empty() ? facts.name : facts.form);
  return fmt::format("{}", fmt::join(forms, ", "));
}

// The whole of `text` as a number.
template <typename Number>
std::optional<Number> NumberIn(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

absl::Status TakeNumber(std::string_view text, double least, double most, const char* what, double* number) {
  const std::optional<double> given = NumberIn<double>(text);
  if (!given || !(*given >= least && *given <= most)) {
    return InvalidArgument("\"{}\" is {} from {} to {}", Shown(std::string(text)), what, least, most);
  }
  *number = *given;
  return absl::OkStatus();
}

absl::Status TakeParameter(std::string_view text, const KindFacts& facts, Fault* fault) {
  switch (facts.parameter) {
    case Parameter::kNone:
      return InvalidArgument("{} takes nothing after it", facts.name);
    case Parameter::kTensor:
      fault->of_gradient = text.starts_with(kGradientPrefix);
      fault->tensor = text.substr(fault->of_gradient ? kGradientPrefix.size() : 0);
      if (fault->tensor.empty()) return InvalidArgument("{}: the tensor's name is missing", facts.name);
      return absl::OkStatus();
    case Parameter::kCode: {
      RETURN_IF_ERROR(TakeNumber(text, 0, 255, "no exit code", &fault->number));
      if (fault->number == std::floor(fault->number)) return absl::OkStatus();
      return InvalidArgument("\"{}\" is no exit code from 0 to 255", Shown(std::string(text)));
    }
    case Parameter::kFactor:
      if (text.ends_with('x')) text.remove_suffix(1);
      return TakeNumber(text, 1, 1000, "no factor", &fault->number);
    case Parameter::kSeconds:
      return TakeNumber(text, 0, kEndlessSeconds, "no number of seconds", &fault->number);
  }
  return absl::OkStatus();
}

absl::Status TakeKind(std::string_view text, Fault* fault) {
  const std::size_t colon = text.find(':');
  const auto facts = std::find_if(kKinds.begin(), kKinds.end(),
                                  [&](const KindFacts& f) { return f.name == text.substr(0, colon); });
  if (facts == kKinds.end()) {
    return InvalidArgument("there is no kind \"{}\": {}", Shown(std::string(text)), KindForms());
  }
  fault->kind = facts->kind;
  fault->number = facts->number;
  return colon == std::string_view::npos ? absl::OkStatus()
                                         : TakeParameter(text.substr(colon + 1), *facts, fault);
}

absl::Status TakePlace(std::string_view text, Fault* fault) {
  for (const auto& [at, name] : kPlaces) {
    if (name != text) continue;
    fault->at = at;
    return absl::OkStatus();
  }
  return InvalidArgument("there is no place \"{}\": data, forward, exchange, update, save",
                         Shown(std::string(text)));
}

absl::Status TakeCount(std::string_view key, std::string_view text, std::int64_t least, std::int64_t* count) {
  const std::optional<std::int64_t> number = NumberIn<std::int64_t>(text);
  if (!number || *number < least) {
    return InvalidArgument("{}: \"{}\" is no whole number from {} up", key, Shown(std::string(text)), least);
  }
  *count = *number;
  return absl::OkStatus();
}

absl::Status TakeKey(std::string_view key, std::string_view value, Fault* fault) {
  if (key == "rank") return TakeCount(key, value, 0, &fault->rank);
  if (key == "iteration") return TakeCount(key, value, 1, &fault->iteration);
  if (key == "every") return TakeCount(key, value, 1, &fault->every);
  if (key == "seed") return TakeCount(key, value, 0, &fault->seed);
  if (key == "at") return TakePlace(value, fault);
  if (key == "kind") return TakeKind(value, fault);
  return InvalidArgument("there is no key \"{}\": rank, iteration, at, kind, every, seed",
                         Shown(std::string(key)));
}

// Whether the kind can be made at that place.
absl::Status CheckPlace(const Fault& fault) {
  const std::string_view name = FactsOf(fault.kind).name;
  if (fault.kind == Kind::kEnospc && fault.at != At::kSave) {
    return InvalidArgument("{} is of a checkpoint: at=save", name);
  }
  if (fault.kind == Kind::kSlow && fault.at != At::kForward) {
    return InvalidArgument("{} is of the passes: at=forward", name);
  }
  if (fault.IsOfTensor() && (fault.at == At::kData || fault.at == At::kSave)) {
    return InvalidArgument("{} is of what the rank computes with: at=forward, exchange or update", name);
  }
  return absl::OkStatus();
}

absl::Status ParseInto(std::string_view text, Fault* fault) {
  absl::flat_hash_set<std::string> given;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      return InvalidArgument("\"{}\" is not of the form KEY=VALUE", Shown(std::string(item)));
    }
    const std::string key(item.substr(0, equals));
    if (!given.insert(key).second) return InvalidArgument("{} is said twice", Shown(key));
    RETURN_IF_ERROR(TakeKey(key, item.substr(equals + 1), fault));
  }
  for (const char* key : {"rank", "iteration", "kind"}) {
    if (!given.contains(key)) return InvalidArgument("{} is missing: rank=3,iteration=40,kind=kill", key);
  }
  if (fault->kind == Kind::kEnospc && !given.contains("at")) fault->at = At::kSave;
  return CheckPlace(*fault);
}

bool IsSaved(const recipe::Recipe& recipe, std::int64_t iteration) {
  return CheckpointDue(recipe, iteration) || iteration == recipe.iterations();
}

absl::Status CheckAgainst(const Fault& fault, const recipe::Recipe& recipe) {
  const std::int64_t world = recipe.world_size();
  if (fault.rank >= world) {
    return InvalidArgument("there is no such rank: the layout has {}, from 0", world);
  }
  if (fault.iteration > recipe.iterations()) {
    return InvalidArgument("there is no such iteration: the recipe has {}", recipe.iterations());
  }
  if ((fault.at == At::kExchange || fault.IsOfReceived()) && world == 1) {
    return InvalidArgument("one rank alone exchanges nothing: at=forward, of a tensor");
  }
  if (fault.IsOfReceived() && !recipe.guard.trace) {
    return InvalidArgument("what ranks get is altered where it is traced: guard.trace = true");
  }
  if (fault.at == At::kSave && fault.every == 0 && !IsSaved(recipe, fault.iteration)) {
    return InvalidArgument("no checkpoint is saved after iteration {}: checkpoint.interval is {}",
                           fault.iteration, recipe.checkpoint.interval);
  }
  return absl::OkStatus();
}

absl::Status Located(const absl::Status& status, const std::string& text) {
  return WithContext(status, "--fault " + Shown(text, kMostFaultShown));
}

// "it has a, b and 12 others", of the tensors that a fault of this kind may name.
std::string TensorsText(const plan::Plan& plan, const plan::StagePlan& stage, const Fault& fault) {
  constexpr std::size_t kMostNamed = 8;
  std::vector<std::string> names;
  for (const plan::Bucket& bucket : stage.buckets) {
    if (fault.of_gradient && bucket.frozen()) continue;
    for (const plan::Bucket::Item& item : bucket.items)
      names.push_back(plan.parameters[static_cast<std::size_t>(item.parameter)].name);
  }
  if (names.empty()) return "it has none";
  const std::string nearest = NearestWord(fault.tensor, names);
  const std::size_t others = names.size() - std::min(names.size(), kMostNamed);
  names.resize(names.size() - others);
  return fmt::format("{}it has {}{}", nearest.empty() ? "" : fmt::format("did you mean {}? ", nearest),
                     fmt::join(names, ", "), others == 0 ? "" : fmt::format(" and {} others", others));
}

bool Holds(const plan::Plan& plan, const plan::StagePlan& stage, const Fault& fault) {
  for (const plan::Bucket& bucket : stage.buckets) {
    if (fault.of_gradient && bucket.frozen()) continue;
    for (const plan::Bucket::Item& item : bucket.items) {
      if (plan.parameters[static_cast<std::size_t>(item.parameter)].name == fault.tensor) return true;
    }
  }
  return false;
}

}  // namespace

absl::StatusOr<Fault> ParseFault(const std::string& text) {
  Fault fault;
  if (const absl::Status status = ParseInto(text, &fault); !status.ok()) return Located(status, text);
  return fault;
}

std::string TextOf(const Fault& fault) {
  const KindFacts& facts = FactsOf(fault.kind);
  std::string text = fmt::format("rank={},iteration={},at={},kind={}", fault.rank, fault.iteration,
                                 NameOf(fault.at), facts.name);
  if (facts.parameter == Parameter::kTensor && !fault.tensor.empty()) {
    text += fmt::format(":{}{}", fault.of_gradient ? kGradientPrefix : "", fault.tensor);
  } else if (facts.parameter == Parameter::kFactor) {
    text += fmt::format(":{}x", fault.number);
  } else if (facts.parameter != Parameter::kTensor && fault.number != facts.number) {
    text += fmt::format(":{}", fault.number);
  }
  if (fault.every > 0) text += fmt::format(",every={}", fault.every);
  if (fault.IsOfTensor()) text += fmt::format(",seed={}", fault.seed);
  return text;
}

absl::Status CheckFaults(const std::vector<Fault>& faults, const recipe::Recipe& recipe) {
  if (faults.empty()) return absl::OkStatus();
  if (!recipe.debug.faults) {
    return absl::InvalidArgumentError(
        "--fault: the recipe allows no faults: [debug] faults = true, or --set debug.faults=true");
  }
  absl::flat_hash_set<std::string> texts;
  for (const Fault& fault : faults) {
    const std::string text = TextOf(fault);
    if (!texts.insert(text).second) return InvalidArgument("--fault {}: is said twice", text);
    if (const absl::Status status = CheckAgainst(fault, recipe); !status.ok()) return Located(status, text);
  }
  return absl::OkStatus();
}

absl::Status CheckFaultTensors(const std::vector<Fault>& faults, const plan::Plan& plan) {
  for (const Fault& fault : faults) {
    if (fault.tensor.empty() || fault.IsOfReceived()) continue;
    const plan::StagePlan& stage = plan.stages[static_cast<std::size_t>(plan.StageOfRank(fault.rank))];
    if (Holds(plan, stage, fault)) continue;
    return InvalidArgument("--fault {}: rank {} {} no {}; {}", Shown(TextOf(fault), kMostFaultShown),
                           fault.rank, fault.of_gradient ? "trains" : "holds", Shown(fault.tensor),
                           TensorsText(plan, stage, fault));
  }
  return absl::OkStatus();
}

}  // namespace engine::train
