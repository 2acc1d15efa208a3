#include "engine/cli/model_options.h"

#include <cstdio>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "engine/base/print.h"
#include "engine/base/status.h"
#include "engine/checkpoint/layout.h"
#include "engine/checkpoint/store.h"
#include "engine/hf/model_folder.h"
#include "engine/train/bucket_copy.h"
#include "engine/train/run.h"

namespace engine::cli {
namespace {

namespace fs = std::filesystem;

// The folder itself where it is a model, or the newest whole checkpoint of a run or of its checkpoints.
absl::StatusOr<std::string> FindModelFolder(const std::string& name) {
  std::vector<std::string> copied;
  ASSIGN_OR_RETURN(const std::string folder, train::LocalCheckpoint(name, &copied));
  for (const std::string& report : copied) Print(stderr, "note: {}\n", report);
  std::error_code error;
  if (!fs::exists(folder, error)) return NotFound("there is no {}", folder);
  if (!fs::is_directory(folder, error)) {
    return InvalidArgument(
        "{} is a file{}; the folder of a run, of a checkpoint or of a Hugging Face model is wanted", folder,
        folder.ends_with(".toml") ? ", a recipe" : "");
  }
  if (fs::exists(fs::path(folder) / checkpoint::kManifestName, error)) return folder;
  if (hf::IsModelFolder(folder)) return folder;
  const std::string root = train::CheckpointRootIn(folder);
  std::vector<std::string> reports;
  ASSIGN_OR_RETURN(std::optional<std::string> newest, checkpoint::FindNewestWhole(root, &reports));
  for (const std::string& report : reports) Print(stderr, "note: {}\n", report);
  if (!newest) return NotFound("{} holds no {}checkpoint", folder, reports.empty() ? "" : "whole ");
  return *newest;
}

}  // namespace

void AddModelOptions(CLI::App* command, ModelArguments* arguments) {
  command
      ->add_option("folder", arguments->folder,
                   "A run's folder, one checkpoint, or the folder of a Hugging Face model; or "
                   "s3://BUCKET/KEY, where a run keeps "
                   "checkpoints, and s3://BUCKET/KEY/iteration_N")
      ->required()
      ->type_name("DIR");
  command
      ->add_option("--context", arguments->shape.context,
                   "Tokens that the model sees at once (default: a run's training sequence; of a Hugging "
                   "Face model what it is made for, but no more than 1024)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))
      ->type_name("N");
  AddLayoutOptions(command, &arguments->shape.layout);
  command->add_flag(
      "--invariant", arguments->shape.invariant,
      "Give each token the bits that training's forward pass gives it, whatever else is computed "
      "beside it "
      "(generate.invariant); it takes longer");
  command
      ->add_option("--cache-dtype", arguments->shape.cache_dtype,
                   "Keep keys and values in this format (generate.cache_dtype): auto, fp8 (default: as the "
                   "recipe says)")
      ->check(CLI::IsMember({"auto", "fp8"}))
      ->type_name("FORMAT");
  AddDeviceOptions(command, "kernels", &arguments->device);
  CLI::Option* vocab =
      command
          ->add_option("--vocab,--vocab-file", arguments->files.vocab_file,
                       "vocab.json of the gpt2 tokenizer, where it is elsewhere than the recipe says")
          ->type_name("FILE");
  CLI::Option* merges =
      command->add_option("--merges,--merges-file", arguments->files.merges_file, "merges.txt of the same")
          ->type_name("FILE");
  vocab->needs(merges);
  merges->needs(vocab);
}

absl::StatusOr<generate::ModelSource> FindModel(const ModelArguments& arguments) {
  ASSIGN_OR_RETURN(const std::string folder, FindModelFolder(arguments.folder));
  return generate::OpenModel(folder, arguments.shape);
}

absl::StatusOr<std::unique_ptr<generate::LoadedModel>> LoadModel(const generate::ModelSource& source,
                                                                 DeviceChoice choice, std::int64_t slots) {
  if (source.checkpoint && source.recipe.lora.rank > 0 && source.recipe.training.weights_from.empty())
    Print(stderr, "note: the adapters of {} were trained beside weights that were drawn at random\n",
          source.folder);
  choice.one_process = true;
  absl::StatusOr<state::Device> device = MakeDevice(source.recipe, choice);
  // Too few GPUs for the layout that was asked for is a mistake; none, or another one than the run's, is not.
  const bool asks_too_much = !source.recipe.has_one_rank() && absl::IsFailedPrecondition(device.status());
  if (!device.ok() && choice.kind == "auto" && !asks_too_much) {
    Print(stderr, "note: it runs on the CPU, for it was trained for {}, which is not here\n",
          source.recipe.cluster.device);
    choice.kind = "cpu";
    device = MakeDevice(source.recipe, choice);
  }
  RETURN_IF_ERROR(device.status());
  absl::StatusOr<std::unique_ptr<generate::LoadedModel>> model =
      generate::LoadedModel::Load(source, *std::move(device), slots);
  if (model.ok() && !(*model)->note().empty()) Print(stderr, "note: {}\n", (*model)->note());
  return model;
}

}  // namespace engine::cli
