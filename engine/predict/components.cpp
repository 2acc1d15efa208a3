#include "engine/predict/components.h"

#include <fmt/format.h>

#include <map>
#include <tuple>
#include <utility>

#include "engine/base/units.h"
#include "engine/plan/print.h"

namespace engine::predict {
namespace {

constexpr std::int32_t kTop = -1;  // the row around those that lie within none

// Of one component, without what lies within it.
struct Own {
  PassTimes times;
  std::int64_t parameters = 0, saved_bytes = 0;
  bool any() const { return times.total_s() > 0 || parameters > 0 || saved_bytes > 0; }
};

// Adds up components by rows. Layers of one stack that are alike share a row, which has the stack's place and name, and so do
// the components of one name within them.
class Rows {
 public:
  explicit Rows(const std::vector<graph::Component>& components)
      : components_(components), row_of_(components.size(), kUnknown) {}

  void Add(graph::ComponentId id, const Own& own) {
    for (std::int32_t row = RowOf(id); row != kTop; row = rows_[static_cast<size_t>(row)].around) {
      ComponentUse& use = rows_[static_cast<size_t>(row)].use;
      use.forward_s += own.times.forward_s;
      use.backward_s += own.times.backward_s;
      use.parameters += own.parameters;
      use.saved_bytes += own.saved_bytes;
    }
  }

  // The rows within this one, with what lies within them.
  std::vector<ComponentUse> Within(std::int32_t around) const {
    std::vector<ComponentUse> uses;
    for (size_t row = 0; row < rows_.size(); ++row) {
      if (rows_[row].around != around) continue;
      uses.push_back(rows_[row].use);
      uses.back().within = Within(static_cast<std::int32_t>(row));
    }
    return uses;
  }

 private:
  static constexpr std::int32_t kUnknown = -2;
  struct Row {
    ComponentUse use;
    std::int32_t around = kTop;
  };
  // The row around it, name, whether it is of layers, variant.
  using Key = std::tuple<std::int32_t, std::string, bool, std::string>;

  std::int32_t RowOf(graph::ComponentId id) {
    if (id == graph::kNoComponent) return kTop;
    const size_t index = static_cast<size_t>(id);
    if (row_of_[index] == kUnknown) row_of_[index] = NewRowOf(components_[index]);
    return row_of_[index];
  }

  std::int32_t NewRowOf(const graph::Component& component) {
    const graph::Component& place =
        component.is_layer ? components_[static_cast<size_t>(component.within)] : component;
    const std::int32_t around = RowOf(place.within);
    const auto [known, fresh] =
        known_.try_emplace(Key(around, place.name, component.is_layer, component.variant),
                           static_cast<std::int32_t>(rows_.size()));
    if (fresh) {
      Row& row = rows_.emplace_back();
      row.around = around;
      row.use.name = place.name;
      row.use.variant = component.variant;
    }
    rows_[static_cast<size_t>(known->second)].use.layers += component.is_layer ? 1 : 0;
    return known->second;
  }

  const std::vector<graph::Component>& components_;
  std::vector<std::int32_t> row_of_;  // by component
  std::vector<Row> rows_;
  std::map<Key, std::int32_t> known_;
};

void AddParameters(const plan::Plan& plan, const plan::StagePlan& stage, std::vector<Own>* owns) {
  for (const plan::Bucket& bucket : stage.buckets) {
    if (!bucket.owned) continue;
    for (const plan::Bucket::Item& item : bucket.items) {
      const graph::ComponentId reader = plan.parameters[static_cast<size_t>(item.parameter)].component;
      if (reader != graph::kNoComponent) (*owns)[static_cast<size_t>(reader)].parameters += item.elements;
    }
  }
}

// What the forward passes put into slots. Of values at one place it is the last that stays: the others are turned into it.
void AddSaved(const plan::StagePlan& stage, std::vector<Own>* owns) {
  for (const plan::Chunk& chunk : stage.chunks) {
    if (chunk.train().forward < 0) continue;
    std::map<std::int64_t, std::pair<graph::ComponentId, std::int64_t>> saved;  // by offset
    for (const plan::Instruction& i :
         stage.segments[static_cast<size_t>(chunk.train().forward)].instructions) {
      if (i.half == plan::Half::kSecond) continue;  // slots are counted in microbatches
      for (const plan::BufferRef& output : i.outputs) {
        if (output.in_slot) saved[output.offset] = {i.component, output.bytes()};
      }
    }
    for (const auto& [offset, of] : saved) {
      if (of.first != graph::kNoComponent)
        (*owns)[static_cast<size_t>(of.first)].saved_bytes += chunk.slots * of.second;
    }
  }
}

// "1.25 ms".
std::string Hundredths(double seconds) { return fmt::format("{:.2f} ms", 1e3 * seconds); }

using TextRow = std::vector<std::string>;

class ComponentTable {
 public:
  explicit ComponentTable(double iteration_s) : iteration_s_(iteration_s) {}

  void Add(const ComponentUse& use, std::size_t depth) {
    if (use.total_s() == 0 && use.parameters == 0 && use.saved_bytes == 0)
      return;  // part of another's kernel
    std::string name = std::string(2 * depth, ' ') + use.name;
    if (use.layers > 0) name += fmt::format(" × {}", use.layers);
    if (!use.variant.empty()) name += fmt::format(", {}", use.variant);
    AddKernels(std::move(name), use);
    rows_.back().push_back(WithThousands(use.parameters));
    rows_.back().push_back(FormatBytes(use.saved_bytes));
    for (const ComponentUse& inner : use.within) Add(inner, depth + 1);
  }
  void AddKernels(std::string name, const PassTimes& times) {
    rows_.push_back({std::move(name), Hundredths(times.forward_s), Hundredths(times.backward_s),
                     Hundredths(times.total_s()), Share(times.total_s())});
  }
  void AddTime(std::string name, double seconds) {
    rows_.push_back({std::move(name), "", "", Hundredths(seconds), Share(seconds)});
  }
  std::string Text() const { return plan::Table(rows_); }

 private:
  std::string Share(double seconds) const { return fmt::format("{:.1f}%", 100 * seconds / iteration_s_); }

  const double iteration_s_;
  std::vector<TextRow> rows_ = {{"component", "forward", "backward", "both", "share", "parameters", "saved"}};
};

}  // namespace

StageComponents UsesOf(const plan::Plan& plan, const plan::StagePlan& stage,
                       const std::vector<PassTimes>& times) {
  std::vector<Own> owns(plan.components.size());
  for (size_t c = 0; c < owns.size(); ++c) owns[c].times = times[c];
  AddParameters(plan, stage, &owns);
  AddSaved(stage, &owns);
  Rows rows(plan.components);
  for (size_t c = 0; c < owns.size(); ++c) {
    if (owns[c].any()) rows.Add(static_cast<graph::ComponentId>(c), owns[c]);
  }
  return {.uses = rows.Within(kTop), .other = times.back()};
}

std::string ComponentsText(const Prediction& prediction) {
  const std::size_t slowest = prediction.SlowestStage();
  const StageComponents& components = prediction.components[slowest];
  if (components.uses.empty()) return "";
  const StageTime& time = prediction.stages[slowest];
  ComponentTable table(prediction.iteration_s);
  for (const ComponentUse& use : components.uses) table.Add(use, 0);
  table.AddKernels("other kernels", components.other);
  table.AddTime("update", time.update_s);
  table.AddTime("exposed exchange", time.exposed_s);
  table.AddTime("bubble", time.bubble_s);
  const std::string which =
      prediction.stages.size() > 1
          ? fmt::format(", of one rank of stage {}, whose kernels take longest", slowest)
          : std::string(", of one rank");
  return fmt::format("\npredicted iteration by components of the model{}\n", which) +
         "(a row has all that lies within it; a kernel of several steps counts as one of them; saved: by "
         "forward for\n"
         "backward passes, of all microbatches in flight)\n" +
         table.Text();
}

nlohmann::ordered_json UsesToJson(const std::vector<ComponentUse>& uses) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ComponentUse& use : uses) {
    nlohmann::ordered_json item = {{"name", use.name}};
    if (use.layers > 0) item["layers"] = use.layers;
    if (!use.variant.empty()) item["variant"] = use.variant;
    item["forward_s"] = use.forward_s;
    item["backward_s"] = use.backward_s;
    item["parameters"] = use.parameters;
    item["saved_bytes"] = use.saved_bytes;
    if (!use.within.empty()) item["within"] = UsesToJson(use.within);
    list.push_back(std::move(item));
  }
  return list;
}

}  // namespace engine::predict
