// Blocks of a script's model that are no change of a decoder's: experts, and attention by latents.
#pragma once

#include <string>
#include <string_view>

#include "engine/import/megatron_model_text.h"
#include "engine/recipe/recipe.h"

namespace engine::import {

// A norm as the decoder's are, as a step's keys.
std::string MegatronNorm(const recipe::Recipe& decoder, const MegatronModelChanges& changes,
                         std::string_view name, std::string_view keys);

// The layers of the stack whose blocks are not the same ones in all of them, and what stands in for a dense feed-forward part
// where all have experts: "mlp as mlp" or "experts as mlp".
std::string MegatronFeedForward(const MegatronModelChanges& changes, bool experts);

// [block.NAME] with the steps of a layer's experts; its dims are X, W and Y.
std::string ExpertsBlockText(const recipe::Recipe& decoder, const MegatronModelChanges& changes);

// [block.attention] with latents; its dims are C, N, R, U and Q, its rotary tables rope and shared. `core`: more keys of
// attention.
std::string LatentAttentionText(const recipe::Recipe& decoder, const MegatronModelChanges& changes,
                                const std::string& core);

}  // namespace engine::import
