// The weights pass: which backward nodes are put off into a chunk's weights segment (Pass::kWeights), so that
// the stage before need not wait for them.
#pragma once

#include "engine/compile/cut.h"

namespace engine::compile {

// Moves the backward nodes whose outputs are all gradients of parameters, and those that make operands of
// such nodes, and of nothing else: by gathering, or of what the forward pass saved (an activation that is
// repeated or quantised), so that no more has to be kept. A norm's gradient, which makes its input's and its
// weight's at once, stays. LocalValue::parameter must be known.
void DeferWeights(const plan::Plan& plan, CutGraph* cut);

}  // namespace engine::compile
