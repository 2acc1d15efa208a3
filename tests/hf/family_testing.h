// What tests of single families share: configurations as files have them, and the models that they come to.
#pragma once

#include <doctest/doctest.h>
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "engine/base/status.h"
#include "engine/hf/family.h"
#include "engine/hf/family_def.h"
#include "engine/hf/model_folder.h"
#include "engine/model/build.h"
#include "engine/model/load.h"

namespace engine::hf::family_testing {

using nlohmann::json;

inline json ConfigOf(const std::string& text) {
  const absl::StatusOr<json> value = ParseJson(text, "config.json");
  INFO(text);
  REQUIRE(value.ok());
  return *value;
}
// `base` with other values.
inline json Changed(json base, const std::string& changes) {
  const json others = ConfigOf(changes);
  for (const auto& [key, value] : others.items()) base[key] = value;
  return base;
}

inline ImportedModel ModelOf(const json& config) {
  absl::StatusOr<ImportedModel> model = ImportConfig(config, "config.json");
  INFO(config.dump());
  INFO(Message(model.status()));
  REQUIRE(model.ok());
  return *std::move(model);
}

// A whole recipe of a text.
inline recipe::Recipe WholeRecipe(const std::string& text) {
  std::string folder = (std::filesystem::temp_directory_path() / "engine_family_XXXXXX").string();
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  const std::string path = folder + "/recipe.toml";
  std::ofstream(path) << text << R"(
[data]
source = "random"
sequence_length = 8
[optimizer]
learning_rate = 1e-3
[training]
global_batch = 1
micro_batch = 1
iterations = 1
)";
  const recipe::LoadResult result = model::Load(path);
  std::filesystem::remove_all(folder);
  std::string mistakes;
  for (const Diagnostic& diagnostic : result.diagnostics) mistakes += Format(diagnostic);
  INFO(text);
  INFO(mistakes);
  REQUIRE(result.ok());
  return result.recipe;
}
inline graph::Graph GraphOf(const json& config) { return GraphOfRecipe(WholeRecipe(ModelOf(config).recipe)); }

inline std::string LinesOfAll(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

// A configuration is refused with this.
inline void CheckRefused(const json& config, const std::string& part) {
  const absl::StatusOr<ImportedModel> model = ImportConfig(config, "config.json");
  INFO(config.dump());
  INFO(part);
  REQUIRE_FALSE(model.ok());
  CHECK(model.status().code() == absl::StatusCode::kInvalidArgument);
  INFO(Message(model.status()));
  CHECK(Message(model.status()).find(part) != std::string::npos);
}

// The key makes another model, and none of them is lost on the way.
inline void CheckMatters(const json& base, const std::string& change) {
  INFO(change);
  CHECK(!Differences(GraphOf(base), GraphOf(Changed(base, change)), "the other").empty());
}

// Every parameter has exactly one row.
inline void CheckRowsOf(const ImportedModel& model, const graph::Graph& graph) {
  for (const graph::Parameter& parameter : graph.parameters()) {
    std::string name = graph.value(parameter.value).name;
    for (const char* stack : {"layers.", "dense."}) {
      if (!name.starts_with(stack)) continue;
      const std::size_t begin = std::string(stack).size();
      name.replace(begin, name.find('.', begin) - begin, "{l}");
    }
    int rows = 0;
    for (const WeightRow& row : model.rows) rows += row.ours == name ? 1 : 0;
    INFO(name);
    CHECK(rows == 1);
  }
}

// AddressSanitizer makes these slow: of pairs of a key and a value it is given one of three.
#ifdef __SANITIZE_ADDRESS__
inline constexpr std::size_t kOneOf = 3;
#else
inline constexpr std::size_t kOneOf = 1;
#endif

// Each key of a small model, and some that files have beside it, with each wrong value: one error, or a model that loads.
inline void CheckWrongValues(const json& config, const std::vector<std::string>& more) {
  const std::vector<json> values = {
      json(),
      json("x"),
      json(""),
      json(-1),
      json(0),
      json(1.5),
      json(1e300),
      json(INT64_MAX),
      json(UINT64_MAX),
      json(true),
      json::array(),
      json::array({1, "a", nullptr}),
      json::array({UINT64_MAX}),
      json::object(),
      json({{"rope_type", nullptr}, {"type", "yarn"}, {"factor", nullptr}}),
      json({{"rope_type", "yarn"}, {"factor", 2}, {"mscale", nullptr}, {"mscale_all_dim", "x"}}),
      json({{"rope_type", "yarn"}, {"factor", 2}, {"attention_factor", nullptr}}),
      json({{"a", {{"b", {{"c", json::array()}}}}}})};
  std::vector<std::string> keys = more;
  for (const auto& [key, value] : config.items()) keys.push_back(key);
  for (std::size_t k = 0; k < keys.size(); ++k) {
    for (std::size_t v = k % kOneOf; v < values.size(); v += kOneOf) {
      const std::string& key = keys[k];
      const json& value = values[v];
      json changed = config;
      changed[key] = value;
      const auto model = ImportConfig(changed, "config.json");
      INFO(key);
      INFO(value.dump());
      if (model.ok()) {
        CHECK(GraphOfText(model->recipe, "recipe").ok());
      } else {
        INFO(Message(model.status()));
        CHECK(model.status().code() == absl::StatusCode::kInvalidArgument);
        CHECK(Message(model.status()).starts_with("config.json: error: "));
      }
    }
  }
}

// The files' tensors have each parameter's elements once.
inline void CheckTensorsOf(const ImportedModel& model, const graph::Graph& graph) {
  const auto mappings = MappingsOf(model.rows, model.sizes, ParametersOf(graph));
  INFO(Message(mappings.status()));
  REQUIRE(mappings.ok());
  const auto tensors = TheirTensors(*mappings);
  INFO(Message(tensors.status()));
  REQUIRE(tensors.ok());
  std::int64_t elements = 0;
  for (const TheirTensor& tensor : *tensors) elements += tensor.shape.elements();
  CHECK(elements == model::CountParameters(graph));
}

struct Release {
  std::string shipped;  // of configs/models; empty: none
  json config;
  std::int64_t parameters;
};

// That a release's configuration comes to a model with the published number of parameters, the same as ours of that release,
// and goes back to what it was, with the source and without.
inline void CheckRelease(const Release& release) {
  CAPTURE(release.shipped);
  const ImportedModel model = ModelOf(release.config);
  const recipe::Recipe recipe = WholeRecipe(model.recipe);
  const graph::Graph graph = GraphOfRecipe(recipe);
  CHECK(model::CountParameters(graph) == release.parameters);
  CheckRowsOf(model, graph);
  CheckTensorsOf(model, graph);
  if (!release.shipped.empty()) {
    const graph::Graph ours =
        GraphOfRecipe(WholeRecipe("extends = \"engine:configs/models/" + release.shipped + ".toml\"\n"));
    CHECK(LinesOfAll(Differences(graph, ours, "ours")) == "");
  }
  const auto kept = ExportConfig(recipe, &release.config, "");
  INFO(Message(kept.status()));
  REQUIRE(kept.ok());
  CHECK(kept->family == model.family);
  json expected = release.config;
  expected.erase("quantization_config");
  CHECK(kept->config == expected);
  const auto derived = ExportConfig(recipe, nullptr, model.family);
  INFO(Message(derived.status()));
  REQUIRE(derived.ok());
  INFO(derived->config.dump());
  CHECK(LinesOfAll(Differences(graph, GraphOf(derived->config), "the derived")) == "");
}

}  // namespace engine::hf::family_testing
