#include "engine/cli/check_plan.h"

namespace engine::cli {

std::vector<Diagnostic> CheckPlan(const recipe::Recipe& /*recipe*/) { return {}; }

}  // namespace engine::cli
