#include "engine/driver/model_layout.h"

#include <fmt/format.h>

#include <array>

namespace engine::driver {

std::string JoinOptions(const std::string& first, const std::string& second) {
  return first + (first.empty() || second.empty() ? "" : " ") + second;
}

std::string SetLayout(const ModelLayout& layout, recipe::Recipe* recipe) {
  struct Axis {
    const char* option;
    std::int64_t wanted;
    std::int64_t* ranks;
  };
  recipe::Parallelism& of = recipe->parallelism;
  std::string changed;
  for (const Axis& axis : std::array<Axis, 5>{{{"--dp", layout.dp, &of.dp},
                                               {"--tp", layout.tp, &of.tp},
                                               {"--pp", layout.pp, &of.pp},
                                               {"--cp", layout.cp, &of.cp},
                                               {"--ep", layout.ep, &of.ep}}}) {
    if (*axis.ranks == axis.wanted) continue;
    *axis.ranks = axis.wanted;
    changed = JoinOptions(changed, fmt::format("{} {}", axis.option, axis.wanted));
  }
  return changed;
}

}  // namespace engine::driver
