// The base of the converter's parts: it collects the settings and remarks that they make.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "engine/import/megatron_convert.h"
#include "engine/recipe/fields.h"
#include "engine/recipe/source.h"

namespace engine::import {

class MegatronWriter {
 protected:
  MegatronWriter(const MegatronArguments& arguments, MegatronSettings* settings, MegatronRemarks* remarks)
      : a_(arguments), settings_(*settings), remarks_(remarks) {}

  static constexpr const char* kDefault = "Megatron-LM's default";
  static constexpr std::int64_t kMostSize = std::int64_t{1} << 40;  // sums of what is less do not overflow

  struct Word {
    std::string_view theirs;
    const char* ours;
  };

  void Set(const char* key, recipe::FieldValue value, std::string comment = "", std::string flag = "") {
    settings_[key] = {std::move(value), std::move(comment), std::move(flag)};
  }
  void SetIfAbsent(const char* key, recipe::FieldValue value, std::string comment) {
    if (!settings_.contains(key)) Set(key, std::move(value), std::move(comment));
  }
  void Remark(const char* flag, std::string text) { (*remarks_)[flag] = {std::move(text)}; }
  void Warn(const char* flag, std::string text) { (*remarks_)[flag] = {std::move(text), true}; }

  std::int64_t IntOf(std::string_view key, std::int64_t otherwise) const {
    const auto found = settings_.find(key);
    return found == settings_.end() ? otherwise : std::get<std::int64_t>(found->second.value);
  }
  // What the key comes to, set or not.
  double NumberOf(std::string_view key) const {
    const auto found = settings_.find(key);
    return std::get<double>(found != settings_.end() ? found->second.value
                                                     : recipe::DefaultOf(*recipe::FindField(key)));
  }
  static std::string NumberToml(double value) { return recipe::ToToml(recipe::FieldValue(value)); }

  // One of Megatron-LM's words as one of ours; an error for any other.
  void Translate(const char* flag, const char* key, std::initializer_list<Word> words) {
    const std::optional<std::string> text = a_.Text(flag);
    if (!text) return;
    std::string known;
    for (const Word& word : words) {
      if (word.theirs == *text) return Set(key, std::string(word.ours), "", flag);
      known += fmt::format("{}{}", known.empty() ? "" : ", ", word.theirs);
    }
    a_.Error(flag, fmt::format("{} {} cannot be imported", flag, Shown(*text)),
             fmt::format("one of {}", known));
  }

  const MegatronArguments& a_;
  MegatronSettings& settings_;

 private:
  MegatronRemarks* remarks_;
};

// The parts of ConvertMegatron, in its order; a later one may read or take back what an earlier one has set.
// The blocks of the model but for the sizes.
void ConvertMegatronModel(const MegatronArguments& arguments, MegatronSettings* settings,
                          MegatronRemarks* remarks);
// What flags change of the model that has no key. Takes back keys that a pattern of layers makes void.
void ConvertMegatronSteps(const MegatronArguments& arguments, MegatronSettings* settings,
                          MegatronRemarks* remarks, MegatronModelChanges* changes);
// Multi-head latent attention; sets the width of heads.
void ConvertMegatronLatents(const MegatronArguments& arguments, MegatronSettings* settings,
                            MegatronRemarks* remarks, MegatronModelChanges* changes);
// Experts and their router. Reads model.layers, training.micro_batch, tp and cp.
void ConvertMegatronExperts(const MegatronArguments& arguments, MegatronSettings* settings,
                            MegatronRemarks* remarks, MegatronModelChanges* changes);
// data.tokenizer and model.vocab.
void ConvertMegatronTokenizer(const MegatronArguments& arguments, MegatronSettings* settings,
                              MegatronRemarks* remarks);
// The parallelism's degrees, and the layers of each pipeline stage. Reads the degrees and model.layers that
// flags said directly.
void ConvertMegatronParallelism(const MegatronArguments& arguments, MegatronSettings* settings,
                                MegatronRemarks* remarks);
// The data sets; random tokens take back the tokenizer.
void ConvertMegatronData(const MegatronArguments& arguments, MegatronSettings* settings,
                         MegatronRemarks* remarks);
// Schedule, precision, recomputation, checkpoints, evaluation.
void ConvertMegatronTraining(const MegatronArguments& arguments, MegatronSettings* settings,
                             MegatronRemarks* remarks);
// Groups of parameters with a learning rate or a weight decay of their own.
void ConvertMegatronGroups(const MegatronArguments& arguments, MegatronSettings* settings,
                           MegatronRemarks* remarks, MegatronModelChanges* changes);

}  // namespace engine::import
