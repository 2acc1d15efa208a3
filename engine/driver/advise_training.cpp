// Warnings of what the model learns: schedule, optimizer, initial values, data.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/units.h"
#include "engine/driver/advise_subject.h"
#include "engine/model/build.h"
#include "engine/ops/ops.h"
#include "engine/recipe/batch_size.h"
#include "engine/recipe/fields.h"
#include "engine/recipe/learning_rate.h"

namespace engine::driver {
namespace {

void TrainingOutlastsWarmup(const AdviceSubject& s) {
  const recipe::Schedule& schedule = s.recipe.schedule;
  const recipe::ScheduleLengths lengths = recipe::LengthsOf(s.recipe);
  const double trained = static_cast<double>(s.recipe.samples());
  if (lengths.warmup == 0 || trained > lengths.warmup) return;
  const char* key = schedule.warmup_iterations > 0 ? "schedule.warmup_iterations"
                    : schedule.warmup_samples > 0  ? "schedule.warmup_samples"
                                                   : "schedule.warmup_fraction";
  s.report.Warn("W301", {LengthKey(s.recipe), key},
                fmt::format("the training ends after {:.0f} samples, and its warm-up after {:.0f}", trained,
                            lengths.warmup),
                "a shorter warm-up; or a longer training");
}

void DecayFitsTraining(const AdviceSubject& s) {
  constexpr double kMostBeyond = 1.25;
  constexpr double kLeastOfTraining = 0.5;
  const recipe::Schedule& schedule = s.recipe.schedule;
  if (schedule.kind == "constant" || schedule.kind == "inverse_sqrt" || !s.is_long()) return;
  const recipe::ScheduleLengths lengths = recipe::LengthsOf(s.recipe);
  const std::int64_t samples = s.recipe.samples();
  const double trained = static_cast<double>(samples);
  const char* key = schedule.decay_samples > 0 ? "schedule.decay_samples" : "schedule.decay_iterations";
  if (lengths.decay > kMostBeyond * trained) {
    s.report.Warn(
        "W302", {LengthKey(s.recipe), key},
        fmt::format(
            "the decay takes {:.0f} samples, the training {:.0f}: it ends at a learning rate of {:.2g}, "
            "not {:.2g}",
            lengths.decay, trained, recipe::LearningRate(s.recipe, samples), schedule.min_learning_rate),
        "a decay as long as the training");
  } else if (lengths.decay < trained && schedule.min_learning_rate == 0) {
    s.report.Warn("W303", {key, LengthKey(s.recipe)},
                  fmt::format("the decay to a learning rate of 0 ends after {:.0f} of {:.0f} samples",
                              lengths.decay, trained),
                  "a min_learning_rate; or a decay as long as the training");
  } else if (lengths.decay < kLeastOfTraining * trained) {
    s.report.Warn(
        "W303", {key, LengthKey(s.recipe)},
        fmt::format("the decay ends after {:.0f} of {:.0f} samples: {:.0f} % of the training has the "
                    "lowest learning rate, {:.2g}",
                    lengths.decay, trained, 100 * (1 - lengths.decay / trained), schedule.min_learning_rate),
        "a decay as long as the training");
  }
}

void DecayDecays(const AdviceSubject& s) {
  const recipe::Schedule& schedule = s.recipe.schedule;
  const double highest = s.recipe.optimizer.learning_rate;
  if (schedule.kind == "constant" || schedule.min_learning_rate < highest) return;
  s.report.Warn(
      "W312", {"schedule.min_learning_rate", "optimizer.learning_rate", "schedule.kind"},
      fmt::format("min_learning_rate is learning_rate, {}: \"{}\" changes nothing", highest, schedule.kind),
      "a min_learning_rate of a tenth; or kind = \"constant\"");
}

// Whether a key of [optimizer] is one of this kind's, so that advice on its value makes sense.
bool Has(const AdviceSubject& s, const char* key) {
  return recipe::Applies(*recipe::FindField(key), s.recipe);
}

// What makes full steps harmful at first is a second moment of few gradients (code W304).
void ThereIsWarmup(const AdviceSubject& s) {
  if (!Has(s, "optimizer.beta2") || !s.is_long() || recipe::LengthsOf(s.recipe).warmup > 0) return;
  s.report.Warn("W304", {"schedule.warmup_iterations", "schedule.kind", "optimizer.learning_rate"},
                "there is no warm-up of the learning rate", "schedule.warmup_fraction = 0.01");
}

void RateSuitsSize(const AdviceSubject& s) {
  constexpr double kMostAbove = 5;
  // Through the eight sizes of arXiv 2005.14165, table 2.1: 6e-4 at 125M, 0.6e-4 at 175B.
  const double usual = 6e-4 * std::pow(s.parameters() / 125e6, -0.32);
  const double rate = s.recipe.optimizer.learning_rate;
  if (!Has(s, "optimizer.beta2") || rate <= kMostAbove * usual) return;  // they are Adam's
  s.report.Warn("W305", {"optimizer.learning_rate"},
                fmt::format("learning_rate {} is {:.0f} times what models of {} parameters usually take",
                            rate, rate / usual, FormatCount(s.parameters())),
                fmt::format("about {:.1e}", usual));
}

void LargeModelsForgetFaster(const AdviceSubject& s) {
  constexpr double kLarge = 2e9;
  const double beta2 = s.recipe.optimizer.beta2;
  if (!Has(s, "optimizer.beta2") || s.parameters() < kLarge || beta2 <= 0.99) return;
  s.report.Warn("W306", {"optimizer.beta2", "optimizer.learning_rate"},
                fmt::format("beta2 {} for {} parameters", beta2, FormatCount(s.parameters())),
                "beta2 = 0.95");
}

void GradientsAreClipped(const AdviceSubject& s) {
  if (!s.is_long() || s.recipe.optimizer.clip_grad_norm > 0) return;
  s.report.Warn("W307", {"optimizer.clip_grad_norm"}, "gradients are not clipped", "clip_grad_norm = 1.0");
}

void TokensSuitSize(const AdviceSubject& s) {
  const double tokens =
      static_cast<double>(s.recipe.samples()) * static_cast<double>(s.recipe.data.sequence_length);
  if (!s.is_long() || tokens >= s.parameters()) return;
  s.report.Warn("W308", {LengthKey(s.recipe), "training.global_batch"},
                fmt::format("{} tokens of training for {} parameters", FormatCount(tokens),
                            FormatCount(s.parameters())),
                "about 20 tokens a parameter are the best use of computation");
}

void PositionsAreTrained(const AdviceSubject& s) {
  const std::int64_t sequence = s.recipe.data.sequence_length;
  std::vector<Saying> tables;
  const auto rows_of = [&](graph::NodeId i) {  // that there are positions for
    const graph::Node& node = s.steps.node(i);
    return s.steps.graph().FindParameter(node.inputs[1])->logical_shape[0] - node.attributes.Int("offset", 0);
  };
  for (graph::NodeId i = 0; i < std::ssize(s.steps.graph().nodes()); ++i) {
    const graph::Node& node = s.steps.node(i);
    if (node.op != &ops::kEmbedding || s.steps.graph().value(node.inputs[0]).name != model::kPositions)
      continue;
    if (rows_of(i) > sequence) tables.push_back({i, "rows"});
  }
  for (const Saying& table : s.steps.OnePerPlace(tables)) {
    const std::int64_t offset = s.steps.node(table.node).attributes.Int("offset", 0);
    s.steps.Warn(
        "W309", table, {.before = {"data.sequence_length"}},
        fmt::format("positions {} to {} of the learned table are never trained: sequence_length is {}",
                    sequence, rows_of(table.node) - 1, sequence),
        fmt::format("{} {}", s.steps.Written(table), sequence + offset), s.report);
  }
}

void WindowIsShort(const AdviceSubject& s) {
  const LongestWindow window = LongestWindowOf(s.steps);
  if (window.tokens == 0 || window.tokens < s.recipe.data.sequence_length) return;
  s.steps.Warn("W310", window.saying, {.behind = {"data.sequence_length"}},
               fmt::format("a window of {} does nothing to sequences of {}", window.tokens,
                           s.recipe.data.sequence_length),
               "a window below sequence_length; or 0", s.report);
}

void WeightsDecay(const AdviceSubject& s) {
  if (!Has(s, "optimizer.beta2") || !s.is_long() || s.recipe.optimizer.weight_decay > 0) return;  // of AdamW
  s.report.Warn("W311", {"optimizer.weight_decay"}, "weight_decay is 0", "weight_decay = 0.1");
}

void WeightsBegin(const AdviceSubject& s) {
  const auto all_equal = [](const graph::Parameter& matrix) {
    return matrix.initializer.kind != graph::Initializer::Kind::kNormal || matrix.initializer.std == 0;
  };
  Saying first = {-1, "init"};  // of the weights of products
  for (graph::NodeId i = 0; i < std::ssize(s.steps.graph().nodes()); ++i) {
    const graph::Node& node = s.steps.node(i);
    if (node.op != &ops::kLinear) continue;
    const graph::Parameter& weight = *s.steps.graph().FindParameter(node.inputs[1]);
    if (weight.role != graph::Role::kMatrix) continue;
    if (!all_equal(weight)) return;
    if (first.node < 0) first.node = i;
  }
  if (first.node < 0) return;
  if (s.recipe.model.init_std == 0) {
    s.report.Warn("W313", {"model.init_std"},
                  "init_std 0: all weights of a matrix are equal, have equal gradients, and stay equal",
                  "init_std = 0.02");
    return;
  }
  s.steps.Warn("W313", first, {},
               "no product's weights begin as random numbers: all weights of a matrix are equal, have equal "
               "gradients, and stay equal",
               "init = \"normal\"", s.report);
}

void NormKeepsValues(const AdviceSubject& s) {
  constexpr double kMost = 0.01;
  const auto epsilon_of = [&](graph::NodeId i) { return s.steps.node(i).attributes.Float("epsilon"); };
  std::vector<Saying> large;
  for (graph::NodeId i = 0; i < std::ssize(s.steps.graph().nodes()); ++i) {
    if (s.steps.node(i).op->family == graph::Family::kNorm && epsilon_of(i) >= kMost)
      large.push_back({i, "epsilon"});
  }
  const double std = s.recipe.model.init_std;
  for (const Saying& saying : s.steps.OnePerPlace(large)) {
    s.steps.Warn("W313", saying, {},
                 fmt::format("{} is added to the mean square of what is normalised{}",
                             s.steps.Said(saying, fmt::format("{}", epsilon_of(saying.node))),
                             s.is_decoder() ? fmt::format(", which begins at about {:.1g}", std * std) : ""),
                 fmt::format("{} = 1e-5", s.steps.Written(saying)), s.report);
  }
}

void PositionsTurn(const AdviceSubject& s) {
  constexpr double kLeast = 100;
  std::vector<Saying> small;
  for (graph::NodeId i = 0; i < std::ssize(s.steps.graph().nodes()); ++i) {
    const graph::Node& node = s.steps.node(i);
    const bool turns = node.op == &ops::kRotate || node.op == &ops::kQkvSplit;
    if (turns && node.attributes.Float("base", kLeast) < kLeast) small.push_back({i, "base"});
  }
  for (const Saying& saying : s.steps.OnePerPlace(small)) {
    const graph::Node& node = s.steps.node(saying.node);
    const Shape& heads = s.steps.graph().value(node.outputs[0]).type.shape;
    const double base = node.attributes.Float("base");
    const auto width = static_cast<double>(node.attributes.Int("width", heads[heads.rank() - 1]));
    const double turn = 2 * std::numbers::pi * std::pow(base, (width - 2) / width);
    s.steps.Warn(
        "W313", saying, {},
        fmt::format("{}: the slowest pair of a head turns round in {:.0f} tokens, so that distances beyond "
                    "look like others",
                    s.steps.Said(saying, fmt::format("{}", base)), turn),
        fmt::format("{} = 10000", s.steps.Written(saying)), s.report);
  }
}

// A gradient whose norm is clipped has elements of at most norm / sqrt(parameters) in the quadratic mean, and
// AdamW divides moments of that size by their size + epsilon.
void StepsAreTaken(const AdviceSubject& s) {
  constexpr double kLeastShare = 0.01;  // of a step of the learning rate
  const recipe::Optimizer& o = s.recipe.optimizer;
  if (!Has(s, "optimizer.epsilon")) return;
  const double norm = o.clip_grad_norm > 0 ? o.clip_grad_norm : 1;
  const double element = norm / std::sqrt(s.parameters());
  const double share = element / (element + o.epsilon);
  if (share >= kLeastShare) return;
  s.report.Warn("W313", {"optimizer.epsilon", "optimizer.clip_grad_norm"},
                fmt::format("of a gradient of norm {} an element is {:.1e} in the mean, far below "
                            "optimizer.epsilon {}: steps are {:.1g} of the learning rate",
                            norm, element, o.epsilon, share),
                "epsilon = 1e-8; clip_grad_norm = 1.0");
}

void BatchGetsWhole(const AdviceSubject& s) {
  const recipe::Training& t = s.recipe.training;
  const std::int64_t samples = s.recipe.samples();
  if (!recipe::Ramps(t) || t.rampup.samples < samples) return;
  const recipe::Progress last = recipe::RunOn(t, {}, s.recipe.iterations() - 1, recipe::kNoEnd);
  s.report.Warn(
      "W316", {"training.rampup.samples", LengthKey(s.recipe)},
      fmt::format(
          "the global batch grows over {} samples, but the training has {}: its last iteration has {} "
          "of {}",
          t.rampup.samples, samples, recipe::BatchAt(t, last.samples), t.global_batch),
      "a shorter ramp; or a longer training");
}

void DataIsNotRepeated(const AdviceSubject& s) {
  const recipe::Data& data = s.recipe.data;
  if (data.is_random()) return;
  const std::initializer_list<std::pair<const char*, const recipe::DataSets*>> lists = {
      {"data", &data},
      {"data.train", &data.train},
      {"data.validation", &data.validation},
      {"data.test", &data.test}};
  for (const auto& [table, sets] : lists) {
    std::set<std::string> seen;
    for (const std::string& path : sets->paths) {
      if (seen.insert(path).second) continue;
      const std::string key = fmt::format("{}.paths", table);
      s.report.Warn("W314", {key}, fmt::format("{} has \"{}\" twice", key, path),
                    fmt::format("each path once, with {}.weights where one is to count more", table));
      break;
    }
  }
}

void VocabHoldsTokens(const AdviceSubject& s) {
  constexpr std::int64_t kIds = 50257;  // of GPT-2's vocab.json
  const std::int64_t vocab = s.recipe.model.vocab;
  if (s.recipe.data.is_random() || s.recipe.data.tokenizer.kind != "gpt2" || vocab >= kIds) return;
  s.report.Warn("W315", {"model.vocab", "data.tokenizer.kind"},
                fmt::format("vocab {} is less than the {} ids of GPT-2's vocabulary", vocab, kIds),
                fmt::format("vocab = {}", kIds));
}

// Of nodes that count what the layout says, the attribute that asks for it; empty of others.
std::string_view LayoutAttribute(const graph::Node& node) {
  const auto marked = [&](std::string_view mark) { return node.attributes.Int(mark, 0) != 0; };
  if (node.op == &ops::kTally && marked("of_rank")) return "microbatch_aux_loss";
  if (node.op == &ops::kTally && marked("of_all")) return "global_aux_loss";
  return node.op == &ops::kDrop && marked("of_rank") ? "capacity_of" : "";
}

void CountsAreOfSamples(const AdviceSubject& s) {
  std::vector<Saying> sayings;
  for (std::size_t i = 0; i < s.steps.graph().nodes().size(); ++i) {
    const auto id = static_cast<graph::NodeId>(i);
    const std::string_view attribute = LayoutAttribute(s.steps.node(id));
    if (!attribute.empty()) sayings.push_back({id, attribute});
  }
  for (const Saying& saying : s.steps.OnePerPlace(std::move(sayings))) {
    s.steps.Warn("W318", saying, {},
                 fmt::format("{} of {} counts what a rank or a microbatch has: another layout, or another "
                             "micro_batch, gives other losses",
                             saying.attribute, s.steps.node(saying.node).name),
                 saying.attribute == "capacity_of" ? "capacity_samples" : "aux_loss, with aux_samples",
                 s.report);
  }
}

void RoutersChoose(const AdviceSubject& s) {
  if (s.recipe.debug.router == "model") return;
  s.report.Warn(
      "W319", {"debug.router"},
      fmt::format("debug.router \"{}\" says which experts tokens go to: nothing is learnt of routing",
                  s.recipe.debug.router),
      "for measurements of speed alone");
}

constexpr Advice kTrainingAdvice[] = {
    TrainingOutlastsWarmup, DecayFitsTraining,       DecayDecays,         ThereIsWarmup,
    RateSuitsSize,          LargeModelsForgetFaster, GradientsAreClipped, TokensSuitSize,
    PositionsAreTrained,    WindowIsShort,           WeightsDecay,        WeightsBegin,
    NormKeepsValues,        PositionsTurn,           StepsAreTaken,       DataIsNotRepeated,
    VocabHoldsTokens,       BatchGetsWhole,          CountsAreOfSamples,  RoutersChoose};

}  // namespace

std::span<const Advice> TrainingAdvice() { return kTrainingAdvice; }

}  // namespace engine::driver
