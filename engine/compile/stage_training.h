// The training programs of a stage.
#pragma once

#include "engine/compile/persistent.h"
#include "engine/compile/stage.h"
#include "engine/compile/unfinished_stage.h"
#include "engine/plan/plan.h"

namespace engine::compile {

// Gives the stage its training programs, with the slots, segments and transients that they need, behind what is
// persistent. Whether halves find an order in which to take turns, as BuildStage.
bool BuildTraining(const StageInputs& inputs, const plan::Plan& plan, const Persistent& persistent,
                   UnfinishedStage* stage);

}  // namespace engine::compile
