// The evaluation program of a stage.
#pragma once

#include "engine/compile/persistent.h"
#include "engine/compile/stage.h"
#include "engine/compile/unfinished_stage.h"
#include "engine/plan/plan.h"

namespace engine::compile {

// Gives the stage its evaluation program, with the inputs, segments and transients that it needs, from the stage's
// cursor on. *logits: where Plan::logits lie, where the stage makes and keeps them.
void BuildEvaluation(const StageInputs& inputs, const plan::Plan& plan, const Persistent& persistent,
                     UnfinishedStage* stage, plan::BufferRef* logits);

}  // namespace engine::compile
