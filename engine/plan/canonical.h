// The canonical text of a plan: what runs, in which order, on which bytes, one line an instruction. Its
// hash is the plan's hash; `engine plan --full` prints a stage of it; golden tests compare it.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "engine/plan/plan.h"

namespace engine::plan {

using TextSink = std::function<void(std::string_view)>;

void WriteCanonical(const Plan& plan, const TextSink& sink);
void WriteCanonicalStage(const Plan& plan, std::int32_t stage, const TextSink& sink);
std::string InstructionText(const Plan& plan, const Instruction& instruction);

}  // namespace engine::plan
