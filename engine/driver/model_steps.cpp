#include "engine/driver/model_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <tuple>
#include <utility>

#include "engine/model/build.h"

namespace engine::driver {

ModelSteps::ModelSteps(const recipe::Recipe& recipe) : is_text_(recipe.is_text()) {
  graph_ =
      model::BuildModel(recipe,
                        {.batch = recipe.training.micro_batch * recipe.parallelism.dp * recipe.parallelism.ep,
                         .rank_samples = recipe.training.micro_batch,
                         .sequence = recipe.data.sequence_length,
                         .vocab_multiple = recipe.model.vocab_multiple * recipe.parallelism.tp,
                         .whole_experts = recipe.parallelism.expert_tp == 1,
                         .ep = recipe.parallelism.ep,
                         .expert_rows = recipe.parallelism.expert_rows,
                         .init_std = recipe.model.init_std},
                        &origins_);
}

const recipe::ExpandedAttribute* ModelSteps::KeysOf(const Saying& saying) const {
  if (is_text_) return nullptr;
  const auto known = recipe::ExpandedAttributes();
  const auto found = std::find_if(known.begin(), known.end(), [&](const recipe::ExpandedAttribute& row) {
    return row.step == OriginOf(saying).step && row.attribute == saying.attribute;
  });
  return found == known.end() ? nullptr : &*found;
}

std::vector<std::string_view> ModelSteps::KeysThatSay(const Saying& saying) const {
  const recipe::ExpandedAttribute* keys = KeysOf(saying);
  return keys != nullptr ? keys->keys : std::vector<std::string_view>();
}

std::string_view ModelSteps::KeyName(const Saying& saying) const {
  const recipe::ExpandedAttribute* keys = KeysOf(saying);
  return keys != nullptr ? keys->called : std::string_view();
}

std::string_view ModelSteps::Written(const Saying& saying) const {
  const std::string_view key = KeyName(saying);
  return key.empty() ? saying.attribute : key;
}

std::string ModelSteps::Said(const Saying& saying, std::string_view value) const {
  const std::string_view key = KeyName(saying);
  if (!key.empty()) return fmt::format("{} {}", key, value);
  return fmt::format("{} {} of {}", saying.attribute, value, node(saying.node).name);
}

std::vector<Saying> ModelSteps::OnePerPlace(std::vector<Saying> sayings) const {
  std::set<std::tuple<const recipe::Source*, int, int>> seen;
  std::erase_if(sayings, [&](const Saying& saying) {
    const recipe::Place& place = OriginOf(saying).PlaceOf(saying.attribute);
    return !seen.insert({place.source.get(), place.mark.line, place.mark.column}).second;
  });
  return sayings;
}

void ModelSteps::Warn(std::string_view code, const Saying& saying, const OtherKeys& others,
                      std::string message, std::string hint, const recipe::RuleContext& report) const {
  std::vector<std::string_view> keys = others.before;
  const std::vector<std::string_view> own = KeysThatSay(saying);
  keys.insert(keys.end(), own.begin(), own.end());
  keys.insert(keys.end(), others.behind.begin(), others.behind.end());
  report.Warn(code, PlaceInText(saying), keys, std::move(message), std::move(hint));
}

}  // namespace engine::driver
