// The weights that a new run begins with where its recipe names a checkpoint or the folder of a Hugging Face model
// (training.weights_from): by name and shape, or a dense model's as those of experts ("upcycling", Komatsuzaki et al.,
// arXiv:2212.05055; Megatron-LM's --moe-use-upcycling).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/base/status.h"
#include "engine/checkpoint/read.h"
#include "engine/launch/rendezvous.h"
#include "engine/plan/plan.h"
#include "engine/recipe/recipe.h"
#include "engine/state/state.h"

namespace engine::train {

struct StartPoint {
  std::string folder;
  std::unique_ptr<checkpoint::TensorSource> weights;
  std::vector<state::WeightSource> sources;  // of each of the plan's parameters
  std::int64_t upcycled = 0;                 // of them, matrices of experts that were dense
  // Damaged checkpoints passed over; what of the models differs; with weights_match "some", which parameters are drawn, which
  // tensors are left and which vocabularies have grown.
  std::vector<std::string> notes;
  std::string summary;  // a line for the log
};

// The weights that the recipe names, or nullopt where it names none. A run's folder stands for its newest whole
// checkpoint. Errors, located at the recipe's key and of code E209: there are no whole weights; tensors that do not fit
// the plan's parameters, by name, with both shapes.
absl::StatusOr<std::optional<StartPoint>> FindStart(const recipe::Recipe& recipe, const plan::Plan& plan);

// For `engine check`: the error of FindStart, or nothing. No tensor's data are read, so damage inside of files is not seen.
// A folder that is not there is a note: the recipe may be meant for another machine, or for a run that is resumed.
std::optional<Diagnostic> CheckStart(const recipe::Recipe& recipe, const plan::Plan& plan);

// As FindStart, the same in every process of a run: rank 0 looks, the others (`leads` false) open what it has found.
absl::StatusOr<std::optional<StartPoint>> AgreeOnStart(const recipe::Recipe& recipe, const plan::Plan& plan,
                                                       bool leads, launch::Client* processes);

}  // namespace engine::train
