#include "engine/train/start.h"

#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <utility>

#include "engine/checkpoint/layout.h"
#include "engine/checkpoint/read.h"
#include "engine/checkpoint/store.h"
#include "engine/hf/family_def.h"
#include "engine/hf/model_folder.h"
#include "engine/model/load.h"
#include "engine/model/lora.h"
#include "engine/plan/optimizer.h"
#include "engine/recipe/print.h"
#include "engine/train/run.h"

namespace engine::train {
namespace {

constexpr const char* kWeightsKey = "training.weights_from";
constexpr const char* kMatchKey = "training.weights_match";
constexpr const char* kUpcycleKey = "training.upcycle";

Diagnostic DiagnosticAt(const recipe::Recipe& recipe, const char* key, std::string message,
                        std::string hint) {
  Diagnostic diagnostic{.span = {recipe.path, 0, 0, 1},
                        .message = std::move(message),
                        .hint = std::move(hint),
                        .source_line = "",
                        .code = "E209"};
  if (const auto found = recipe.provenance.find(key); found != recipe.provenance.end()) {
    diagnostic.span = found->second.span;
    diagnostic.source_line = found->second.source_line;
  }
  return diagnostic;
}

// A recipe whose first weights are looked for, and what is wrong with them.
struct Search {
  const recipe::Recipe& recipe;
  bool checksums = true;  // of a run's checkpoints, to know the newest whole one
  Diagnostic error = {};

  absl::Status Error(const char* key, std::string message, std::string hint = "") {
    error = DiagnosticAt(recipe, key, std::move(message), std::move(hint));
    std::string text = Format(error);
    text.pop_back();  // the line's end
    return absl::FailedPreconditionError(text);
  }
};

constexpr const char* kFolderHint =
    "the folder of a run, of one of its checkpoints, or of a Hugging Face model, from where the program is "
    "started";

// The newest checkpoint that opens, whatever its checksums.
absl::StatusOr<std::optional<std::string>> FindNewest(const std::string& root,
                                                      std::vector<std::string>* notes) {
  ASSIGN_OR_RETURN(std::vector<std::int64_t> iterations, checkpoint::ListIterations(root));
  std::reverse(iterations.begin(), iterations.end());
  for (const std::int64_t iteration : iterations) {
    const std::string folder = checkpoint::IterationPath(root, iteration);
    const absl::Status status = checkpoint::Reader::Open(folder).status();
    if (status.ok()) return folder;
    notes->push_back(Message(status));
  }
  return std::nullopt;
}

// The folder of a checkpoint, where the recipe names that of a run; that of a Hugging Face model as it is.
absl::StatusOr<std::string> FolderOf(Search* search, std::vector<std::string>* notes) {
  const std::string& given = search->recipe.training.weights_from;
  std::error_code error;
  if (!std::filesystem::is_directory(given, error)) {
    return search->Error(kWeightsKey, fmt::format("there is no folder {}", given), kFolderHint);
  }
  if (std::filesystem::exists(std::filesystem::path(given) / checkpoint::kManifestName, error)) return given;
  if (hf::IsModelFolder(given)) return given;
  const std::string root = CheckpointRootIn(given);
  ASSIGN_OR_RETURN(const std::optional<std::string> newest,
                   search->checksums ? checkpoint::FindNewestWhole(root, notes) : FindNewest(root, notes));
  if (newest) return *newest;
  std::string reasons;
  for (const std::string& note : *notes) reasons += "; " + note;
  return search->Error(kWeightsKey, fmt::format("{} holds no whole checkpoint{}", given, reasons));
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

// "layers.32 to layers.35" and the like: names of one layer after another, which differ in its number alone, are one entry.
std::string Compact(const std::vector<std::string>& names) {
  constexpr std::size_t kMostEntries = 8;
  std::vector<std::string> entries;
  std::string stack;
  std::int64_t first = 0, last = 0;
  const auto close = [&] {
    if (stack.empty()) return;
    entries.push_back(first == last ? fmt::format("{}.{}", stack, first)
                                    : fmt::format("{}.{} to {}.{}", stack, first, stack, last));
    stack.clear();
  };
  for (const std::string& name : names) {
    const std::size_t dot = name.find('.');
    const std::size_t next = dot == std::string::npos ? dot : name.find('.', dot + 1);
    std::int64_t layer = -1;
    if (next != std::string::npos) {
      const char* end = name.data() + next;
      if (std::from_chars(name.data() + dot + 1, end, layer).ptr != end) layer = -1;
    }
    if (layer < 0) {
      close();
      entries.push_back(name);
    } else if (const std::string own = name.substr(0, dot);
               own == stack && (layer == last || layer == last + 1)) {
      last = layer;
    } else {
      close();
      stack = own;
      first = last = layer;
    }
  }
  close();
  const std::size_t shown = std::min(entries.size(), kMostEntries);
  std::string text;
  for (std::size_t i = 0; i < shown; ++i) text += (i == 0 ? "" : ", ") + entries[i];
  if (shown < entries.size()) text += fmt::format(", and {} more", entries.size() - shown);
  return text;
}

// What optimizers and states keep has names in folders: "adam.m/…".
bool IsWeight(const std::string& name) { return name.find('/') == std::string::npos; }

// Matches the plan's parameters with the tensors of a folder.
class Matching {
 public:
  Matching(Search* search, const checkpoint::TensorSource& weights, const std::string& folder,
           const plan::Plan& plan)
      : search_(search), recipe_(search->recipe), weights_(weights), folder_(folder), plan_(plan) {
    for (const checkpoint::TensorInfo& info : weights_.tensors()) {
      has_states_ = has_states_ || !IsWeight(info.name);
    }
  }

  absl::Status Run() {
    for (const plan::PlanParameter& parameter : plan_.parameters) {
      sources_.push_back(SourceOf(parameter));
      used_.insert(sources_.back().tensor);
    }
    FindUnused();
    if (misfits_.any()) {
      return search_->Error(kWeightsKey,
                            fmt::format("{} does not fit this model: {}", folder_, misfits_.Text()), hint_);
    }
    if (used_.empty() || (used_.size() == 1 && used_.contains(""))) {
      return search_->Error(kMatchKey, fmt::format("{} has no tensor of this model", folder_));
    }
    if (recipe_.training.upcycle && upcycled_ == 0) {
      return search_->Error(
          kUpcycleKey,
          fmt::format("{} has experts of its own, so that none is made of a dense part", folder_),
          "upcycle = false takes them as they are");
    }
    return absl::OkStatus();
  }

  std::vector<state::WeightSource> sources() && { return std::move(sources_); }
  std::int64_t upcycled() const { return upcycled_; }
  // What is not as in the folder, for the log.
  std::vector<std::string> Notes() const {
    std::vector<std::string> notes;
    if (!drawn_.empty())
      notes.push_back(
          fmt::format("drawn, as {} has them not: {} ({} tensors)", folder_, Compact(drawn_), drawn_.size()));
    if (adapters_drawn_ > 0)
      notes.push_back(
          fmt::format("adapters that {} has not begin anew: {} tensors", folder_, adapters_drawn_));
    if (!left_.empty())
      notes.push_back(fmt::format("left in {}, as the model has no place for them: {} ({} tensors)", folder_,
                                  Compact(left_), left_.size()));
    for (const std::string& grown : grown_) notes.push_back(grown);
    return notes;
  }

 private:
  bool some() const { return recipe_.training.weights_match == "some"; }

  state::WeightSource SourceOf(const plan::PlanParameter& parameter) {
    const std::string& name = parameter.name;
    const Shape& shape = parameter.logical_shape;
    if (const checkpoint::TensorInfo* info = weights_.Find(name); info != nullptr) {
      if (info->dtype != DType::kF32) {
        misfits_.Add(fmt::format("{} is {} there, not f32", name, Name(info->dtype)));
      } else if (info->shape != shape) {
        return OfAnotherShape(name, info->shape, shape);
      }
      return {.tensor = name};
    }
    if (parameter.role == graph::Role::kAdapter) {  // beside what is there: new by nature
      ++adapters_drawn_;
      return {};
    }
    const bool of_router = parameter.role == graph::Role::kRouter || parameter.role == graph::Role::kBalance;
    if (recipe_.training.upcycle && of_router) return {};
    const checkpoint::TensorInfo* dense = DenseOf(parameter);
    if (dense == nullptr) {
      if (some()) {
        drawn_.push_back(name);
        return {};
      }
      misfits_.Add(fmt::format("{} {} is not there", name, shape.ToString()));
      HintAtMatch();
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

  // A table, or a head, of a smaller vocabulary fits with weights_match "some".
  state::WeightSource OfAnotherShape(const std::string& name, const Shape& there, const Shape& here) {
    Shape grown = there;
    if (grown.rank() > 0) grown[0] = here.rank() > 0 ? here[0] : 0;
    const bool fits = grown == here && here[0] == plan_.vocab && there[0] < here[0];
    if (fits && some()) {
      grown_.push_back(fmt::format("{}: rows {} to {} are the mean of the {} of {}", name, there[0],
                                   here[0] - 1, there[0], folder_));
      return {.tensor = name, .fewer_rows = true};
    }
    misfits_.Add(fmt::format("{} is {} there, but {} here", name, there.ToString(), here.ToString()));
    if (fits) HintAtMatch();
    return {.tensor = name};
  }

  void HintAtMatch() {
    if (hint_.empty()) {
      hint_ =
          "weights_match = \"some\" draws what is not there, leaves what is not here, and gives rows of a "
          "larger "
          "vocabulary the mean of the others";
    }
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
      const checkpoint::TensorInfo* info = weights_.Find(name.substr(0, begin) + name.substr(dot + 1));
      if (info != nullptr && info->dtype == DType::kF32) return info;
      begin = dot + 1;
    }
    return nullptr;
  }

  // Weights that the model has no use for; of a checkpoint of training, those that an optimizer has states of.
  void FindUnused() {
    for (const checkpoint::TensorInfo& info : weights_.tensors()) {
      if (used_.contains(info.name) || !IsWeight(info.name)) continue;
      const bool trained = std::any_of(
          plan::AllOptimizers().begin(), plan::AllOptimizers().end(),
          [&](const plan::OptimizerDef& optimizer) {
            return weights_.Find(fmt::format("{}/{}", optimizer.states[0].folder, info.name)) != nullptr;
          });
      if (has_states_ && !trained) continue;
      if (some()) {
        left_.push_back(info.name);
      } else {
        misfits_.Add(fmt::format("{} {} is not here", info.name, info.shape.ToString()));
        if (!model::StepOfAdapter(info.name).empty() && hint_.empty()) {
          hint_ =
              "`engine export hf RUN --merge` writes weights with their adapters added, to begin with; "
              "weights_match = \"some\" leaves the adapters behind";
        }
        HintAtMatch();
      }
    }
  }

  Search* search_;
  const recipe::Recipe& recipe_;
  const checkpoint::TensorSource& weights_;
  const std::string& folder_;  // as messages call it
  const plan::Plan& plan_;
  bool has_states_ = false;
  std::vector<state::WeightSource> sources_;
  absl::flat_hash_set<std::string> used_;  // names of the folder's tensors
  std::vector<std::string> drawn_, left_, grown_;
  std::int64_t upcycled_ = 0;
  std::int64_t adapters_drawn_ = 0;  // of adapters, which are listed apart: they are in every layer
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
    const bool of_adapters =
        change.key.starts_with("lora.") && before.recipe.lora.rank > 0 && recipe.lora.rank > 0;
    const bool of_model = change.key.starts_with("model.") || change.key.starts_with("block.");
    if (!of_model && !of_adapters) continue;
    notes->push_back(
        fmt::format("not as in the checkpoint: {}: {} → {}", change.key, change.before, change.after));
  }
}

absl::Status OpenCheckpoint(Search* search, StartPoint* start) {
  absl::StatusOr<checkpoint::Reader> reader = checkpoint::Reader::Open(start->folder);
  if (!reader.ok()) return search->Error(kWeightsKey, Message(reader.status()));
  CompareModels(search->recipe, *reader, &start->notes);
  start->summary =
      fmt::format("weights of {} after iteration {}", start->folder, reader->metadata().iteration);
  start->weights = std::make_unique<checkpoint::Reader>(*std::move(reader));
  return absl::OkStatus();
}

absl::Status OpenHuggingFace(Search* search, StartPoint* start) {
  absl::StatusOr<hf::ModelFolder> opened = hf::OpenModelFolder(start->folder);
  if (!opened.ok()) return search->Error(kWeightsKey, Message(opened.status()));
  if (!search->recipe.training.upcycle) {
    ASSIGN_OR_RETURN(const graph::Graph theirs, hf::GraphOfText(opened->model.recipe, start->folder));
    for (const std::string& difference :
         hf::Differences(hf::GraphOfRecipe(search->recipe), theirs, start->folder + "'s config"))
      start->notes.push_back("the model is not its weights': " + difference);
  }
  start->summary = fmt::format("weights of {} ({})", start->folder, opened->model.family);
  start->weights = std::move(opened->weights);
  return absl::OkStatus();
}

absl::StatusOr<StartPoint> OpenStart(Search* search, const plan::Plan& plan, const std::string& folder,
                                     std::vector<std::string> notes) {
  StartPoint start{
      .folder = folder, .weights = nullptr, .sources = {}, .notes = std::move(notes), .summary = {}};
  const bool is_checkpoint =
      std::filesystem::exists(std::filesystem::path(folder) / checkpoint::kManifestName);
  RETURN_IF_ERROR(is_checkpoint ? OpenCheckpoint(search, &start) : OpenHuggingFace(search, &start));
  const std::string called = (is_checkpoint ? "checkpoint " : "model ") + folder;
  Matching matching(search, *start.weights, called, plan);
  RETURN_IF_ERROR(matching.Run());
  for (std::string& note : matching.Notes()) start.notes.push_back(std::move(note));
  start.upcycled = matching.upcycled();
  start.sources = std::move(matching).sources();
  if (start.upcycled > 0) {
    start.summary +=
        fmt::format(", {} matrices of experts as copies of dense ones, routers drawn", start.upcycled);
  }
  start.summary += "; the optimizer begins anew";
  return start;
}

}  // namespace

absl::StatusOr<std::optional<StartPoint>> FindStart(const recipe::Recipe& recipe, const plan::Plan& plan) {
  if (recipe.training.weights_from.empty()) return std::nullopt;
  std::vector<std::string> notes;
  Search search{recipe};
  ASSIGN_OR_RETURN(const std::string folder, FolderOf(&search, &notes));
  return OpenStart(&search, plan, folder, std::move(notes));
}

std::optional<Diagnostic> CheckStart(const recipe::Recipe& recipe, const plan::Plan& plan) {
  const std::string& given = recipe.training.weights_from;
  if (given.empty()) return std::nullopt;
  std::error_code error;
  if (!std::filesystem::exists(given, error)) {
    Diagnostic note = DiagnosticAt(
        recipe, kWeightsKey, fmt::format("there is no folder {}, which a new run needs", given), kFolderHint);
    note.severity = Severity::kNote;
    note.code.clear();
    return note;
  }
  Search search{.recipe = recipe, .checksums = false};
  std::vector<std::string> notes;
  const absl::StatusOr<std::string> folder = FolderOf(&search, &notes);
  const absl::Status status = folder.ok() ? OpenStart(&search, plan, *folder, {}).status() : folder.status();
  if (status.ok()) return std::nullopt;
  if (search.error.message.empty()) return DiagnosticAt(recipe, kWeightsKey, Message(status), "");
  return search.error;
}

absl::StatusOr<std::optional<StartPoint>> AgreeOnStart(const recipe::Recipe& recipe, const plan::Plan& plan,
                                                       bool leads, launch::Client* processes) {
  constexpr const char* kKey = "start from";
  if (recipe.training.weights_from.empty()) return std::nullopt;
  if (leads) {
    ASSIGN_OR_RETURN(std::optional<StartPoint> found, FindStart(recipe, plan));
    if (processes == nullptr) return found;
    RETURN_IF_ERROR(processes->Set(kKey, std::filesystem::absolute(found->folder).string()));
    return found;
  }
  ASSIGN_OR_RETURN(const std::string folder, processes->Get(kKey));
  Search search{recipe};
  return OpenStart(&search, plan, folder, {});
}

}  // namespace engine::train
