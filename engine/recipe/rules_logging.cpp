#include <fmt/format.h>

#include <string>
#include <string_view>

#include "engine/base/shown.h"
#include "engine/recipe/fields.h"
#include "engine/recipe/rules.h"

namespace engine::recipe {
namespace {

void PrometheusIsReached(const RuleContext& c) {
  const Logging& logging = c.recipe.logging;
  if (!logging.Has("prometheus") || logging.prometheus.port > 0 || !logging.prometheus.textfile.empty())
    return;
  c.Error({"logging.sinks"}, "sinks names \"prometheus\", and neither a port nor a textfile of it is said",
          "logging.prometheus.port = 9400, or logging.prometheus.textfile = \"FOLDER/NAME.prom\"");
}

// The node exporter reads no other files of its folder.
void TextfileHasItsEnding(const RuleContext& c) {
  const std::string& path = c.recipe.logging.prometheus.textfile;
  if (path.empty() || path.ends_with(".prom")) return;
  c.Error({"logging.prometheus.textfile"},
          fmt::format("the node exporter does not read \"{}\", which does not end in .prom", Shown(path)),
          fmt::format("\"{}.prom\"", Shown(path)));
}

void KeysHaveTheirSink(const RuleContext& c) {
  const auto unused = [&](std::string_view key, std::string_view sink) {
    const Field& field = *FindField(key);
    if (c.recipe.logging.Has(sink) || Get(field, c.recipe) == DefaultOf(field)) return;
    c.Note({key}, fmt::format("{} is not used: logging.sinks does not name \"{}\"", key, sink));
  };
  unused("logging.wandb.project", "wandb");
  unused("logging.wandb.entity", "wandb");
  unused("logging.wandb.name", "wandb");
  unused("logging.prometheus.port", "prometheus");
  unused("logging.prometheus.address", "prometheus");
  unused("logging.prometheus.textfile", "prometheus");
}

}  // namespace

std::vector<Rule> LoggingRules() {
  return {
      {{"logging.sinks", "logging.prometheus"}, PrometheusIsReached},
      {{"logging.prometheus.textfile"}, TextfileHasItsEnding},
      {{"logging.sinks", "logging.wandb", "logging.prometheus"}, KeysHaveTheirSink},
  };
}

}  // namespace engine::recipe
