#include "engine/train/resume.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/base/attention_draws.h"
#include "engine/base/dropout_draws.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/shown.h"
#include "engine/checkpoint/layout.h"
#include "engine/checkpoint/store.h"
#include "engine/data/indexed_format.h"
#include "engine/driver/run_folder.h"
#include "engine/model/load.h"
#include "engine/recipe/batch_size.h"
#include "engine/recipe/print.h"
#include "engine/train/bucket.h"
#include "engine/train/report.h"
#include "engine/train/run.h"

namespace engine::train {
namespace {

// Keys of [model] that change no tensor and no meaning of one.
bool MayChangeInModel(const std::string& key) {
  return key.starts_with("model.dropout.") || key == "model.vocab_multiple" || key == "model.init_std";
}

// Whether the weights mean something else with the key's new value, or lose their place: adapters that are trained, by another factor
// or not at all.
bool ChangesModel(const std::string& key, const recipe::Recipe& before, const recipe::Recipe& now) {
  if (key.starts_with("lora.")) return before.lora.rank > 0 || now.lora.rank > 0;
  return key.starts_with("model.") && !MayChangeInModel(key);
}

// What the key's new value does to a run that goes on, where that is not what it says; else empty.
std::string EffectOf(const std::string& key, const recipe::Precision& before, const recipe::Precision& now) {
  const auto moves = [](const recipe::Precision& p) { return p.compute == "fp16" && p.loss_scale == 0; };
  const bool running = key == "precision.initial_loss_scale" && moves(before) && moves(now);
  return running ? " (no effect: the loss scale goes on from where it is)" : "";
}

// The data set is opened for the samples of the recipe's own length, so those already consumed must leave
// enough.
absl::Status CheckSamplesLeft(const recipe::Recipe& recipe, const checkpoint::Reader& reader) {
  const checkpoint::Metadata& done = reader.metadata();
  const std::int64_t asked = recipe.samples();
  const std::int64_t left = std::max<std::int64_t>(0, recipe.iterations() - done.iteration);
  const std::int64_t needed =
      recipe::RunOn(recipe.training, {0, done.consumed_samples}, left, recipe::kNoEnd).samples;
  if (left == 0 || needed <= asked) return absl::OkStatus();
  return FailedPrecondition(
      "checkpoint {} has consumed {} samples in {} iterations, and {} more iterations of {} make {}; but the "
      "recipe's "
      "{} iterations × {} ask the data for {} only\n"
      "    hint: keep training.global_batch and [training.rampup], or start in another --out",
      reader.folder(), done.consumed_samples, done.iteration, left, recipe.training.global_batch, needed,
      recipe.iterations(), recipe.training.global_batch, asked);
}

absl::Status CompareRecipes(const recipe::Recipe& recipe, const checkpoint::Reader& reader,
                            std::vector<std::string>* notes) {
  const recipe::LoadResult before =
      model::LoadText(reader.metadata().recipe_toml, reader.folder() + " (recipe)");
  if (!before.ok()) return DataLoss("{}: the recipe in the checkpoint cannot be read", reader.folder());
  std::string clashes;
  bool other_length = false;
  for (const recipe::Change& change : recipe::Diff(before.recipe, recipe)) {
    other_length = other_length || change.key == "training.iterations" || change.key == "training.samples" ||
                   change.key == "training.global_batch" || change.key.starts_with("training.rampup.");
    const std::string text = fmt::format("{}: {} → {}", change.key, change.before, change.after);
    if (ChangesModel(change.key, before.recipe, recipe)) {
      clashes += "\n    " + text;
    } else {
      notes->push_back("changed since the checkpoint: " + text +
                       EffectOf(change.key, before.recipe.precision, recipe.precision));
    }
  }
  if (other_length && !recipe.data.is_random()) {
    notes->push_back(
        "the order of the text is drawn for the number of samples of a run, which has changed: text that was "
        "seen may "
        "come again");
  }
  if (clashes.empty()) return CheckSamplesLeft(recipe, reader);
  return FailedPrecondition(
      "checkpoint {} is of another model, so its weights do not fit this recipe:{}\n"
      "    hint: give the recipe's model back its values, or another --out",
      reader.folder(), clashes);
}

constexpr std::size_t kMostShown = 100;  // bytes of a fingerprint; before: text of a file

std::string ShownOf(const data::Fingerprints& side, const std::string& name) {
  const auto found = side.find(name);
  return found == side.end() ? "not there" : Shown(found->second, kMostShown);
}

// Files that two ranks read, or one of them alone, and that differ; a line each.
std::string OtherFiles(const data::Fingerprints& first, const data::Fingerprints& here) {
  constexpr std::size_t kMostNamed = 10;
  data::Fingerprints all = first;
  all.insert(here.begin(), here.end());
  std::string lines;
  std::size_t count = 0;
  for (const auto& [name, fingerprint] : all) {
    const auto there = first.find(name);
    const auto ours = here.find(name);
    const bool both = there != first.end() && ours != here.end();
    if (both ? there->second == ours->second : name.starts_with(data::kTokenizerFile)) continue;
    if (++count <= kMostNamed)
      lines += fmt::format("\n    {}: {} on rank 0, {} here", ShownPath(name), ShownOf(first, name),
                           ShownOf(here, name));
  }
  if (count > kMostNamed) lines += fmt::format("\n    and {} more", count - kMostNamed);
  return lines;
}

// Files that are in use again, under the same names, and have another content; and masks of the loss that have come or gone beside
// data sets that are in use again. Any other name that one side alone has may be due to another version of the program.
void CompareInputs(const data::Fingerprints& before, const data::Fingerprints& now,
                   std::vector<std::string>* notes) {
  const auto tell = [&](const std::string& name) {
    notes->push_back(fmt::format("{} changed since the checkpoint: {} → {}", name, ShownOf(before, name),
                                 ShownOf(now, name)));
  };
  const std::string ending = data::BinPath("");
  for (const auto& [name, fingerprint] : now) {
    const auto found = before.find(name);
    if (found == before.end()) continue;
    if (found->second != fingerprint) tell(name);
    if (!name.ends_with(ending)) continue;
    const std::string mask = data::BinPath(data::LossMaskPrefix(name.substr(0, name.size() - ending.size())));
    if (before.contains(mask) != now.contains(mask)) tell(mask);
  }
}

// A text says with its steps whether anything is dropped.
void CompareDraws(const recipe::Recipe& recipe, const checkpoint::Metadata& before,
                  std::vector<std::string>* notes) {
  struct Draws {
    const char* what;
    bool drops;
    std::int64_t before, now;
  };
  const auto& p = recipe.model.dropout;
  const bool text = recipe.model.family == recipe::kTextFamily;
  for (const Draws& draws :
       {Draws{"dropout of attention", p.attention > 0, before.attention_draws, kAttentionDrawsVersion},
        Draws{"dropout outside attention", p.hidden > 0 || p.embedding > 0, before.dropout_draws,
              kDropoutDrawsVersion}}) {
    if (draws.before == draws.now || before.iteration == 0 || (!text && !draws.drops)) continue;
    notes->push_back(
        fmt::format("{}{} draws other numbers than before the checkpoint: those of version {}, not {}",
                    draws.what, text ? ", where the model has any," : "", draws.now, draws.before));
  }
}

// What an optimizer keeps, and states of the model, have names in folders ("adam.m/…").
bool HasWeightsAlone(const checkpoint::Reader& reader) {
  return reader.metadata().iteration == 0 && std::none_of(reader.tensors().begin(), reader.tensors().end(),
                                                          [](const checkpoint::TensorInfo& info) {
                                                            return info.name.find('/') != std::string::npos;
                                                          });
}

absl::Status RefuseOldRun(const std::string& out) {
  const std::optional<std::string> held = FindRun(out);
  if (!held) return absl::OkStatus();
  return FailedPrecondition("--fresh: {} already holds a run ({}); remove it, or give another --out", out,
                            *held);
}

absl::Status RefuseOldBucket(const std::string& bucket) {
  if (bucket.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<std::int64_t> held, ListBucket(bucket));
  if (held.empty()) return absl::OkStatus();
  return FailedPrecondition(
      "--fresh: {} already holds checkpoints ({}); remove them, or give another checkpoint.upload", bucket,
      checkpoint::IterationName(held.back()));
}

}  // namespace

std::optional<std::string> FindRun(const std::string& out) {
  std::error_code error;
  for (const char* name : {driver::kCheckpointsName, driver::kMetricsName}) {
    const std::filesystem::path path = std::filesystem::path(out) / name;
    const bool holds = std::filesystem::is_directory(path, error) ? !std::filesystem::is_empty(path, error)
                                                                  : std::filesystem::exists(path, error);
    if (holds) return path.string();
  }
  return std::nullopt;
}

absl::StatusOr<std::optional<std::string>> KeepOldMetrics(const std::string& out) {
  const std::string path = (std::filesystem::path(out) / driver::kMetricsName).string();
  if (!CheckRegularOrAbsent(path).ok()) return std::nullopt;
  std::int64_t iteration = 0;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.contains("iteration") && json["iteration"].is_number_integer())
      iteration = std::max(iteration, json["iteration"].get<std::int64_t>());
  }
  if (iteration == 0) return std::nullopt;
  std::error_code error;
  std::filesystem::rename(path, path + ".old", error);
  if (error) return SystemError("rename", path, error.value());
  return fmt::format(
      "{} has iterations up to {}, but no checkpoint is there: the run begins anew, and they are kept in "
      "{}.old",
      path, iteration, path);
}

absl::StatusOr<std::optional<ResumePoint>> FindResumePoint(const ResumeRequest& request) {
  if (request.fresh) {
    RETURN_IF_ERROR(RefuseOldRun(request.out));
    RETURN_IF_ERROR(RefuseOldBucket(request.recipe.checkpoint.upload));
    return std::nullopt;
  }
  const std::string root = CheckpointRoot(request.out);
  RETURN_IF_ERROR(checkpoint::RemoveLeftovers(root));
  std::vector<std::string> notes;
  std::set<std::int64_t> damaged;
  if (!request.recipe.checkpoint.upload.empty()) {
    ASSIGN_OR_RETURN(damaged, FetchFromBucket(request.recipe.checkpoint.upload, root, &notes));
  }
  ASSIGN_OR_RETURN(const std::optional<std::string> folder, checkpoint::FindNewestWhole(root, &notes));
  if (!folder) {
    if (notes.empty()) return std::nullopt;
    std::string reasons;
    for (const std::string& note : notes) reasons += "\n    " + note;
    return DataLoss("{} holds no whole checkpoint:{}\n    hint: remove it to start anew, or give another {}",
                    request.recipe.checkpoint.upload.empty() ? root : request.recipe.checkpoint.upload,
                    reasons, request.recipe.checkpoint.upload.empty() ? "--out" : "checkpoint.upload");
  }
  ASSIGN_OR_RETURN(checkpoint::Reader reader, checkpoint::Reader::Open(*folder));
  RETURN_IF_ERROR(CompareRecipes(request.recipe, reader, &notes));
  CompareInputs(reader.metadata().fingerprints, request.fingerprints, &notes);
  CompareDraws(request.recipe, reader.metadata(), &notes);
  const bool weights_alone = HasWeightsAlone(reader);
  if (weights_alone) notes.emplace_back("the checkpoint has weights alone: the optimizer begins anew");
  return ResumePoint{std::move(reader), std::move(notes), weights_alone, std::move(damaged)};
}

namespace {

// Opens what rank 0 has found, under the key by which it has said so; empty where it has found nothing.
absl::StatusOr<std::optional<ResumePoint>> OpenAsRank0(const std::string& key, launch::Client* processes) {
  ASSIGN_OR_RETURN(const std::string folder, processes->Get(key));
  if (folder.empty()) return std::nullopt;
  absl::StatusOr<checkpoint::Reader> reader = checkpoint::Reader::Open(folder);
  if (!reader.ok()) {
    return WithContext(
        reader.status(),
        fmt::format("the checkpoint {} that rank 0 resumes from cannot be read by another rank; "
                    "all hosts must share its file system",
                    folder));
  }
  const bool weights_alone = HasWeightsAlone(*reader);
  return ResumePoint{*std::move(reader), {}, weights_alone};
}

// Tells the other processes.
absl::Status SayFound(const std::string& key, const std::optional<ResumePoint>& found,
                      launch::Client* processes) {
  if (processes == nullptr) return absl::OkStatus();
  return processes->Set(key, found ? std::filesystem::absolute(found->reader.folder()).string() : "");
}

// One that the recipe's interval has made, if there is any: those of a run that was stopped must not change what it does.
absl::StatusOr<std::optional<ResumePoint>> FindRewindPoint(const std::string& out, std::int64_t last,
                                                           std::int64_t interval) {
  std::vector<std::string> notes;
  ASSIGN_OR_RETURN(std::optional<std::string> folder,
                   checkpoint::FindNewestWhole(CheckpointRoot(out), &notes,
                                               interval > 0 ? last / interval * interval : last));
  if (!folder) {
    ASSIGN_OR_RETURN(folder, checkpoint::FindNewestWhole(CheckpointRoot(out), &notes, last));
  }
  if (!folder) return std::nullopt;
  ASSIGN_OR_RETURN(checkpoint::Reader reader, checkpoint::Reader::Open(*folder));
  const bool weights_alone = HasWeightsAlone(reader);
  return ResumePoint{std::move(reader), std::move(notes), weights_alone};
}

}  // namespace

absl::StatusOr<std::optional<ResumePoint>> AgreeOnRewindPoint(const std::string& out, std::int64_t last,
                                                              std::int64_t interval, std::int64_t rewind,
                                                              bool leads, launch::Client* processes) {
  const std::string key = fmt::format("rewind {} to", rewind);
  if (!leads) return OpenAsRank0(key, processes);
  ASSIGN_OR_RETURN(std::optional<ResumePoint> found, FindRewindPoint(out, last, interval));
  RETURN_IF_ERROR(SayFound(key, found, processes));
  return found;
}

absl::StatusOr<std::optional<ResumePoint>> AgreeOnResumePoint(const ResumeRequest& request, bool leads,
                                                              launch::Client* processes) {
  constexpr const char* kKey = "resume from";
  if (!leads) return OpenAsRank0(kKey, processes);
  ASSIGN_OR_RETURN(std::optional<ResumePoint> found, FindResumePoint(request));
  RETURN_IF_ERROR(SayFound(kKey, found, processes));
  return found;
}

absl::Status AgreeOnRecipe(const recipe::Recipe& recipe, bool leads, launch::Client* processes) {
  constexpr const char* kKey = "recipe";
  if (leads) return processes->Set(kKey, recipe::ToToml(recipe));
  ASSIGN_OR_RETURN(const std::string text, processes->Get(kKey));
  const recipe::LoadResult first = model::LoadText(text, "the recipe of rank 0");
  if (!first.ok()) return DataLoss("the recipe of rank 0 cannot be read");
  std::string differences;
  for (const recipe::Change& change : recipe::Diff(first.recipe, recipe)) {
    differences += fmt::format("\n    {}: {} on rank 0, {} here", change.key, change.before, change.after);
  }
  if (differences.empty()) return absl::OkStatus();
  return FailedPrecondition("the recipe is not that of rank 0:{}", differences);
}

absl::Status AgreeOnData(const data::Fingerprints& fingerprints, bool leads, launch::Client* processes) {
  constexpr std::size_t kMostBytes = std::size_t{512} << 10;  // a value has at most 1 MiB
  const auto key = [](std::size_t part) { return fmt::format("data {}", part); };
  if (leads) {
    const std::string text = nlohmann::json(fingerprints).dump();
    const std::size_t parts = 1 + text.size() / kMostBytes;
    RETURN_IF_ERROR(processes->Set("parts of data", fmt::format("{}", parts)));
    for (std::size_t part = 0; part < parts; ++part)
      RETURN_IF_ERROR(processes->Set(key(part), text.substr(part * kMostBytes, kMostBytes)));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::string parts, processes->Get("parts of data"));
  std::string text;
  for (std::size_t part = 0; fmt::format("{}", part) != parts; ++part) {
    ASSIGN_OR_RETURN(const std::string more, processes->Get(key(part)));
    text += more;
  }
  ASSIGN_OR_RETURN(const nlohmann::json first, ParseJson(text, "the fingerprints of rank 0"));
  const std::string differences = OtherFiles(first.get<data::Fingerprints>(), fingerprints);
  if (differences.empty()) return absl::OkStatus();
  return FailedPrecondition("the data is not that of rank 0:{}", differences);
}

}  // namespace engine::train
