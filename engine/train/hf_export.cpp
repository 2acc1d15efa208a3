#include "engine/train/hf_export.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <utility>

#include "engine/checkpoint/layout.h"
#include "engine/checkpoint/read.h"
#include "engine/checkpoint/store.h"
#include "engine/hf/exported_tensors.h"
#include "engine/hf/family_def.h"
#include "engine/hf/model_folder.h"
#include "engine/model/load.h"
#include "engine/train/hf_import.h"
#include "engine/train/run.h"

namespace engine::train {
namespace {

namespace fs = std::filesystem;

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
  std::error_code error;
  if (!fs::is_directory(run, error)) return NotFound("there is no folder {}", run);
  if (fs::exists(fs::path(run) / checkpoint::kManifestName, error)) return run;
  const std::string root = CheckpointRootIn(run);
  if (options.iteration) return checkpoint::IterationPath(root, *options.iteration);
  ASSIGN_OR_RETURN(std::optional<std::string> newest, checkpoint::FindNewestWhole(root, notes));
  if (!newest) return NotFound("{} holds no whole checkpoint", run);
  return *newest;
}

// Where the files that the model was imported with are, or nothing.
std::optional<std::string> SourceOf(const std::string& run) {
  for (const fs::path& folder : {fs::path(run), fs::path(run) / "..", fs::path(run) / ".." / ".."}) {
    const std::string source = (folder / kSourceFolder).lexically_normal().string();
    if (hf::IsModelFolder(source)) return source;
  }
  return std::nullopt;
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

absl::Status CheckOut(const std::string& out) {
  std::error_code error;
  if (!fs::exists(out, error) || hf::IsModelFolder(out)) return absl::OkStatus();
  if (!fs::is_directory(out, error)) return FailedPrecondition("--out {}: it is no folder", out);
  if (fs::is_empty(out, error)) return absl::OkStatus();
  return FailedPrecondition(
      "--out {}: it holds other files than a model's; give the name of a new folder, or of an earlier export",
      out);
}

}  // namespace

absl::StatusOr<HfExport> ExportHf(const std::string& run, const std::string& out,
                                  const HfExportOptions& options) {
  RETURN_IF_ERROR(CheckOut(out));
  HfExport exported;
  ASSIGN_OR_RETURN(exported.checkpoint, CheckpointOf(run, options, &exported.notes));
  ASSIGN_OR_RETURN(const checkpoint::Reader reader, checkpoint::Reader::Open(exported.checkpoint));
  const recipe::LoadResult loaded =
      model::LoadText(reader.metadata().recipe_toml, exported.checkpoint + " (recipe)");
  if (!loaded.ok()) {
    return DataLoss("{}: the recipe in the checkpoint cannot be read: {}", exported.checkpoint,
                    Format(loaded.diagnostics.front()));
  }
  const std::optional<std::string> source = SourceOf(run);
  std::optional<nlohmann::json> source_config;
  if (source) {
    ASSIGN_OR_RETURN(source_config, hf::ReadConfig(*source));
  }
  const nlohmann::json* config = source_config ? &*source_config : nullptr;
  ASSIGN_OR_RETURN(const WeightType type, TypeFor(options, config));
  ASSIGN_OR_RETURN(hf::ExportedModel model, hf::ExportConfig(loaded.recipe, config, options.family));
  const bool says_type = config == nullptr || config->contains("dtype") || config->contains("torch_dtype");
  if (says_type || type.stored != hf::StoredType::kF32) hf::SetDtype(type.config, &model.config);
  ASSIGN_OR_RETURN(
      std::vector<hf::Mapping> mappings,
      hf::MappingsOf(model.rows, model.sizes, hf::ParametersOf(hf::GraphOfRecipe(loaded.recipe))));
  const bool exact = options.dtype.empty();
  ASSIGN_OR_RETURN(hf::ExportedTensors tensors,
                   hf::ExportedTensors::Create(reader, std::move(mappings), type.stored, exact));
  ASSIGN_OR_RETURN(hf::FolderWriter writer, hf::FolderWriter::Create(out));
  const absl::Status written =
      writer.AddWeights(tensors.declarations(), options.shard_bytes,
                        [&](const hf::TensorDeclaration& tensor, std::int64_t row, std::int64_t rows,
                            std::span<std::byte> bytes) { return tensors.Fill(tensor, row, rows, bytes); });
  if (exact && absl::IsFailedPrecondition(written)) {
    return FailedPrecondition("{}\n    hint: --dtype {} rounds to nearest even, --dtype fp32 keeps every bit",
                              Message(written), type.name);
  }
  RETURN_IF_ERROR(written);
  RETURN_IF_ERROR(writer.AddText(hf::kConfigFile, hf::ConfigText(model.config)));
  if (source) {
    std::error_code error;
    for (const std::string& name : hf::CompanionFiles()) {
      const fs::path from = fs::path(*source) / name;
      if (fs::exists(from, error)) RETURN_IF_ERROR(writer.AddCopy(name, from.string()));
    }
  } else {
    exported.notes.emplace_back("the run was not imported, so there are no tokenizer's files to go with it");
  }
  RETURN_IF_ERROR(writer.Finish());
  exported.family = model.family;
  exported.dtype = type.name;
  for (const hf::TensorDeclaration& tensor : tensors.declarations()) {
    ++exported.tensors;
    exported.bytes += tensor.bytes();
  }
  return exported;
}

}  // namespace engine::train
