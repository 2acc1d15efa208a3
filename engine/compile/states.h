// The states of a stage: values that outlive iterations without being parameters (plan::State).
#pragma once

#include "engine/compile/draft.h"
#include "engine/compile/stage.h"
#include "engine/compile/unfinished_stage.h"
#include "engine/plan/plan.h"

namespace engine::compile {

// Places what nodes of the stage read or move, in their order; of all graphs, which know a state by its name. Those
// that fp8_update moves lie one behind the other. *values: gets their places.
void PlaceStates(const StageInputs& inputs, const plan::Plan& plan, UnfinishedStage* stage, Storage* values);

}  // namespace engine::compile
