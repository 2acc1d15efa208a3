#include "engine/driver/check_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/driver/advise_subject.h"
#include "engine/driver/model_steps.h"
#include "engine/predict/predict.h"
#include "engine/recipe/rules.h"

namespace engine::driver {
namespace {

using plan::Obstacle;
using Texts = std::vector<std::string>;

void AddOnce(std::string text, Texts* texts) {
  if (std::find(texts->begin(), texts->end(), text) == texts->end()) texts->push_back(std::move(text));
}

// ----------------------------------------------------------------------------------------- which kernels

template <typename Visit>
void ForEachRefused(const plan::Plan& plan, const Visit& visit) {
  for (const plan::StagePlan& stage : plan.stages) {
    for (const plan::Segment& segment : stage.segments) {
      for (const plan::Instruction& instruction : segment.instructions) {
        if (!instruction.slow().obstacles.empty()) visit(instruction);
      }
    }
  }
}

// The attention of the model that an instruction carries out, or is the gradient or a repetition of.
graph::NodeId NodeOf(const ModelSteps& steps, const plan::Instruction& instruction) {
  graph::NodeId found = -1;
  std::size_t longest = 0;
  for (graph::NodeId i = 0; i < std::ssize(steps.graph().nodes()); ++i) {
    const graph::Node& node = steps.node(i);
    if (node.op->family != graph::Family::kAttention) continue;
    const bool names = instruction.name.find(node.name) != std::string::npos;
    if (found >= 0 && (!names || node.name.size() <= longest)) continue;
    found = i;
    longest = names ? node.name.size() : 0;
  }
  return found;
}

// ----------------------------------------------------------------------------------------- what is said

// Obstacles that are not about an attribute of a step: what they are about, in words, and the keys that say it. Of a text, its
// step says the first.
std::string HeadsOf(const recipe::Recipe&, const graph::Graph& graph, const graph::Node& node) {
  const auto width = [&](std::size_t input) { return graph.value(node.inputs[input]).type.shape[3]; };
  if (width(0) == width(2)) return fmt::format("heads of {} elements", width(0));
  return fmt::format("heads of {} elements and values of {}", width(0), width(2));
}
std::string ChunksOf(const recipe::Recipe& recipe, const graph::Graph&, const graph::Node&) {
  return fmt::format("cp {} of sequences of {} tokens", recipe.parallelism.cp, recipe.data.sequence_length);
}
std::string BiasesOf(const recipe::Recipe&, const graph::Graph&, const graph::Node& node) {
  if (node.attributes.Int("pairs", 0) > 0)
    return fmt::format("a bias for each pair of {} places", node.attributes.Int("pairs"));
  return fmt::format("biases by distance up to {}", node.attributes.Int("distance"));
}
std::string DocumentsOf(const recipe::Recipe& recipe, const graph::Graph&, const graph::Node&) {
  return fmt::format("documents {}", recipe.data.documents);
}
struct Subject {
  std::string_view attribute;
  std::string (*text)(const recipe::Recipe&, const graph::Graph&, const graph::Node&);  // null: not said
  bool of_step;
  std::vector<std::string_view> keys;
};
const std::vector<Subject>& Subjects() {
  static const std::vector<Subject> subjects = {
      {"head", HeadsOf, true, {"model.attention.head_dim", "model.attention.heads", "model.hidden"}},
      {"queries", ChunksOf, false, {"parallelism.cp", "data.sequence_length"}},
      {"bias", BiasesOf, true, {}},
      {"documents", DocumentsOf, false, {"data.documents"}},
      {"device", nullptr, false, {"cluster.device"}},
  };
  return subjects;
}

std::string ValueText(const graph::Node& node, std::string_view attribute) {
  for (const auto& [name, item] : node.attributes.items()) {
    if (name != attribute) continue;
    if (const auto* number = std::get_if<double>(&item)) return fmt::format("{}", *number);
    if (const auto* word = std::get_if<std::string>(&item)) return *word;
  }
  return "true";  // a flag
}

// What causes it, in words, and where that stands.
struct Causes {
  Texts said;
  const recipe::Place* in_text = nullptr;
  std::vector<std::string_view> keys;
};

Causes CausesOf(const recipe::Recipe& recipe, const ModelSteps& steps, graph::NodeId id,
                const std::vector<Obstacle>& obstacles) {
  Causes causes;
  const recipe::Place* step = nullptr;
  for (const Obstacle& obstacle : obstacles) {
    const Saying saying = {id, obstacle.attribute};
    const auto subject = std::find_if(Subjects().begin(), Subjects().end(), [&](const Subject& known) {
      return known.attribute == obstacle.attribute;
    });
    if (subject == Subjects().end()) {
      AddOnce(steps.Said(saying, ValueText(steps.node(id), obstacle.attribute)), &causes.said);
      const std::vector<std::string_view> keys = steps.KeysThatSay(saying);
      causes.keys.insert(causes.keys.end(), keys.begin(), keys.end());
      if (causes.in_text == nullptr) causes.in_text = steps.PlaceInText(saying);
      continue;
    }
    if (subject->text != nullptr) AddOnce(subject->text(recipe, steps.graph(), steps.node(id)), &causes.said);
    if (subject->of_step) step = steps.PlaceInText(saying);
    causes.keys.insert(causes.keys.end(), subject->keys.begin(), subject->keys.end());
  }
  if (causes.in_text == nullptr) causes.in_text = step;
  return causes;
}

// What a family of kernels does not take, and what it takes instead.
struct Family {
  std::string_view name;
  Texts lacks, takes;
};

std::vector<Family> FamiliesOf(const std::vector<Obstacle>& obstacles) {
  constexpr std::string_view kPrefix = "attention ";
  std::vector<Family> families;
  for (const Obstacle& obstacle : obstacles) {
    if (families.empty() || families.back().name != obstacle.kernels)
      families.push_back({.name = obstacle.kernels, .lacks = {}, .takes = {}});
    std::string_view why = obstacle.why;
    if (why.starts_with(kPrefix)) why.remove_prefix(kPrefix.size());
    AddOnce(std::string(why), &families.back().lacks);
    AddOnce(std::string(obstacle.takes), &families.back().takes);
  }
  // What is nearest is said first.
  std::stable_sort(families.begin(), families.end(),
                   [](const Family& a, const Family& b) { return a.takes.size() < b.takes.size(); });
  return families;
}

void Refuse(const recipe::Recipe& recipe, const ModelSteps& steps, const plan::Instruction& instruction,
            const predict::Prediction& time, const recipe::RuleContext& report) {
  const std::vector<Obstacle>& obstacles = instruction.slow().obstacles;
  const Causes causes = CausesOf(recipe, steps, NodeOf(steps, instruction), obstacles);
  Texts lacks;
  Texts ways;
  for (const Family& family : FamiliesOf(obstacles)) {
    lacks.push_back(fmt::format("in {} none {}", family.name, fmt::join(family.lacks, " or ")));
    ways.push_back(fmt::format("{}", fmt::join(family.takes, " and ")));
  }
  ways.push_back("precision.attention = \"reference\"");
  if (!time.slow.empty()) ways.back() += SlowerBy(time, ": ");
  report.Error(causes.in_text, causes.keys,
               fmt::format("attention with {} has no fast kernel on {}: {}", fmt::join(causes.said, " and "),
                           recipe.cluster.device, fmt::join(lacks, "; ")),
               fmt::format("{}", fmt::join(ways, "; or ")));
}

}  // namespace

bool HasRefusedKernels(const plan::Plan& plan) {
  bool found = false;
  ForEachRefused(plan, [&](const plan::Instruction&) { found = true; });
  return found;
}

std::vector<Diagnostic> CheckKernels(const recipe::Recipe& recipe, const plan::Plan& plan) {
  std::vector<Diagnostic> errors;
  if (!HasRefusedKernels(plan)) return errors;
  const ModelSteps steps(recipe);
  const predict::Prediction time = predict::Predict(plan, recipe.cluster);
  const recipe::RuleContext report(recipe, &errors, "E305");
  // Layers and passes repeat what one says, and evaluation, behind training, says less of it: it has no dropout.
  std::vector<std::set<std::string_view>> known;
  ForEachRefused(plan, [&](const plan::Instruction& instruction) {
    std::set<std::string_view> whys;
    for (const Obstacle& obstacle : instruction.slow().obstacles) whys.insert(obstacle.why);
    const bool is_said = std::any_of(known.begin(), known.end(), [&](const auto& said) {
      return std::includes(said.begin(), said.end(), whys.begin(), whys.end());
    });
    if (is_said) return;
    known.push_back(std::move(whys));
    Refuse(recipe, steps, instruction, time, report);
  });
  SortAndUnique(&errors);
  return errors;
}

}  // namespace engine::driver
