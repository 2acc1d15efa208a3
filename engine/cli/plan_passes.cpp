#include "engine/cli/plan_passes.h"

#include <fmt/format.h>

#include "engine/compile/passes.h"
#include "engine/driver/compile_recipe.h"

namespace engine::cli {

std::vector<std::string> PassNames() {
  std::vector<std::string> names;
  for (const compile::Pass& pass : compile::Passes()) names.emplace_back(pass.name);
  return names;
}

absl::StatusOr<std::string> PassText(const recipe::Recipe& recipe, const plan::Plan& plan,
                                     const plan::DeviceProfile& profile, const std::string& name) {
  std::vector<double> seconds;
  std::string text;
  const auto after = [&](std::string_view pass, double took, const compile::Compilation& compilation) {
    seconds.push_back(took);
    if (pass == name) text = compile::ToText(compilation);
    return absl::OkStatus();
  };
  const compile::CompileOptions options{.profile = profile, .halves = plan.halves > 1, .after = after};
  RETURN_IF_ERROR(driver::CompileAsSaid(recipe, options).status());
  if (!name.empty()) return text;
  for (size_t i = 0; i < seconds.size(); ++i) {
    const compile::Pass& pass = compile::Passes()[i];
    text += fmt::format("{:14} {:8.2f} ms  {}\n", pass.name, seconds[i] * 1e3, pass.what);
  }
  return text;
}

}  // namespace engine::cli
