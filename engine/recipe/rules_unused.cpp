// Keys that nothing reads as the recipe stands: said of each, as whoever set one meant something by it.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "engine/recipe/fields.h"
#include "engine/recipe/rules.h"

namespace engine::recipe {
namespace {

struct Reader {
  bool (*reads)(const Recipe&);
  const char* why_not;
  std::vector<const char*> keys;
};

bool GoesBack(const Recipe& r) { return r.guard.on_nonfinite == "rewind" || r.guard.on_spike == "rewind"; }

const std::vector<Reader>& Readers() {
  static const std::vector<Reader> readers = {
      {[](const Recipe& r) { return r.guard.judges_spikes(); },
       "guard.on_spike is \"none\"",
       {"guard.spike_loss", "guard.spike_grad_norm", "guard.spike_window"}},
      {GoesBack,
       "neither guard.on_nonfinite nor guard.on_spike is \"rewind\"",
       {"guard.rewind_iterations", "guard.skip_batches"}},
      {[](const Recipe& r) { return r.schedule.kind != "constant"; },
       "schedule.kind is \"constant\"",
       {"schedule.min_learning_rate", "schedule.decay_iterations", "schedule.decay_samples"}},
      {[](const Recipe& r) { return r.schedule.kind == "wsd"; },
       "schedule.kind is not \"wsd\"",
       {"schedule.wsd_decay_iterations", "schedule.wsd_decay_samples", "schedule.wsd_decay_kind"}},
      {[](const Recipe& r) {
         return r.schedule.warmup_iterations > 0 || r.schedule.warmup_samples > 0 ||
                r.schedule.warmup_fraction > 0;
       },
       "none of schedule.warmup_iterations, warmup_samples and warmup_fraction is set, so there is no "
       "warm-up",
       {"schedule.warmup_init"}},
      {[](const Recipe& r) { return r.checkpoint.interval > 0; },
       "checkpoint.interval is 0, so the only checkpoint is that at the end, which must be written anyway",
       {"checkpoint.required"}},
      // "off" says no more than what happens on one rank.
      {[](const Recipe& r) { return !r.has_one_rank() || r.parallelism.overlap != "on"; },
       "there is one rank, so nothing is exchanged",
       {"parallelism.overlap"}},
      {[](const Recipe& r) { return r.checkpoint.memory; },
       "checkpoint.memory is false",
       {"checkpoint.memory_interval", "checkpoint.memory_partner"}},
      {[](const Recipe& r) { return r.recompute.granularity == "selective"; },
       "recompute.granularity is not \"selective\"",
       {"recompute.modules"}},
      {[](const Recipe& r) { return r.evaluation.interval > 0; },
       "evaluation.interval is 0, so nothing is evaluated",
       {"evaluation.iterations"}},
      {[](const Recipe& r) { return !r.training.weights_from.empty(); },
       "training.weights_from names no weights",
       {"training.weights_match"}},
      {[](const Recipe& r) { return r.data.tokenizer.kind != "byte"; },
       "data.tokenizer.kind is \"byte\"",
       {"data.tokenizer.vocab_file", "data.tokenizer.merges_file"}},
  };
  return readers;
}

void KeysAreRead(const RuleContext& c) {
  for (const Reader& reader : Readers()) {
    if (reader.reads(c.recipe)) continue;
    for (const char* key : reader.keys) {
      if (!HasDefaultValue(key, c.recipe))
        c.Note({key}, fmt::format("{} is not used: {}", key, reader.why_not));
    }
  }
}

// Keys whose conditions have rules of their own, which refuse what these notes would remark on.
bool IsRefused(const Condition& condition) {
  return condition.key == kModelFamilyKey || condition.key == "optimizer.kind";
}

// The keys of a decoder have a rule of their own, as rules that read one are left out for models of a text.
bool IsOfDecoder(const Field& field) { return field.ConditionOn(kModelFamilyKey) != nullptr; }

// The conditions that the table of keys has.
template <bool of_decoder>
void ConditionsAreMet(const RuleContext& c) {
  for (const Field& field : Fields()) {
    if (IsOfDecoder(field) != of_decoder || HasDefaultValue(field.key, c.recipe)) continue;
    const Condition* unmet = UnmetCondition(field, c.recipe);
    if (unmet == nullptr || IsRefused(*unmet)) continue;
    c.Note({field.key},
           fmt::format("{} is not used: {} is {}{}", field.key, unmet->key,
                       ToToml(Get(*FindField(unmet->key), c.recipe)),
                       unmet->word.empty() ? "" : fmt::format(", not {}", ToToml(FieldValue(unmet->word)))));
  }
}

std::vector<std::string> KeysWithConditions(bool of_decoder) {
  std::vector<std::string> keys;
  for (const Field& field : Fields()) {
    if (field.only_where.empty() || IsOfDecoder(field) != of_decoder) continue;
    keys.push_back(field.key);
    for (const Condition& condition : field.only_where) keys.push_back(condition.key);
  }
  return keys;
}

// All of the model would be trained, and not adapters beside it.
void AdaptersHaveARank(const RuleContext& c) {
  if (!c.IsDefault("lora.rank")) return;
  for (const char* key : {"lora.alpha", "lora.targets"}) {
    if (c.IsDefault(key)) continue;
    c.Error({key, "lora.rank"},
            fmt::format("{} says how adapters are, and without lora.rank there are none", key),
            "lora.rank = 16, or lora.rank = 0 to train the whole model");
    return;
  }
}

// The weights beside adapters are frozen, unless a group says otherwise. With random tokens a run is a measurement.
void AdaptersStandBesideWeights(const RuleContext& c) {
  const Recipe& r = c.recipe;
  if (r.lora.rank == 0 || !r.training.weights_from.empty() || r.data.is_random()) return;
  c.Note({"lora.rank", "training.weights_from"},
         "adapters of [lora] are trained beside weights that are drawn at random, as "
         "training.weights_from names none");
}

std::vector<std::string> AllKeys() {
  std::vector<std::string> keys = {"guard",
                                   "schedule.kind",
                                   "schedule.warmup_iterations",
                                   "schedule.warmup_samples",
                                   "schedule.warmup_fraction",
                                   "checkpoint.interval",
                                   "checkpoint.memory",
                                   "parallelism.dp",
                                   "parallelism.tp",
                                   "parallelism.pp",
                                   "parallelism.cp",
                                   "parallelism.ep",
                                   "evaluation.interval",
                                   "recompute.granularity",
                                   "training.weights_from",
                                   "data.tokenizer.kind"};
  for (const Reader& reader : Readers()) keys.insert(keys.end(), reader.keys.begin(), reader.keys.end());
  return keys;
}

}  // namespace

// By its value: a printed recipe says every key.
bool HasDefaultValue(std::string_view key, const Recipe& recipe) {
  const Field& field = *FindField(key);
  return Get(field, recipe) == DefaultOf(field);
}

std::vector<Rule> UnusedRules() {
  return {{AllKeys(), KeysAreRead},
          {KeysWithConditions(false), ConditionsAreMet<false>},
          {KeysWithConditions(true), ConditionsAreMet<true>},
          {{"lora.rank", "lora.alpha", "lora.targets"}, AdaptersHaveARank},
          {{"lora.rank", "training.weights_from", "data.source"}, AdaptersStandBesideWeights}};
}

}  // namespace engine::recipe
