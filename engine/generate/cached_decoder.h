// A decoder whose keys and values are kept: prefill makes those of a prompt, and each step those of one token a sequence.
#pragma once

#include <memory>

#include "engine/driver/compile_recipe.h"
#include "engine/generate/decoder.h"
#include "engine/recipe/recipe.h"
#include "engine/state/ranks.h"

namespace engine::generate {

// The programs for so many sequences of so many tokens in a layout: prompts of powers of two, from 16 on, up to the context, and batches
// of powers of two up to the slots of a rank. Slots are rounded up to as many on every rank of dp · ep. With cp, whose ranks have
// equal parts of a prompt, its powers of two begin at a multiple of 2 · cp.
driver::GenerationShape ShapeFor(std::int64_t slots, std::int64_t context,
                                 const recipe::Parallelism& layout = {});

// `plan` is of driver::CompileGeneration with this shape, all of whose ranks are in this process. It and the ranks outlive
// the decoder.
std::unique_ptr<Decoder> MakeCachedDecoder(const plan::Plan& plan, state::Ranks& ranks,
                                           const driver::GenerationShape& shape);

}  // namespace engine::generate
