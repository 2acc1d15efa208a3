#include "engine/hf/adapter.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "engine/base/status.h"
#include "engine/model/lora.h"

namespace engine::hf {
namespace {

using checkpoint::Box;
using checkpoint::TensorInfo;

constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kA = ".lora_a";
constexpr std::string_view kB = ".lora_b";
constexpr std::string_view kTheirA = ".lora_A.weight";
constexpr std::string_view kTheirB = ".lora_B.weight";
constexpr const char* kPrefix = "base_model.model.";

std::string Replaced(std::string_view name, std::string_view suffix, std::string_view by) {
  return std::string(name.substr(0, name.size() - suffix.size())) + std::string(by);
}

// B has a module's output as rows, whichever way the module keeps its own weight.
How HowOfB(How how) {
  if (how == How::kTransposed) return How::kSame;
  if (how == How::kQkvColumns) return How::kQkvRows;
  return how;
}

std::vector<WeightRow> RowsOfB(const std::vector<WeightRow>& rows) {
  std::vector<WeightRow> of_b;
  for (const WeightRow& row : rows) {
    const bool part = row.slice.count > 0 || row.how == How::kHeadRows;
    if (part || !row.ours.ends_with(kWeight)) continue;
    WeightRow b = row;
    b.ours = Replaced(row.ours, kWeight, kB);
    b.how = HowOfB(row.how);
    for (std::string& name : b.theirs) name = kPrefix + Replaced(name, kWeight, kTheirB);
    of_b.push_back(std::move(b));
  }
  return of_b;
}

bool IsTransposed(const std::vector<WeightRow>& rows) {
  return std::any_of(rows.begin(), rows.end(), [](const WeightRow& row) {
    return row.how == How::kTransposed || row.how == How::kQkvColumns;
  });
}

// The whole of A, for each module.
Mapping MappingOfA(const TensorInfo& a, const Mapping& b) {
  Mapping mapping{.parameter = a.name, .shape = a.shape, .parts = {}};
  std::set<std::string> modules;
  for (const Part& part : b.parts) modules.insert(Replaced(part.tensor, kTheirB, kTheirA));
  Shape strides = a.shape;
  std::int64_t stride = 1;
  for (int dim = a.shape.rank() - 1; dim >= 0; --dim) {
    strides[dim] = stride;
    stride *= a.shape[dim];
  }
  for (const std::string& name : modules) {
    mapping.parts.push_back({.tensor = name,
                             .shape = {a.shape[0], a.shape.elements() / a.shape[0]},
                             .box = checkpoint::WholeBox(a.shape),
                             .their_stride = strides});
  }
  return mapping;
}

std::string LastPart(const std::string& module) { return module.substr(module.rfind('.') + 1); }

// PEFT adapts every module whose name ends in a target: the last part of a name stands for all modules that have it, and where
// some of them have no adapter, whole names say which.
std::set<std::string> TargetsOf(const std::set<std::string>& adapted, const std::set<std::string>& all) {
  std::set<std::string> mixed;
  for (const std::string& module : all) {
    if (!adapted.contains(module)) mixed.insert(LastPart(module));
  }
  std::set<std::string> targets;
  for (const std::string& module : adapted)
    targets.insert(mixed.contains(LastPart(module)) ? module : LastPart(module));
  return targets;
}

// The modules of theirs that have a weight among the mappings' tensors.
std::set<std::string> ModulesOf(const std::vector<Mapping>& mappings) {
  std::set<std::string> modules;
  for (const Mapping& mapping : mappings) {
    for (const Part& part : mapping.parts) {
      if (part.tensor.ends_with(kWeight)) modules.insert(Replaced(part.tensor, kWeight, ""));
    }
  }
  return modules;
}

class MergedWeights : public checkpoint::TensorSource {
 public:
  MergedWeights(double scale, const checkpoint::TensorSource& source)
      : scale_(static_cast<float>(scale)), source_(source) {
    for (const TensorInfo& info : source.tensors()) {
      if (model::StepOfAdapter(info.name).empty()) tensors_.push_back(info);
    }
  }

  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* Find(const std::string& tensor) const override {
    return model::StepOfAdapter(tensor).empty() ? source_.Find(tensor) : nullptr;
  }

  absl::Status Read(const std::string& tensor, const Box& box, void* out) const override {
    RETURN_IF_ERROR(source_.Read(tensor, box, out));
    if (!tensor.ends_with(kWeight)) return absl::OkStatus();
    const TensorInfo* a = source_.Find(Replaced(tensor, kWeight, kA));
    const TensorInfo* b = source_.Find(Replaced(tensor, kWeight, kB));
    if (a == nullptr || b == nullptr) return absl::OkStatus();
    // W is [out…, in…], A [rank, in…], B [out…, rank].
    const int out_dims = b->shape.rank() - 1;
    const std::int64_t rank = a->shape[0];
    Box box_a{{0}, {rank}}, box_b;
    for (int dim = 0; dim < box.count.rank(); ++dim) {
      Box& of = dim < out_dims ? box_b : box_a;
      of.start.push_back(box.start[dim]);
      of.count.push_back(box.count[dim]);
    }
    box_b.start.push_back(0);
    box_b.count.push_back(rank);
    std::vector<float> low(static_cast<std::size_t>(box_a.count.elements()));
    std::vector<float> high(static_cast<std::size_t>(box_b.count.elements()));
    RETURN_IF_ERROR(source_.Read(a->name, box_a, low.data()));
    RETURN_IF_ERROR(source_.Read(b->name, box_b, high.data()));
    const std::int64_t columns = box_a.count.elements() / rank, rows = box_b.count.elements() / rank;
    std::vector<float> sums(static_cast<std::size_t>(columns));
    float* values = static_cast<float*>(out);
    for (std::int64_t row = 0; row < rows; ++row, values += columns) {
      std::fill(sums.begin(), sums.end(), 0.0F);
      for (std::int64_t r = 0; r < rank; ++r) {
        const float factor = high[static_cast<std::size_t>(row * rank + r)];
        const float* from = low.data() + r * columns;
        for (std::int64_t i = 0; i < columns; ++i) sums[static_cast<std::size_t>(i)] += factor * from[i];
      }
      for (std::int64_t i = 0; i < columns; ++i) values[i] += scale_ * sums[static_cast<std::size_t>(i)];
    }
    return absl::OkStatus();
  }

 private:
  const float scale_;
  const checkpoint::TensorSource& source_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace

absl::StatusOr<AdapterModel> AdapterOf(const recipe::Lora& lora, const std::vector<WeightRow>& rows,
                                       const Sizes& sizes, const std::vector<TensorInfo>& parameters,
                                       const std::string& base) {
  std::vector<TensorInfo> a, b, others;
  for (const TensorInfo& parameter : parameters) {
    if (model::StepOfAdapter(parameter.name).empty()) others.push_back(parameter);
    if (parameter.name.ends_with(kA)) a.push_back(parameter);
    if (parameter.name.ends_with(kB)) b.push_back(parameter);
  }
  AdapterModel adapter;
  const absl::StatusOr<std::vector<Mapping>> of_b = MappingsOf(RowsOfB(rows), sizes, b);
  if (!of_b.ok()) {
    return InvalidArgument("{}; an adapter of a part of a module has no form in PEFT's files: merge it",
                           Message(of_b.status()));
  }
  ASSIGN_OR_RETURN(const std::vector<Mapping> of_others, MappingsOf(rows, sizes, others));
  std::set<std::string> adapted;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const Mapping& mapping = (*of_b)[i];
    for (const Part& part : mapping.parts) {
      adapted.insert(Replaced(part.tensor, kTheirB, "").substr(std::string_view(kPrefix).size()));
    }
    const std::string name = Replaced(b[i].name, kB, kA);
    const auto found =
        std::find_if(a.begin(), a.end(), [&](const TensorInfo& info) { return info.name == name; });
    if (found == a.end()) return InvalidArgument("parameter {} is not there", name);
    adapter.mappings.push_back(MappingOfA(*found, mapping));
    adapter.mappings.push_back(mapping);
  }
  adapter.config = {{"base_model_name_or_path", base},
                    {"bias", "none"},
                    {"fan_in_fan_out", IsTransposed(rows)},
                    {"inference_mode", true},
                    {"init_lora_weights", true},
                    {"lora_alpha", lora.alpha},
                    {"lora_dropout", 0.0},
                    {"modules_to_save", nullptr},
                    {"peft_type", "LORA"},
                    {"r", lora.rank},
                    {"target_modules", TargetsOf(adapted, ModulesOf(of_others))},
                    {"task_type", "CAUSAL_LM"},
                    {"use_rslora", false}};
  return adapter;
}

std::unique_ptr<checkpoint::TensorSource> Merged(const recipe::Lora& lora,
                                                 const checkpoint::TensorSource& source) {
  return std::make_unique<MergedWeights>(lora.alpha / static_cast<double>(lora.rank), source);
}

}  // namespace engine::hf
