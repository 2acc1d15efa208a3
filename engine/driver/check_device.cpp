#include "engine/driver/check_device.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/recipe/fields.h"

namespace engine::driver {

std::vector<Diagnostic> CheckDevice(const recipe::Recipe& recipe, const plan::DeviceProfile& profile) {
  std::vector<Diagnostic> diagnostics;
  for (const plan::DeviceProfile::Limit& limit : profile.limits) {
    const recipe::Field* field = recipe::FindField(limit.key);
    ENGINE_CHECK(field != nullptr, "the {} profile limits {}, which is no key", profile.name, limit.key);
    const std::string word = std::get<std::string>(recipe::Get(*field, recipe));
    if (std::find(limit.words.begin(), limit.words.end(), word) != limit.words.end()) continue;
    const recipe::Provenance& provenance = recipe.provenance.at(limit.key);
    diagnostics.push_back({.severity = Severity::kError,
                           .span = provenance.span,
                           .message = fmt::format("the {} executor runs {} {}, not {}", profile.name,
                                                  limit.key, fmt::join(limit.words, ", "), word),
                           .hint = fmt::format("--set {}={} runs it here", limit.key, limit.words.front()),
                           .source_line = provenance.source_line,
                           .code = "E303"});
  }
  SortAndUnique(&diagnostics);
  return diagnostics;
}

}  // namespace engine::driver
