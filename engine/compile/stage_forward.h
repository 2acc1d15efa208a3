// The programs of a stage that pass forward only: evaluation, and the steps of generation.
#pragma once

#include "engine/compile/persistent.h"
#include "engine/compile/stage.h"
#include "engine/compile/unfinished_stage.h"
#include "engine/plan/plan.h"

namespace engine::compile {

// Gives the stage the form's program, with the inputs, segments and transients that it needs, from the stage's cursor on.
// *logits: where the form's logits lie, where the stage makes and keeps them.
void BuildForward(const StageInputs& inputs, const plan::Plan& plan, plan::FormId form,
                  const Persistent& persistent, UnfinishedStage* stage, plan::BufferRef* logits);

}  // namespace engine::compile
