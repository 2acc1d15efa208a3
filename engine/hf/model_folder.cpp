#include "engine/hf/model_folder.h"

#include <filesystem>
#include <utility>

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/status.h"
#include "engine/hf/family_def.h"
#include "engine/hf/folder.h"

namespace engine::hf {
namespace {

constexpr std::int64_t kMostConfigBytes = 64 << 20;

}  // namespace

const std::vector<std::string>& CompanionFiles() {
  static const std::vector<std::string> names = {"generation_config.json",
                                                 "tokenizer.json",
                                                 "tokenizer_config.json",
                                                 "special_tokens_map.json",
                                                 "added_tokens.json",
                                                 "chat_template.jinja",
                                                 "chat_template.json",
                                                 "vocab.json",
                                                 "merges.txt",
                                                 "vocab.txt",
                                                 "tokenizer.model",
                                                 "spiece.model",
                                                 "sentencepiece.bpe.model"};
  return names;
}

bool IsModelFolder(const std::string& folder) {
  std::error_code error;
  return std::filesystem::exists(std::filesystem::path(folder) / kConfigFile, error);
}

absl::StatusOr<nlohmann::json> ReadConfig(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / kConfigFile).string();
  ASSIGN_OR_RETURN(const std::string text, ReadRegular(path, kMostConfigBytes));
  ASSIGN_OR_RETURN(nlohmann::json config, ParseStrictJson(text, path));
  if (!config.is_object()) return InvalidArgument("{}: error: it is {}, not an object", path, TypeOf(config));
  return config;
}

std::vector<checkpoint::TensorInfo> ParametersOf(const graph::Graph& graph) {
  std::vector<checkpoint::TensorInfo> parameters;
  for (const graph::Parameter& parameter : graph.parameters()) {
    parameters.push_back(
        {.name = graph.value(parameter.value).name, .shape = parameter.logical_shape, .dtype = DType::kF32});
  }
  return parameters;
}

std::optional<std::int64_t> MostPositions(const nlohmann::json& config) {
  // Of a model that has more than a text, the part of the text says it.
  if (const auto text = config.find("text_config"); text != config.end() && text->is_object())
    return MostPositions(*text);
  for (const char* key : {"max_position_embeddings", "n_positions", "max_seq_len", "seq_length"}) {
    const auto found = config.find(key);
    if (found != config.end() && found->is_number_integer() && *found > 0) return found->get<std::int64_t>();
  }
  return std::nullopt;
}

absl::StatusOr<ModelFolder> OpenModelFolder(const std::string& folder) {
  ModelFolder opened;
  const std::string path = (std::filesystem::path(folder) / kConfigFile).string();
  ASSIGN_OR_RETURN(opened.config, ReadConfig(folder));
  ASSIGN_OR_RETURN(opened.model, ImportConfig(opened.config, path));
  ASSIGN_OR_RETURN(Folder weights, Folder::Open(folder));
  opened.model.rows = RowsFor(opened.model, weights.names());
  ASSIGN_OR_RETURN(const graph::Graph graph, GraphOfText(opened.model.recipe, path));
  ASSIGN_OR_RETURN(std::vector<Mapping> mappings,
                   MappingsOf(opened.model.rows, opened.model.sizes, ParametersOf(graph)));
  ASSIGN_OR_RETURN(opened.weights,
                   OpenWeights(std::move(weights), std::move(mappings), opened.model.ignored));
  return opened;
}

}  // namespace engine::hf
