// What a study's file says, before any recipe is resolved (private to this folder).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/recipe/document.h"
#include "engine/recipe/source.h"
#include "engine/recipe/study.h"
#include "engine/recipe/study_variants.h"

namespace engine::recipe {

// The words of study.metric (docs/ablations.md).
inline constexpr const char* kValidationLoss = "validation_loss";
inline constexpr const char* kTrainLoss = "train_loss";

// The table [study].
struct StudyHead {
  std::string base;  // a path, relative to the study; empty where it was not usable
  Mark base_mark;
  std::string title;  // empty: none is given
  std::string metric = kValidationLoss;
  Mark metric_mark;  // the base's where no metric is given
  std::int64_t metric_iterations = Study{}.metric_iterations;
  Mark metric_iterations_mark;      // the metric's where they are not given
  std::vector<std::int64_t> seeds;  // empty: the base's
};

struct StudyText {
  StudyHead head;
  StudyVariants variants;
};

// Complete only if it adds nothing to `diagnostics`.
StudyText ParseStudy(const Document& document, std::vector<Diagnostic>* diagnostics);

}  // namespace engine::recipe
