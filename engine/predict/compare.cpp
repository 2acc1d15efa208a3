#include "engine/predict/compare.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>

#include "engine/base/shown.h"
#include "engine/predict/components.h"

namespace engine::predict {
namespace {

constexpr std::array kMemoryItems = {"parameters",    "gradients",  "optimizer",  "control", "activations",
                                     "communication", "transients", "evaluation", "total"};

class Collector {
 public:
  explicit Collector(const nlohmann::json& plan) : plan_(plan) {}

  std::vector<Fact> Collect() {
    Work();
    Memory();
    Communication();
    Schedule();
    if (plan_.contains("prediction")) Prediction(plan_.at("prediction"));
    return std::move(facts_);
  }

 private:
  void Add(Section section, std::string name, Unit unit, nlohmann::json value, std::int64_t stage = -1) {
    facts_.push_back({{section, stage, order_++, std::move(name)}, unit, std::move(value)});
  }

  static double Number(const nlohmann::json& json, const char* key) { return json.at(key).get<double>(); }

  void Work() {
    const double world = Number(plan_.at("mesh"), "world");
    const double tokens = Number(plan_, "global_batch") * Number(plan_, "sequence");
    const nlohmann::json& stages = plan_.at("stages");
    const double ranks_per_stage = world / static_cast<double>(std::max<std::size_t>(stages.size(), 1));
    double flops = 0;
    for (const nlohmann::json& stage : stages) flops += Number(stage, "flops") * ranks_per_stage;
    Add(Section::kWork, "parameters", Unit::kCount, plan_.at("parameters").get<std::int64_t>());
    Add(Section::kWork, "FLOPs per token", Unit::kFlops, tokens > 0 ? flops / tokens : 0);
    Add(Section::kWork, "tokens per iteration", Unit::kCount, tokens);
    Add(Section::kWork, "ranks", Unit::kCount, plan_.at("mesh").at("world").get<std::int64_t>());
  }

  void Memory() {
    std::int64_t fullest = 0;
    for (const nlohmann::json& stage : plan_.at("stages")) {
      fullest = std::max(fullest, stage.at("memory").at("total").get<std::int64_t>());
    }
    Add(Section::kMemory, "fullest stage, total", Unit::kBytes, fullest);
    std::int64_t index = 0;
    for (const nlohmann::json& stage : plan_.at("stages")) {
      order_ = 0;
      for (const char* item : kMemoryItems) {
        Add(Section::kMemory, item, Unit::kBytes, stage.at("memory").at(item).get<std::int64_t>(), index);
      }
      ++index;
    }
  }

  // Of the stage that sends most.
  void Communication() {
    std::map<std::string, std::uint64_t> most;
    for (const nlohmann::json& stage : plan_.at("stages")) {
      std::map<std::string, std::uint64_t> sent;
      for (const nlohmann::json& traffic : stage.at("communication")) {
        const std::string name = traffic.at("over").get<std::string>() + ": " +
                                 traffic.at("collective").get<std::string>() +
                                 (traffic.at("behind_computation").get<bool>() ? " behind computation" : "");
        sent[name] += traffic.at("bytes").get<std::uint64_t>();
      }
      for (const auto& [name, bytes] : sent) most[name] = std::max(most[name], bytes);
    }
    for (const auto& [name, bytes] : most) {
      order_ = 0;  // these go by name
      Add(Section::kCommunication, name, Unit::kBytes, bytes);
    }
  }

  void Schedule() {
    const nlohmann::json& schedule = plan_.at("schedule");
    order_ = 0;
    Add(Section::kSchedule, "kind", Unit::kWord, schedule.at("kind").get<std::string>());
    Add(Section::kSchedule, "microbatches", Unit::kCount, plan_.at("microbatches").get<std::int64_t>());
    Add(Section::kSchedule, "stages", Unit::kCount, static_cast<std::int64_t>(plan_.at("stages").size()));
    Add(Section::kSchedule, "chunks per stage", Unit::kCount,
        static_cast<std::int64_t>(plan_.at("stages").at(0).at("chunks").size()));
    Add(Section::kSchedule, "bubble, if a backward pass took two forward passes", Unit::kShare,
        Number(schedule, "bubble"));
  }

  void Prediction(const nlohmann::json& prediction) {
    // Unknown; where rates were missing, the program that wrote it may have put relative times there.
    if (!prediction.at("missing").empty() || prediction.at("iteration_s").is_null()) return;
    order_ = 0;
    Add(Section::kPrediction, "iteration", Unit::kSeconds, Number(prediction, "iteration_s"));
    Add(Section::kPrediction, "tokens per second", Unit::kCount, Number(prediction, "tokens_per_s"));
    const nlohmann::json& mfu = prediction.at("mfu");
    const bool known = mfu.is_number() && mfu.get<double>() > 0;
    Add(Section::kPrediction, "MFU", Unit::kShare, known ? mfu : nlohmann::json());
    Add(Section::kPrediction, "bubble", Unit::kShare, Number(prediction, "bubble"));
    Add(Section::kPrediction, "exposed communication", Unit::kShare, Number(prediction, "exposed"));
  }

  const nlohmann::json& plan_;
  std::vector<Fact> facts_;
  std::int64_t order_ = 0;
};

}  // namespace

const char* Name(Section section) {
  constexpr std::array kNames = {"work", "memory", "communication", "schedule", "prediction"};
  return kNames[static_cast<std::size_t>(section)];
}

absl::StatusOr<std::vector<Fact>> FactsOf(const nlohmann::json& plan) {
  try {
    return Collector(plan).Collect();
  } catch (const nlohmann::json::exception& error) {
    std::string_view what = error.what();  // "[json.exception.out_of_range.403] key 'hash' not found"
    what.remove_prefix(std::min(what.find("] ") + 2, what.size()));
    return InvalidArgument("no plan as `engine plan --json` writes it: {}", Shown(what, 200));
  }
}

nlohmann::ordered_json PredictionToJson(const Prediction& prediction) {
  using Json = nlohmann::ordered_json;
  const bool known = prediction.has_times();
  const auto or_null = [](bool is_known, double number) { return is_known ? Json(number) : Json(); };
  Json stages = Json::array();
  for (std::size_t s = 0; known && s < prediction.stages.size(); ++s) {
    const StageTime& stage = prediction.stages[s];
    const StageComponents& components = prediction.components[s];
    stages.push_back(
        {{"compute_s", stage.compute_s},
         {"exchange_s", stage.exchange_s},
         {"exposed_s", stage.exposed_s},
         {"transfer_s", stage.transfer_s},
         {"bubble_s", stage.bubble_s},
         {"update_s", stage.update_s},
         {"components", UsesToJson(components.uses)},
         {"other",
          {{"forward_s", components.other.forward_s}, {"backward_s", components.other.backward_s}}}});
  }
  Json slow = Json::array();
  for (const SlowTime& time : prediction.slow) {
    slow.push_back({{"what", time.why},
                    {"how", Text(time.kind)},
                    {"seconds", or_null(known, time.seconds)},
                    {"times_fast", time.seconds / time.fast_s}});
  }
  return {{"iteration_s", or_null(known, prediction.iteration_s)},
          {"tokens_per_s", or_null(known, prediction.tokens_per_s)},
          {"mfu", or_null(known && prediction.mfu > 0, prediction.mfu)},
          {"model_flops", prediction.model_flops},
          {"bubble", or_null(known, prediction.bubble)},
          {"exposed", or_null(known, prediction.exposed)},
          {"missing", prediction.missing},
          {"slow_kernels", std::move(slow)},
          {"fast_iteration_s", or_null(known, prediction.fast_iteration_s)},
          {"stages", std::move(stages)}};
}

std::vector<Effect> Compare(const std::vector<Fact>& before, const std::vector<Fact>& after) {
  std::map<FactKey, Effect> effects;
  for (const Fact& fact : before) effects[fact.key] = {fact.key, fact.unit, fact.value, nullptr};
  for (const Fact& fact : after) {
    Effect& effect = effects[fact.key];
    effect.key = fact.key;
    effect.unit = fact.unit;
    effect.after = fact.value;
  }
  std::vector<Effect> different;
  for (auto& [key, effect] : effects) {
    if (effect.before != effect.after) different.push_back(std::move(effect));
  }
  return different;
}

}  // namespace engine::predict
