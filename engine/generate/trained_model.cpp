#include "engine/generate/trained_model.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/diagnostic.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/status.h"
#include "engine/checkpoint/layout.h"
#include "engine/driver/compile_recipe.h"
#include "engine/generate/cached_decoder.h"
#include "engine/hf/model_folder.h"
#include "engine/model/load.h"
#include "engine/recipe/print.h"
#include "engine/state/state.h"

namespace engine::generate {
namespace {

namespace fs = std::filesystem;

// Caches take memory for all tokens that a sequence may have.
constexpr std::int64_t kUsualContext = 1024;

// What a recipe must have for training and generation has no use for.
constexpr const char* kNoTraining = R"(
[training]
global_batch = 1
micro_batch = 1
iterations = 1
[optimizer]
learning_rate = 1e-5
[schedule]
kind = "constant"
[data]
source = "random"
sequence_length = 1
)";

// Of the layout that a model was trained in, one that generates has the buffers of experts.
void MakeOneRank(recipe::Recipe* recipe) {
  const double expert_rows = recipe->parallelism.expert_rows;
  recipe->parallelism = {};
  recipe->parallelism.expert_rows = expert_rows;
  driver::SetForGeneration(recipe);
}

// Another length of sequences and another layout have to pass the rules again: some models may not be longer, or cannot be split
// so.
absl::Status SetShape(const ModelShape& shape, recipe::Recipe* recipe) {
  std::string asked;
  const auto ask = [&](const std::string& option) { asked = driver::JoinOptions(asked, option); };
  if (shape.context > 0 && shape.context != recipe->data.sequence_length) {
    recipe->data.sequence_length = shape.context;
    ask(fmt::format("--context {}", shape.context));
  }
  ask(driver::SetLayout(shape.layout, recipe));
  driver::SetForGeneration(recipe);
  if (shape.invariant && !recipe->generate.invariant) {
    recipe->generate.invariant = true;
    ask("--invariant");
  }
  if (!shape.cache_dtype.empty() && shape.cache_dtype != recipe->generate.cache_dtype) {
    recipe->generate.cache_dtype = shape.cache_dtype;
    ask(fmt::format("--cache-dtype {}", shape.cache_dtype));
  }
  if (asked.empty()) return absl::OkStatus();
  recipe::LoadResult loaded = model::LoadText(recipe::ToToml(*recipe), "the model's recipe");
  if (!loaded.ok()) return InvalidArgument("{}: {}", asked, loaded.diagnostics.front().message);
  *recipe = std::move(loaded.recipe);
  return absl::OkStatus();
}

absl::Status AppendEndTokens(const nlohmann::json& config, const std::string& path,
                             std::vector<std::int32_t>* ids) {
  const auto found = config.find("eos_token_id");
  if (found == config.end() || found->is_null()) return absl::OkStatus();
  const nlohmann::json list = found->is_array() ? *found : nlohmann::json::array({*found});
  for (const nlohmann::json& id : list) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() > INT32_MAX)
      return InvalidArgument("{}: error: eos_token_id must be a token's id or a list of such", path);
    ids->push_back(id.get<std::int32_t>());
  }
  return absl::OkStatus();
}

// The end tokens that are said in the generation_config.json of a folder, or beside a file, if there is one.
absl::Status AddGenerationConfig(const std::string& folder_or_file, ModelSource* source) {
  constexpr std::int64_t kMostBytes = 1 << 20;
  if (folder_or_file.empty()) return absl::OkStatus();
  std::error_code error;
  const fs::path given(folder_or_file);
  const fs::path folder = fs::is_directory(given, error) ? given : given.parent_path();
  const std::string path = (folder / "generation_config.json").string();
  if (!fs::exists(path, error)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string text, ReadRegular(path, kMostBytes));
  ASSIGN_OR_RETURN(const nlohmann::json config, ParseStrictJson(text, path));
  if (!config.is_object()) return InvalidArgument("{}: error: it is {}, not an object", path, TypeOf(config));
  const std::size_t before = source->end_tokens.size();
  RETURN_IF_ERROR(AppendEndTokens(config, path, &source->end_tokens));
  source->has_generation_config = source->end_tokens.size() > before;
  return absl::OkStatus();
}

absl::StatusOr<ModelSource> OpenHuggingFace(const std::string& folder, ModelShape shape) {
  ASSIGN_OR_RETURN(hf::ModelFolder opened, hf::OpenModelFolder(folder));
  ModelSource source{.folder = folder, .adds_template = true};
  recipe::LoadResult loaded = model::LoadExtendingText(opened.model.recipe + kNoTraining, folder);
  if (!loaded.ok()) return InvalidArgument("{}", Format(loaded.diagnostics.front()));
  source.recipe = std::move(loaded.recipe);
  source.recipe.data.tokenizer = {.kind = "file", .path = folder};
  const std::int64_t usual =
      std::min(kUsualContext, hf::MostPositions(opened.config).value_or(kUsualContext));
  if (shape.context == 0) shape.context = usual;
  RETURN_IF_ERROR(SetShape(shape, &source.recipe));
  source.weights = std::move(opened.weights);
  RETURN_IF_ERROR(
      AppendEndTokens(opened.config, (fs::path(folder) / hf::kConfigFile).string(), &source.end_tokens));
  RETURN_IF_ERROR(AddGenerationConfig(folder, &source));
  return source;
}

absl::StatusOr<ModelSource> OpenCheckpoint(const std::string& folder, const ModelShape& shape) {
  ASSIGN_OR_RETURN(checkpoint::Reader reader, checkpoint::Reader::Open(folder));
  recipe::LoadResult loaded = model::LoadText(reader.metadata().recipe_toml, folder + " (recipe)");
  if (!loaded.ok()) return DataLoss("{}: the recipe in the checkpoint cannot be read", folder);
  ModelSource source{.folder = folder, .recipe = std::move(loaded.recipe)};
  MakeOneRank(&source.recipe);
  RETURN_IF_ERROR(SetShape(shape, &source.recipe));
  source.checkpoint = std::move(reader);
  RETURN_IF_ERROR(AddGenerationConfig(source.recipe.data.tokenizer.path, &source));
  return source;
}

absl::Status ReadWeights(const ModelSource& source, const plan::Plan& plan,
                         executor::RankExecutor& executor) {
  if (source.checkpoint)
    return state::LoadCheckpoint(plan, *source.checkpoint, /*with_optimizer=*/false, executor);
  std::vector<state::WeightSource> sources;
  for (const plan::PlanParameter& parameter : plan.parameters) sources.push_back({.tensor = parameter.name});
  return state::LoadWeights(plan, *source.weights, sources, executor);
}

}  // namespace

absl::StatusOr<ModelSource> OpenModel(const std::string& folder, const ModelShape& shape) {
  std::error_code error;
  const bool is_checkpoint = fs::exists(fs::path(folder) / checkpoint::kManifestName, error);
  return is_checkpoint ? OpenCheckpoint(folder, shape) : OpenHuggingFace(folder, shape);
}

std::vector<std::int32_t> EndTokens(const ModelSource& source, const data::Tokenizer* tokenizer,
                                    bool is_chat) {
  std::vector<std::int32_t> ids = source.end_tokens;
  if (tokenizer == nullptr) return ids;
  ids.push_back(tokenizer->end_of_document());
  const std::optional<std::int32_t> turn = tokenizer->end_of_turn();
  if (is_chat && turn && !source.has_generation_config) ids.push_back(*turn);
  return ids;
}

absl::StatusOr<std::unique_ptr<data::Tokenizer>> OpenTokenizer(const recipe::Data& data,
                                                               const TokenizerFiles& files) {
  recipe::Tokenizer description = data.tokenizer;
  if (!files.vocab_file.empty()) {
    if (description.kind != "gpt2" && !data.is_random()) {
      return InvalidArgument("--vocab and --merges are files of the gpt2 tokenizer, but the run's is \"{}\"",
                             description.kind);
    }
    description = {.kind = "gpt2", .vocab_file = files.vocab_file, .merges_file = files.merges_file};
  }
  absl::StatusOr<std::unique_ptr<data::Tokenizer>> tokenizer = data::MakeTokenizer(description);
  if (tokenizer.ok()) return tokenizer;
  return absl::Status(
      tokenizer.status().code(),
      Message(tokenizer.status()) +
          "\n    hint: --vocab and --merges say where the tokenizer's files are; with --tokens-in "
          "and --tokens-out there is no need of any");
}

absl::StatusOr<std::vector<std::int32_t>> EncodePrompt(const data::Tokenizer& tokenizer,
                                                       const tokenizer::EncodeOptions& options,
                                                       std::int64_t vocabulary, std::string_view text) {
  std::vector<std::int32_t> ids;
  RETURN_IF_ERROR(tokenizer.EncodeWith(options, text, &ids));
  for (const std::int32_t id : ids) {
    if (id < vocabulary) continue;
    return InvalidArgument(
        "the tokenizer gives id {}, but the model's vocabulary is 0 to {}: it is another one's", id,
        vocabulary - 1);
  }
  return ids;
}

absl::StatusOr<std::unique_ptr<LoadedModel>> LoadedModel::Load(const ModelSource& source,
                                                               state::Device device, std::int64_t slots) {
  recipe::Recipe recipe = source.recipe;
  if (device.profile.name == "cpu") {
    recipe.cluster = {};
    recipe.precision.compute = "fp32";  // checkpoints hold fp32 weights whatever they were trained in
  }
  const driver::GenerationShape shape = ShapeFor(slots, recipe.data.sequence_length, recipe.parallelism);
  absl::StatusOr<plan::Plan> plan = driver::CompileGeneration(recipe, {.profile = device.profile}, shape);
  // A model that does not go token by token is evaluated over its whole window for each.
  const bool has_caches = plan.status().code() != absl::StatusCode::kUnimplemented;
  if (!has_caches && !recipe.has_one_rank())
    return InvalidArgument("{}; such a model runs on one rank alone", Message(plan.status()));
  if (!has_caches && recipe.generate.cache_dtype == "fp8")
    return InvalidArgument("{}; such a model has no caches that could be in fp8 (--cache-dtype auto)",
                           Message(plan.status()));
  std::string note;
  if (!has_caches) {
    note = fmt::format(
        "{}: each new token takes a pass over all {} tokens of the context, where those that are not there "
        "yet are token 0, "
        "and count in steps that mix tokens otherwise than by causal attention",
        Message(plan.status()), recipe.data.sequence_length);
    plan = driver::CompileRecipe(recipe, {.profile = device.profile, .training = false, .keep_logits = true});
  }
  RETURN_IF_ERROR(plan.status());
  std::unique_ptr<LoadedModel> loaded(new LoadedModel(std::move(device), *std::move(plan)));
  loaded->note_ = std::move(note);
  ASSIGN_OR_RETURN(loaded->ranks_, state::Ranks::Create(loaded->plan_, loaded->device_, 0));
  const auto& executors = loaded->ranks_->executors();
  for (std::size_t rank = 0; rank < executors.size(); ++rank) {  // one after the other, as HDF5 reads
    if (loaded->device_.enter) RETURN_IF_ERROR(loaded->device_.enter(static_cast<std::int64_t>(rank)));
    RETURN_IF_ERROR(ReadWeights(source, loaded->plan_, *executors[rank]));
  }
  if (loaded->device_.enter) RETURN_IF_ERROR(loaded->device_.enter(0));
  loaded->decoder_ = has_caches ? MakeCachedDecoder(loaded->plan_, *loaded->ranks_, shape)
                                : MakeWindowDecoder(loaded->plan_, *executors[0], slots);
  return loaded;
}

}  // namespace engine::generate
