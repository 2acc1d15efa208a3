#include "engine/train/hf_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "engine/base/write_file.h"
#include "engine/checkpoint/layout.h"
#include "engine/checkpoint/read.h"
#include "engine/checkpoint/store.h"
#include "engine/data/tokenizer.h"
#include "engine/hf/adapter.h"
#include "engine/hf/exported_tensors.h"
#include "engine/hf/family_def.h"
#include "engine/hf/folder.h"
#include "engine/hf/model_folder.h"
#include "engine/model/build.h"
#include "engine/model/load.h"
#include "engine/storage/location.h"
#include "engine/train/bucket_copy.h"
#include "engine/train/hf_origin.h"
#include "engine/train/run.h"

namespace engine::train {
namespace {

namespace fs = std::filesystem;
using checkpoint::TensorInfo;

// A type of weights: in --dtype, in a config, and in files.
struct WeightType {
  std::string_view name, config;
  hf::StoredType stored;
};
constexpr std::array<WeightType, 3> kWeightTypes = {{{"bf16", "bfloat16", hf::StoredType::kBF16},
                                                     {"fp16", "float16", hf::StoredType::kF16},
                                                     {"fp32", "float32", hf::StoredType::kF32}}};

absl::StatusOr<std::string> CheckpointOf(const std::string& run, const HfExportOptions& options,
                                         std::vector<std::string>* notes) {
  if (storage::IsUrl(run))
    return LocalCheckpoint(options.iteration ? checkpoint::IterationPath(run, *options.iteration) : run,
                           notes);
  std::error_code error;
  if (!fs::is_directory(run, error)) return NotFound("there is no folder {}", run);
  if (fs::exists(fs::path(run) / checkpoint::kManifestName, error)) return run;
  const std::string root = CheckpointRootIn(run);
  if (options.iteration) return checkpoint::IterationPath(root, *options.iteration);
  ASSIGN_OR_RETURN(std::optional<std::string> newest, checkpoint::FindNewestWhole(root, notes));
  if (!newest) return NotFound("{} holds no whole checkpoint", run);
  return *newest;
}

absl::StatusOr<WeightType> TypeFor(const HfExportOptions& options, const nlohmann::json* source) {
  for (const WeightType& type : kWeightTypes) {
    if (type.name == options.dtype) return type;
  }
  if (!options.dtype.empty()) {
    return InvalidArgument("--dtype {}: it must be bf16, fp16 or fp32", options.dtype);
  }
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (source == nullptr || !source->contains(key)) continue;
    for (const WeightType& type : kWeightTypes) {
      if ((*source)[key] == type.config) return type;
    }
  }
  return kWeightTypes[source == nullptr ? 0 : 2];  // files that say none are of float32
}

// By what is on the disk: links and other spellings lead to one folder. One that is not there is no other's.
bool IsSameFolder(const std::string& a, const std::string& b) {
  std::error_code error;
  return fs::equivalent(a, b, error);
}

// The folder that the recipe's tokenizer is read from; empty where it is of no folder.
std::string TokenizerFolderOf(const recipe::Tokenizer& tokenizer) {
  if (tokenizer.kind != "file" || tokenizer.path.empty()) return "";
  std::error_code error;
  const fs::path path = fs::absolute(tokenizer.path, error);
  return (fs::is_directory(path, error) ? path : path.parent_path()).string();
}

// An export takes the place of one of its own kind alone.
absl::Status CheckOut(const std::string& out, bool adapter) {
  std::error_code error;
  if (!fs::exists(out, error)) return absl::OkStatus();
  if (!fs::is_directory(out, error)) return FailedPrecondition("--out {}: it is no folder", out);
  if (fs::is_empty(out, error)) return absl::OkStatus();
  const bool has_model = hf::IsModelFolder(out);
  const bool has_adapter = fs::exists(fs::path(out) / hf::kAdapterConfigFile, error);
  if (adapter ? has_adapter && !has_model : has_model && !has_adapter) return absl::OkStatus();
  return FailedPrecondition(
      "--out {}: it holds other files than {}; give the name of a new folder, or of an earlier export", out,
      adapter ? "an adapter's" : "a model's");
}

// A run as it is to be exported.
struct RunToExport {
  checkpoint::Reader reader;
  recipe::Recipe recipe;               // without its adapters
  recipe::Lora lora;                   // which are here
  bool trains_others = false;          // beside adapters
  std::vector<TensorInfo> parameters;  // with those of adapters
  HfOrigin origin;
  std::optional<nlohmann::json> config;  // of origin.files

  const nlohmann::json* config_or_null() const { return config ? &*config : nullptr; }
};

absl::StatusOr<RunToExport> OpenRun(const std::string& folder, const std::string& checkpoint) {
  ASSIGN_OR_RETURN(checkpoint::Reader reader, checkpoint::Reader::Open(checkpoint));
  const recipe::LoadResult loaded = model::LoadText(reader.metadata().recipe_toml, checkpoint + " (recipe)");
  if (!loaded.ok()) {
    return DataLoss("{}: the recipe in the checkpoint cannot be read: {}", checkpoint,
                    Format(loaded.diagnostics.front()));
  }
  RunToExport run{.reader = std::move(reader),
                  .recipe = loaded.recipe,
                  .lora = loaded.recipe.lora,
                  .parameters = {},
                  .origin = OriginOf(folder, loaded.recipe),
                  .config = {}};
  const graph::Graph graph = model::BuildModel(run.recipe, {.batch = 1, .sequence = 4, .dropout = false});
  run.parameters = hf::ParametersOf(graph);
  run.recipe.lora.rank = 0;
  run.trains_others = TrainsOthers(graph);
  if (run.origin.files) {
    ASSIGN_OR_RETURN(run.config, hf::ReadConfig(*run.origin.files));
  }
  return run;
}

// An export never takes the place of what the run was made from.
absl::Status CheckSources(const RunToExport& run, const std::string& out) {
  for (const std::string& folder : run.origin.folders) {
    if (!IsSameFolder(folder, out)) continue;
    return FailedPrecondition("--out {}: the run's weights came from this folder; give the name of a new one",
                              out);
  }
  const std::string tokenizer = TokenizerFolderOf(run.recipe.data.tokenizer);
  if (!IsSameFolder(tokenizer, out)) return absl::OkStatus();
  return FailedPrecondition(
      "--out {}: the run's tokenizer is read from this folder; give the name of a new one", out);
}

// Which of an adapted run's two forms is asked for.
absl::Status CheckForm(const RunToExport& run, const HfExportOptions& options) {
  if (run.lora.rank == 0) {
    if (!options.adapter && !options.merge) return absl::OkStatus();
    return FailedPrecondition("--{}: the run has no adapters", options.adapter ? "adapter" : "merge");
  }
  if (!options.adapter && !options.merge) {
    return FailedPrecondition(
        "the run has adapters of rank {} ([lora])\n    hint: --merge adds them to the weights beside them; "
        "--adapter writes them alone, as PEFT does",
        run.lora.rank);
  }
  if (options.adapter && run.trains_others) {
    return FailedPrecondition(
        "--adapter: the run trains other parameters beside its adapters ([[optimizer.group]] frozen = "
        "false), "
        "which would be lost\n    hint: --merge");
  }
  return absl::OkStatus();
}

// With what would help, where a type cannot say a value.
absl::Status Written(const absl::Status& status, bool exact, const WeightType& type) {
  if (!exact || !absl::IsFailedPrecondition(status)) return status;
  return FailedPrecondition("{}\n    hint: --dtype {} rounds to nearest even, --dtype fp32 keeps every bit",
                            Message(status), type.name);
}

void Count(const hf::ExportedTensors& tensors, HfExport* exported) {
  for (const hf::TensorDeclaration& tensor : tensors.declarations()) {
    ++exported->tensors;
    exported->bytes += tensor.bytes();
  }
}

hf::FillRows FillFrom(hf::ExportedTensors& tensors) {
  return [&](const hf::TensorDeclaration& tensor, std::int64_t row, std::int64_t rows,
             std::span<std::byte> bytes) { return tensors.Fill(tensor, row, rows, bytes); };
}

// What goes with the weights: names in the export, and where the files are.
using Companions = std::map<std::string, std::string>;

Companions CompanionsIn(const std::string& folder) {
  Companions companions;
  std::error_code error;
  for (const std::string& name : hf::CompanionFiles()) {
    const fs::path from = fs::path(folder) / name;
    if (fs::exists(from, error)) companions[name] = from.string();
  }
  return companions;
}

// Those of a tokenizer that the recipe names: a folder's, or a file and those beside it. A file that transformers knows by no
// name goes alone, as those beside it may be another tokenizer's.
Companions CompanionsOf(const recipe::Tokenizer& tokenizer) {
  const fs::path path(tokenizer.path);
  const std::string folder = TokenizerFolderOf(tokenizer);
  std::error_code error;
  if (folder.empty() || !fs::exists(path, error)) return {};
  const std::vector<std::string>& known = hf::CompanionFiles();
  const bool is_known = std::find(known.begin(), known.end(), path.filename().string()) != known.end();
  if (fs::is_directory(path, error) || is_known) return CompanionsIn(folder);
  if (path.extension() == ".json" && path.filename() != "encoder.json") return {{"tokenizer.json", path}};
  return {};
}

// The tokens that begin and end a text, by their keys in config.json and generation_config.json. Without them transformers takes
// the defaults of the family's class, which are ids of another tokenizer, so that a generation does not stop.
absl::StatusOr<nlohmann::json> TokensOf(const recipe::Recipe& recipe) {
  ASSIGN_OR_RETURN(const std::unique_ptr<data::Tokenizer> tokenizer,
                   data::MakeTokenizer(recipe.data.tokenizer));
  if (tokenizer->vocab_size() > recipe.model.vocab)
    return FailedPrecondition("{} has {} tokens, the model {}", recipe.data.tokenizer.path,
                              tokenizer->vocab_size(), recipe.model.vocab);
  nlohmann::json tokens = {{"bos_token_id", nullptr}, {"eos_token_id", tokenizer->end_of_document()}};
  if (const std::optional<std::int32_t> beginning = tokenizer->beginning_of_document())
    tokens["bos_token_id"] = *beginning;
  return tokens;
}

// Of a run that was not imported: the files of its recipe's tokenizer, whose tokens `config` gets.
absl::Status AddTokenizer(const recipe::Recipe& recipe, nlohmann::json* config, hf::FolderWriter* writer,
                          std::vector<std::string>* notes) {
  const recipe::Tokenizer& tokenizer = recipe.data.tokenizer;
  const Companions companions = CompanionsOf(tokenizer);
  if (companions.empty()) {
    notes->push_back(
        tokenizer.kind == "file"
            ? fmt::format("there are no files of a tokenizer that transformers knows at {} "
                          "(data.tokenizer.path), so none go with the weights",
                          tokenizer.path)
            : "the run was not imported, and data.tokenizer.path names no tokenizer, so there are no "
              "tokenizer's files to go with it");
    return absl::OkStatus();
  }
  for (const auto& [name, from] : companions) RETURN_IF_ERROR(writer->AddCopy(name, from));
  const absl::StatusOr<nlohmann::json> tokens = TokensOf(recipe);
  if (!tokens.ok()) {
    notes->push_back(
        fmt::format("config.json says no bos_token_id and no eos_token_id: {}", Message(tokens.status())));
    return absl::OkStatus();
  }
  config->update(*tokens);
  constexpr const char* kGenerationConfig = "generation_config.json";
  if (companions.contains(kGenerationConfig)) return absl::OkStatus();
  return writer->AddText(kGenerationConfig, hf::ConfigText(*tokens));
}

absl::Status ExportModel(const RunToExport& run, const std::string& out, const HfExportOptions& options,
                         HfExport* exported) {
  const nlohmann::json* config = run.config_or_null();
  ASSIGN_OR_RETURN(const WeightType type, TypeFor(options, config));
  ASSIGN_OR_RETURN(hf::ExportedModel model, hf::ExportConfig(run.recipe, config, options.family));
  const bool says_type = config == nullptr || config->contains("dtype") || config->contains("torch_dtype");
  if (says_type || type.stored != hf::StoredType::kF32) hf::SetDtype(type.config, &model.config);
  ASSIGN_OR_RETURN(std::vector<hf::Mapping> mappings,
                   hf::MappingsOf(model.rows, model.sizes, hf::ParametersOf(hf::GraphOfRecipe(run.recipe))));
  std::unique_ptr<checkpoint::TensorSource> merged;
  if (options.merge) merged = hf::Merged(run.lora, run.reader);
  const checkpoint::TensorSource* weights = merged ? merged.get() : &run.reader;
  const bool exact = options.dtype.empty();
  ASSIGN_OR_RETURN(hf::ExportedTensors tensors,
                   hf::ExportedTensors::Create(*weights, std::move(mappings), type.stored, exact));
  ASSIGN_OR_RETURN(hf::FolderWriter writer, hf::FolderWriter::Create(out));
  RETURN_IF_ERROR(Written(writer.AddWeights(tensors.declarations(), options.shard_bytes, FillFrom(tensors)),
                          exact, type));
  if (run.origin.files) {
    for (const auto& [name, from] : CompanionsIn(*run.origin.files))
      RETURN_IF_ERROR(writer.AddCopy(name, from));
  } else {
    RETURN_IF_ERROR(AddTokenizer(run.recipe, &model.config, &writer, &exported->notes));
  }
  RETURN_IF_ERROR(writer.AddText(hf::kConfigFile, hf::ConfigText(model.config)));
  RETURN_IF_ERROR(writer.Finish());
  exported->family = model.family;
  exported->dtype = type.name;
  Count(tensors, exported);
  return absl::OkStatus();
}

// What an adapter's file names as the model that it is for: a folder with its weights. Where there is none, the files that the
// run was imported with are named if they have no weights that could be taken for them.
std::string BaseOf(const RunToExport& run, std::vector<std::string>* notes) {
  const HfOrigin& origin = run.origin;
  if (origin.base) return fs::absolute(*origin.base).lexically_normal().string();
  std::string base;
  if (origin.files && !hf::Folder::Open(*origin.files).ok())
    base = fs::absolute(*origin.files).lexically_normal().string();
  notes->push_back(
      fmt::format("base_model_name_or_path of {} is \"{}\", since no folder with the weights beside the "
                  "adapters is known; "
                  "set it to one, such as an export of the run that weights_from names",
                  hf::kAdapterConfigFile, base));
  return base;
}

// The old configuration goes first and the new one comes last: without one a folder is no adapter, whatever happens in between.
absl::Status ExportAdapter(const RunToExport& run, const std::string& out, const HfExportOptions& options,
                           HfExport* exported) {
  const WeightType type = options.dtype.empty() ? kWeightTypes[2] : *TypeFor(options, nullptr);
  ASSIGN_OR_RETURN(const hf::ExportedModel model,
                   hf::ExportConfig(run.recipe, run.config_or_null(), options.family));
  const std::string base = BaseOf(run, &exported->notes);
  ASSIGN_OR_RETURN(hf::AdapterModel adapter,
                   hf::AdapterOf(run.lora, model.rows, model.sizes, run.parameters, base));
  ASSIGN_OR_RETURN(hf::ExportedTensors tensors,
                   hf::ExportedTensors::Create(run.reader, std::move(adapter.mappings), type.stored, false));
  std::error_code error;
  fs::create_directories(out, error);
  if (error) return Unavailable("{}: cannot create: {}", out, error.message());
  fs::remove(fs::path(out) / hf::kAdapterConfigFile, error);
  if (error) return Unavailable("{}: cannot remove {}: {}", out, hf::kAdapterConfigFile, error.message());
  RETURN_IF_ERROR(hf::WriteSafetensors((fs::path(out) / hf::kAdapterWeightsFile).string(),
                                       tensors.declarations(), hf::kPtMetadata, FillFrom(tensors)));
  RETURN_IF_ERROR(
      WriteFile((fs::path(out) / hf::kAdapterConfigFile).string(), hf::ConfigText(adapter.config)));
  exported->family = model.family + "'s adapter";
  exported->dtype = type.name;
  Count(tensors, exported);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<HfExport> ExportHf(const std::string& run, const std::string& out,
                                  const HfExportOptions& options) {
  RETURN_IF_ERROR(CheckOut(out, options.adapter));
  HfExport exported;
  ASSIGN_OR_RETURN(exported.checkpoint, CheckpointOf(run, options, &exported.notes));
  ASSIGN_OR_RETURN(const RunToExport opened, OpenRun(run, exported.checkpoint));
  RETURN_IF_ERROR(CheckForm(opened, options));
  RETURN_IF_ERROR(CheckSources(opened, out));
  RETURN_IF_ERROR(options.adapter ? ExportAdapter(opened, out, options, &exported)
                                  : ExportModel(opened, out, options, &exported));
  return exported;
}

}  // namespace engine::train
