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
  constexpr std::string_view kTable = "logging.";
  for (const Field& field : Fields()) {
    if (!field.table().starts_with(kTable) || HasDefaultValue(field.key, c.recipe)) continue;
    const std::string sink = field.table().substr(kTable.size());
    if (c.recipe.logging.Has(sink)) continue;
    c.Note({field.key}, fmt::format("{} is not used: logging.sinks does not name \"{}\"", field.key, sink));
  }
}

// Prometheus asks when it likes, and gets the last iteration.
void SinkIntervalHasASink(const RuleContext& c) {
  const Logging& logging = c.recipe.logging;
  if (HasDefaultValue("logging.sink_interval", c.recipe) || logging.Has("tensorboard") ||
      logging.Has("wandb"))
    return;
  c.Note({"logging.sink_interval"},
         "logging.sink_interval is not used: logging.sinks names neither \"tensorboard\" nor \"wandb\"");
}

void HistogramsHaveTheirSink(const RuleContext& c) {
  if (c.recipe.logging.histogram_interval == 0 || c.recipe.logging.Has("tensorboard")) return;
  c.Note({"logging.histogram_interval"},
         "logging.histogram_interval is not used: logging.sinks does not name \"tensorboard\"");
}

}  // namespace

std::vector<Rule> LoggingRules() {
  return {
      {{"logging.sinks", "logging.prometheus"}, PrometheusIsReached},
      {{"logging.prometheus.textfile"}, TextfileHasItsEnding},
      {{"logging.sinks", "logging.wandb", "logging.prometheus"}, KeysHaveTheirSink},
      {{"logging.sinks", "logging.sink_interval"}, SinkIntervalHasASink},
      {{"logging.sinks", "logging.histogram_interval"}, HistogramsHaveTheirSink},
  };
}

}  // namespace engine::recipe
