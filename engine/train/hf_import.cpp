#include "engine/train/hf_import.h"

#include <absl/strings/str_replace.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <future>
#include <limits>
#include <memory>
#include <utility>

#include "engine/base/file_io.h"
#include "engine/base/units.h"
#include "engine/base/version.h"
#include "engine/base/write_file.h"
#include "engine/checkpoint/layout.h"
#include "engine/checkpoint/write.h"
#include "engine/data/tokenizer.h"
#include "engine/driver/compile_recipe.h"
#include "engine/hf/model_folder.h"
#include "engine/model/load.h"
#include "engine/recipe/print.h"
#include "engine/train/hf_origin.h"
#include "engine/train/run.h"

namespace engine::train {
namespace {

namespace fs = std::filesystem;
using checkpoint::Box;
using checkpoint::TensorInfo;

constexpr std::int64_t kBytesOfShard = std::int64_t{128} << 20;
constexpr const char* kRecipeName = "recipe.toml";

// As TOML writes a text.
std::string Quoted(const std::string& text) { return nlohmann::json(text).dump(); }

// The folder's tokenizer, as a recipe names it, and what a user should know of it.
struct FolderTokenizer {
  std::string text;  // the keys of [data.tokenizer]
  std::string note;
};

// `named`: where the recipe will find the folder's tokenizer.
FolderTokenizer TokenizerOf(const std::string& folder, const std::string& named, std::int64_t rows) {
  const absl::StatusOr<std::unique_ptr<data::Tokenizer>> tokenizer =
      data::MakeTokenizer({.kind = "file", .path = folder});
  constexpr const char* kNone = "kind = \"none\"";
  if (!tokenizer.ok()) {
    return {kNone,
            fmt::format(
                "the recipe has no tokenizer ({}): data must be .bin and .idx files of the model's tokens, "
                "or source = \"random\"; `engine generate` takes --tokens-in",
                Message(tokenizer.status()))};
  }
  if ((*tokenizer)->vocab_size() > rows) {
    return {
        kNone,
        fmt::format(
            "the recipe has no tokenizer: the folder's has {} tokens, the model's table of tokens {} rows",
            (*tokenizer)->vocab_size(), rows)};
  }
  return {fmt::format("kind = \"file\"\npath = {}", Quoted(named)),
          fmt::format(
              "the recipe begins with random tokens; `engine data build --tokenizer file --tokenizer-path {} "
              "--append-eod --input TEXT.jsonl --output-prefix PREFIX` makes data of the model's own",
              named)};
}

// The sections that a model's text does not have. They are a beginning for fine-tuning, and pass `engine check`.
std::string WithTraining(const std::string& model, const std::string& folder, const std::string& weights,
                         std::int64_t sequence, const std::string& tokenizer) {
  return fmt::format(
      R"(# Made of {} by `engine import hf`. The model is the folder's; what follows its text is a beginning.
{}
[training]
weights_from = {}
global_batch = 8
micro_batch = 1
iterations = 100

# Real data: paths = ["PREFIX_text_document"] of `engine data build` with the model's own tokenizer, in place of `source`.
[data]
source = "random"
sequence_length = {}

[data.tokenizer]
{}

[optimizer]
learning_rate = 1e-5
weight_decay = 0.0

[schedule]
kind = "cosine"
warmup_fraction = 0.03

# On a GPU:
# [cluster]
# device = "h200"
# [precision]
# compute = "bf16"
)",
      folder, model, Quoted(weights), sequence, tokenizer);
}

std::string Absolute(const std::string& path) { return fs::absolute(path).lexically_normal().string(); }

// Not more tokens than the model is made for.
std::int64_t SequenceFor(const nlohmann::json& config) {
  constexpr std::int64_t kTokens = 256;
  return std::min(kTokens, hf::MostPositions(config).value_or(kTokens));
}

// `companions`: the folder that will have the source's tokenizer.
HfImport Described(const hf::ModelFolder& opened, const std::string& folder, const std::string& weights,
                   const std::string& companions) {
  const TensorInfo* table = opened.weights->Find("embedding.tokens");
  const std::int64_t rows = table == nullptr ? std::numeric_limits<std::int64_t>::max() : table->shape[0];
  const FolderTokenizer tokenizer = TokenizerOf(folder, companions, rows);
  HfImport import{.family = opened.model.family,
                  .recipe = WithTraining(opened.model.recipe, Absolute(folder), weights,
                                         SequenceFor(opened.config), tokenizer.text),
                  .notes = opened.model.notes};
  for (const TensorInfo& tensor : opened.weights->tensors()) import.parameters += tensor.shape.elements();
  import.notes.push_back(tokenizer.note);
  return import;
}

// A piece of a tensor for one shard.
struct Stretch {
  int tensor = 0;
  Box box;
};

// Tensors one after another, cut along dim 0 where they are large.
std::vector<std::vector<Stretch>> ShardsOf(const std::vector<TensorInfo>& tensors) {
  std::vector<std::vector<Stretch>> shards(1);
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Shape& shape = tensors[i].shape;
    const std::int64_t rows = shape.rank() == 0 ? 1 : shape[0];
    const std::int64_t row = tensors[i].bytes() / rows;
    const std::int64_t at_a_time = std::max<std::int64_t>(1, kBytesOfShard / std::max<std::int64_t>(row, 1));
    for (std::int64_t begin = 0; begin < rows; begin += at_a_time) {
      Box box = checkpoint::WholeBox(shape);
      if (shape.rank() > 0) {
        box.start[0] = begin;
        box.count[0] = std::min(at_a_time, rows - begin);
      }
      const std::int64_t size = box.count.elements() * SizeOf(DType::kF32);
      if (!shards.back().empty() && bytes + size > kBytesOfShard) {
        shards.emplace_back();
        bytes = 0;
      }
      shards.back().push_back({static_cast<int>(i), std::move(box)});
      bytes += size;
    }
  }
  return shards;
}

absl::Status ReadShard(const checkpoint::TensorSource& weights, const std::vector<Stretch>& shard,
                       std::vector<float>* values) {
  std::int64_t elements = 0;
  for (const Stretch& stretch : shard) elements += stretch.box.count.elements();
  values->resize(static_cast<std::size_t>(elements));
  float* at = values->data();
  for (const Stretch& stretch : shard) {
    RETURN_IF_ERROR(
        weights.Read(weights.tensors()[static_cast<std::size_t>(stretch.tensor)].name, stretch.box, at));
    at += stretch.box.count.elements();
  }
  return absl::OkStatus();
}

// One shard is written while the next one is read.
absl::Status WriteCheckpoint(const checkpoint::TensorSource& weights, const std::string& root,
                             checkpoint::Metadata metadata) {
  ASSIGN_OR_RETURN(checkpoint::Writer writer,
                   checkpoint::Writer::Begin(root, std::move(metadata), weights.tensors()));
  const std::vector<std::vector<Stretch>> shards = ShardsOf(weights.tensors());
  std::vector<float> values[2];
  RETURN_IF_ERROR(ReadShard(weights, shards[0], &values[0]));
  for (std::size_t i = 0; i < shards.size(); ++i) {
    std::future<absl::Status> next;
    if (i + 1 < shards.size()) {
      next = std::async(std::launch::async,
                        [&, i] { return ReadShard(weights, shards[i + 1], &values[(i + 1) % 2]); });
    }
    std::vector<checkpoint::PieceToWrite> pieces;
    const float* at = values[i % 2].data();
    for (const Stretch& stretch : shards[i]) {
      pieces.push_back({stretch.tensor, stretch.box, at});
      at += stretch.box.count.elements();
    }
    RETURN_IF_ERROR(writer.WriteShard(static_cast<int>(i), pieces));
    if (next.valid()) RETURN_IF_ERROR(next.get());
  }
  return writer.Commit();
}

absl::Status CopyCompanions(const std::string& folder, const std::string& to) {
  std::error_code error;
  fs::create_directories(to, error);
  if (error) return Unavailable("{}: cannot create: {}", to, error.message());
  std::vector<std::string> names = hf::CompanionFiles();
  names.emplace_back(hf::kConfigFile);
  for (const std::string& name : names) {
    const fs::path from = fs::path(folder) / name;
    if (!fs::exists(from, error)) continue;
    if (!fs::is_regular_file(from, error)) return InvalidArgument("{} is no file", from.string());
    fs::copy_file(from, fs::path(to) / name, error);
    if (error) return Unavailable("{}: cannot copy: {}", from.string(), error.message());
  }
  return absl::OkStatus();
}

// The run's files in the folder `temporary`, which is to become `out`.
absl::Status WriteRun(const hf::ModelFolder& opened, const HfImport& import, const std::string& folder,
                      const std::string& temporary, const std::string& out,
                      const plan::DeviceProfile& profile) {
  const std::string path = (fs::path(temporary) / kRecipeName).string();
  RETURN_IF_ERROR(WriteFile(path, import.recipe));
  const recipe::LoadResult loaded = model::Load(path);
  if (!loaded.ok()) return Internal("{}", Format(loaded.diagnostics.front()));
  ASSIGN_OR_RETURN(const plan::Plan plan, driver::CompileRecipe(loaded.recipe, {.profile = profile}));
  const std::string source = (fs::path(temporary) / kSourceFolder).string();
  RETURN_IF_ERROR(CopyCompanions(folder, source));
  RETURN_IF_ERROR(WriteImportedFrom(source, folder));
  return WriteCheckpoint(
      *opened.weights, CheckpointRoot(temporary),
      {.iteration = 0,
       .seed = loaded.recipe.training.seed,
       .schedule_samples = 0,
       .plan_hash = plan.hash,
       .recipe_toml = absl::StrReplaceAll(recipe::ToToml(loaded.recipe), {{temporary, out}}),
       .engine_version = Version(),
       .mesh = {{"dp", 1}, {"tp", 1}, {"pp", 1}, {"cp", 1}, {"ep", 1}}});
}

}  // namespace

absl::StatusOr<HfImport> RecipeOfHf(const std::string& folder) {
  ASSIGN_OR_RETURN(const hf::ModelFolder opened, hf::OpenModelFolder(folder));
  return Described(opened, folder, Absolute(folder), Absolute(folder));
}

absl::StatusOr<HfImport> ImportHf(const std::string& folder, const std::string& out,
                                  const plan::DeviceProfile& profile) {
  std::error_code error;
  if (fs::exists(fs::symlink_status(out, error))) {
    return FailedPrecondition("--out {}: it is there already; give the name of a new folder", out);
  }
  ASSIGN_OR_RETURN(const hf::ModelFolder opened, hf::OpenModelFolder(folder));
  const std::string final = Absolute(out);
  HfImport import = Described(opened, folder, checkpoint::IterationPath(CheckpointRoot(final), 0),
                              (fs::path(final) / kSourceFolder).string());
  const std::string temporary = fmt::format("{}.importing-{}", final, getpid());
  fs::create_directories(temporary, error);
  if (error) return Unavailable("{}: cannot create: {}", temporary, error.message());
  absl::Status status = WriteRun(opened, import, folder, temporary, final, profile);
  if (status.ok()) status = Rename(temporary, final);
  if (!status.ok()) {
    fs::remove_all(temporary, error);
    return status;
  }
  RETURN_IF_ERROR(SyncFolder(fs::path(final).parent_path().string()));
  return import;
}

}  // namespace engine::train
