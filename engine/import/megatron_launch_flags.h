// The flags of a training command, with their values.
#pragma once

#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/import/megatron_launch.h"
#include "engine/import/megatron_shell.h"
#include "engine/recipe/source.h"

namespace engine::import {

// From the words behind the training script's name, in their order. Words that are no known flag and no value
// of one are reported and left out.
std::vector<MegatronArgument> ReadMegatronFlags(const recipe::Source& source,
                                                const std::vector<ShellText>& words,
                                                std::vector<Diagnostic>* diagnostics);

}  // namespace engine::import
