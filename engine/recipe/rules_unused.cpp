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
      {[](const Recipe& r) { return r.checkpoint.memory; },
       "checkpoint.memory is false",
       {"checkpoint.memory_interval", "checkpoint.memory_partner"}},
      {[](const Recipe& r) { return r.recompute.granularity == "selective"; },
       "recompute.granularity is not \"selective\"",
       {"recompute.modules"}},
      {[](const Recipe& r) { return r.evaluation.interval > 0; },
       "evaluation.interval is 0, so nothing is evaluated",
       {"evaluation.iterations"}},
      {[](const Recipe& r) { return r.data.packs(); }, "data.packing is \"none\"", {"data.long_documents"}},
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

std::vector<std::string> AllKeys() {
  std::vector<std::string> keys = {"guard",
                                   "schedule.kind",
                                   "checkpoint.memory",
                                   "evaluation.interval",
                                   "recompute.granularity",
                                   "training.weights_from",
                                   "data.packing",
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
  return {{AllKeys(), KeysAreRead}, {{"lora.rank", "lora.alpha", "lora.targets"}, AdaptersHaveARank}};
}

}  // namespace engine::recipe
