#include "engine/train/start.h"

#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "engine/checkpoint/layout.h"
#include "engine/checkpoint/store.h"
#include "engine/model/load.h"
#include "engine/plan/optimizer.h"
#include "engine/recipe/print.h"
#include "engine/train/run.h"

namespace engine::train {
namespace {

constexpr const char* kCheckpointKey = "training.weights_from";
constexpr const char* kUpcycleKey = "training.upcycle";

absl::Status ErrorAt(const recipe::Recipe& recipe, const char* key, std::string message,
                     std::string hint = "") {
  Diagnostic diagnostic{.span = {recipe.path, 0, 0, 1},
                        .message = std::move(message),
                        .hint = std::move(hint),
                        .source_line = "",
                        .code = "E209"};
  if (const auto found = recipe.provenance.find(key); found != recipe.provenance.end()) {
    diagnostic.span = found->second.span;
    diagnostic.source_line = found->second.source_line;
  }
  std::string text = Format(diagnostic);
  text.pop_back();  // the line's end
  return absl::FailedPreconditionError(text);
}

// The checkpoint's folder, where the recipe names that of a run.
absl::StatusOr<std::string> FolderOf(const recipe::Recipe& recipe, std::vector<std::string>* notes) {
  const std::string& given = recipe.training.weights_from;
  std::error_code error;
  if (!std::filesystem::is_directory(given, error)) {
    return ErrorAt(recipe, kCheckpointKey, fmt::format("there is no folder {}", given),
                   "the folder of a run, or of one of its checkpoints, from where the program is started");
  }
  if (std::filesystem::exists(std::filesystem::path(given) / checkpoint::kManifestName, error)) return given;
  ASSIGN_OR_RETURN(const std::optional<std::string> newest,
                   checkpoint::FindNewestWhole(CheckpointRootIn(given), notes));
  if (newest) return *newest;
  std::string reasons;
  for (const std::string& note : *notes) reasons += "; " + note;
  return ErrorAt(recipe, kCheckpointKey, fmt::format("{} holds no whole checkpoint{}", given, reasons));
}

// What does not fit, in the order in which it was found.
class Misfits {
 public:
  void Add(std::string what) {
    if (count_++ >= kMostNamed) return;
    text_ += (text_.empty() ? "" : "; ") + std::move(what);
  }
  bool any() const { return count_ > 0; }
  std::string Text() const {
    return count_ <= kMostNamed ? text_ : fmt::format("{}; and {} more", text_, count_ - kMostNamed);
  }

 private:
  static constexpr int kMostNamed = 5;
  std::string text_;
  int count_ = 0;
};

// Matches the plan's parameters with the tensors of a checkpoint.
class Matching {
 public:
  Matching(const recipe::Recipe& recipe, const checkpoint::Reader& reader, const plan::Plan& plan)
      : recipe_(recipe), reader_(reader), plan_(plan) {}

  absl::Status Run() {
    for (const plan::PlanParameter& parameter : plan_.parameters) {
      sources_.push_back(SourceOf(parameter));
      used_.insert(sources_.back().tensor);
    }
    FindUnused();
    if (misfits_.any()) {
      return ErrorAt(
          recipe_, kCheckpointKey,
          fmt::format("checkpoint {} does not fit this model: {}", reader_.folder(), misfits_.Text()), hint_);
    }
    if (recipe_.training.upcycle && upcycled_ == 0) {
      return ErrorAt(recipe_, kUpcycleKey,
                     fmt::format("checkpoint {} has experts of its own, so that none is made of a dense part",
                                 reader_.folder()),
                     "upcycle = false takes them as they are");
    }
    return absl::OkStatus();
  }

  std::vector<state::WeightSource> sources() && { return std::move(sources_); }
  std::int64_t upcycled() const { return upcycled_; }

 private:
  state::WeightSource SourceOf(const plan::PlanParameter& parameter) {
    const std::string& name = parameter.name;
    const Shape& shape = parameter.logical_shape;
    if (const checkpoint::TensorInfo* info = reader_.Find(name); info != nullptr) {
      if (info->shape != shape)
        misfits_.Add(
            fmt::format("{} is {} there, but {} here", name, info->shape.ToString(), shape.ToString()));
      else if (info->dtype != DType::kF32)
        misfits_.Add(fmt::format("{} is {} there, not f32", name, Name(info->dtype)));
      return {.tensor = name};
    }
    const bool of_router = parameter.role == graph::Role::kRouter || parameter.role == graph::Role::kBalance;
    if (recipe_.training.upcycle && of_router) return {};
    const checkpoint::TensorInfo* dense = DenseOf(parameter);
    if (dense == nullptr) {
      misfits_.Add(fmt::format("{} {} is not there", name, shape.ToString()));
      return {};
    }
    if (!recipe_.training.upcycle) {
      misfits_.Add(fmt::format("{} {} is not there, but {} {}", name, shape.ToString(), dense->name,
                               dense->shape.ToString()));
      hint_ = "training.upcycle = true makes each expert a copy of the dense part";
      return {.tensor = dense->name};
    }
    ++upcycled_;
    if (!FitsAnExpert(dense->shape, shape)) {
      misfits_.Add(fmt::format("{} is {} there, and an expert of {} {} is no whole copy of it", dense->name,
                               dense->shape.ToString(), name, shape.ToString()));
      hint_ =
          "give an expert the dense part's width and form: experts that are parts of it (granular upcycling) "
          "are "
          "not built";
    }
    return {.tensor = dense->name, .each_expert = true};
  }

  static bool FitsAnExpert(const Shape& dense, const Shape& experts) {
    for (int dim = 1; dim < experts.rank(); ++dim) {
      if (dense.rank() != experts.rank() - 1 || dense[dim - 1] != experts[dim]) return false;
    }
    return true;
  }

  // "layers.0.mlp.fc1.weight" of "layers.0.mlp.experts.fc1.weight": the tensor whose name lacks one part of the matrix's;
  // null if there is none.
  const checkpoint::TensorInfo* DenseOf(const plan::PlanParameter& parameter) const {
    if (parameter.role != graph::Role::kMatrix) return nullptr;
    const std::string& name = parameter.name;
    for (size_t begin = 0; begin < name.size();) {
      const size_t dot = name.find('.', begin);
      if (dot == std::string::npos) break;
      const checkpoint::TensorInfo* info = reader_.Find(name.substr(0, begin) + name.substr(dot + 1));
      if (info != nullptr && info->dtype == DType::kF32) return info;
      begin = dot + 1;
    }
    return nullptr;
  }

  // Weights of the checkpoint, which an optimizer has states of, that the model has no use for.
  void FindUnused() {
    for (const checkpoint::TensorInfo& info : reader_.tensors()) {
      if (used_.contains(info.name)) continue;
      const bool trained = std::any_of(
          plan::AllOptimizers().begin(), plan::AllOptimizers().end(),
          [&](const plan::OptimizerDef& optimizer) {
            return reader_.Find(fmt::format("{}/{}", optimizer.states[0].folder, info.name)) != nullptr;
          });
      if (trained) misfits_.Add(fmt::format("{} {} is not here", info.name, info.shape.ToString()));
    }
  }

  const recipe::Recipe& recipe_;
  const checkpoint::Reader& reader_;
  const plan::Plan& plan_;
  std::vector<state::WeightSource> sources_;
  absl::flat_hash_set<std::string> used_;  // names of the checkpoint's tensors
  std::int64_t upcycled_ = 0;
  Misfits misfits_;
  std::string hint_;
};

// Keys of the model that may change what the weights mean. Where experts replace dense parts, steps differ everywhere.
void CompareModels(const recipe::Recipe& recipe, const checkpoint::Reader& reader,
                   std::vector<std::string>* notes) {
  if (recipe.training.upcycle) return;
  const recipe::LoadResult before =
      model::LoadText(reader.metadata().recipe_toml, reader.folder() + " (recipe)");
  if (!before.ok()) return;  // written by a version with other keys: names and shapes decide
  for (const recipe::Change& change : recipe::Diff(before.recipe, recipe)) {
    if (!change.key.starts_with("model.") && !change.key.starts_with("block.")) continue;
    notes->push_back(
        fmt::format("not as in the checkpoint: {}: {} → {}", change.key, change.before, change.after));
  }
}

absl::StatusOr<StartPoint> OpenStart(const recipe::Recipe& recipe, const plan::Plan& plan,
                                     const std::string& folder, std::vector<std::string> notes) {
  absl::StatusOr<checkpoint::Reader> reader = checkpoint::Reader::Open(folder);
  if (!reader.ok()) return ErrorAt(recipe, kCheckpointKey, Message(reader.status()));
  Matching matching(recipe, *reader, plan);
  RETURN_IF_ERROR(matching.Run());
  CompareModels(recipe, *reader, &notes);
  const std::int64_t upcycled = matching.upcycled();
  return StartPoint{*std::move(reader), std::move(matching).sources(), upcycled, std::move(notes)};
}

}  // namespace

std::string StartPoint::Summary() const {
  std::string text =
      fmt::format("weights of {} after iteration {}", reader.folder(), reader.metadata().iteration);
  if (upcycled == 0) return text;
  return text + fmt::format(", {} matrices of experts as copies of dense ones, routers drawn", upcycled);
}

absl::StatusOr<std::optional<StartPoint>> FindStart(const recipe::Recipe& recipe, const plan::Plan& plan) {
  if (recipe.training.weights_from.empty()) return std::nullopt;
  std::vector<std::string> notes;
  ASSIGN_OR_RETURN(const std::string folder, FolderOf(recipe, &notes));
  return OpenStart(recipe, plan, folder, std::move(notes));
}

absl::StatusOr<std::optional<StartPoint>> AgreeOnStart(const recipe::Recipe& recipe, const plan::Plan& plan,
                                                       bool leads, launch::Client* processes) {
  constexpr const char* kKey = "start from";
  if (recipe.training.weights_from.empty()) return std::nullopt;
  if (leads) {
    ASSIGN_OR_RETURN(std::optional<StartPoint> found, FindStart(recipe, plan));
    if (processes == nullptr) return found;
    RETURN_IF_ERROR(processes->Set(kKey, std::filesystem::absolute(found->reader.folder()).string()));
    return found;
  }
  ASSIGN_OR_RETURN(const std::string folder, processes->Get(kKey));
  return OpenStart(recipe, plan, folder, {});
}

}  // namespace engine::train
