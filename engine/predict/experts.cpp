#include "engine/predict/experts.h"

#include <absl/container/flat_hash_map.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

#include "engine/base/units.h"
#include "engine/graph/dims.h"
#include "engine/ops/expert_passes.h"
#include "engine/ops/ops.h"
#include "engine/plan/print.h"
#include "engine/predict/cost.h"
#include "engine/predict/play.h"

namespace engine::predict {
namespace {

using plan::BufferRef;
using plan::Instruction;
using plan::Segment;

const plan::LocalValue* RowsOf(const plan::Plan& plan, const BufferRef& ref) {
  if (ref.value < 0) return nullptr;
  const plan::LocalValue& value = plan.values[static_cast<std::size_t>(ref.value)];
  const bool rows = value.local.rank() > 1 && value.layout.dims()[0] == graph::Dim::kSlot;
  return rows ? &value : nullptr;
}

// Bytes of a segment's rows that lie in slots, and of others the most at once.
struct RowBytes {
  std::int64_t in_slots = 0;
  std::int64_t at_once = 0;
};

RowBytes BytesOf(const plan::Plan& plan, const Segment& segment) {
  struct Life {
    std::size_t begin = 0, end = 0;
    std::int64_t bytes = 0;
  };
  absl::flat_hash_map<std::pair<std::int64_t, std::int64_t>, Life>
      lives;  // by place and size: of each, one after another
  RowBytes bytes;
  std::vector<std::int64_t> change(segment.instructions.size() + 1, 0);
  const auto close = [&](const Life& life) {
    change[life.begin] += life.bytes;
    change[life.end + 1] -= life.bytes;
  };
  for (std::size_t i = 0; i < segment.instructions.size(); ++i) {
    const Instruction& instruction = segment.instructions[i];
    for (const BufferRef& ref : instruction.inputs) {
      const auto known = lives.find({ref.offset, ref.elements});
      if (!ref.in_slot && known != lives.end() && RowsOf(plan, ref) != nullptr) known->second.end = i;
    }
    for (const BufferRef& ref : instruction.outputs) {
      if (RowsOf(plan, ref) == nullptr) continue;
      if (ref.in_slot) {
        bytes.in_slots += ref.bytes();
        continue;
      }
      Life& life = lives[{ref.offset, ref.elements}];
      if (life.bytes > 0) close(life);
      life = {.begin = i, .end = i, .bytes = ref.bytes()};
    }
  }
  for (const auto& [place, life] : lives) close(life);
  std::int64_t now = 0;
  for (const std::int64_t more : change) {
    now += more;
    bytes.at_once = std::max(bytes.at_once, now);
  }
  return bytes;
}

void SeeProduct(const plan::Plan& plan, const Instruction& product, ExpertUse* use) {
  const plan::LocalValue* rows = RowsOf(plan, product.outputs[0]);
  if (rows == nullptr || rows->local[0] <= use->row_bound) return;
  const plan::LocalValue& weight = plan.values[static_cast<std::size_t>(product.inputs[1].value)];
  use->row_bound = rows->local[0];
  use->here = weight.local[0];
  use->experts = product.attributes().Int("experts", use->here);
  use->top_k = product.attributes().Int("k", 1);
  use->mean_rows = product.work().results / static_cast<double>(rows->local.elements(1, rows->local.rank()));
}

// Of experts in passes, which have two products.
void SeePasses(const plan::Plan& plan, const Instruction& passes, ExpertUse* use) {
  const auto value = [&](int input) -> const plan::LocalValue& {
    return plan.values[static_cast<std::size_t>(passes.inputs[static_cast<std::size_t>(input)].value)];
  };
  const std::int64_t bound = value(ops::kPassChoiceOf).local[0];
  if (bound <= use->row_bound) return;
  use->row_bound = bound;
  use->here = value(ops::kPassW1).local[0];
  use->experts = passes.attributes().Int("experts", use->here);
  use->top_k = passes.attributes().Int("k", 1);
  use->mean_rows = static_cast<double>(passes.inputs[ops::kPassChoice].elements * use->here) /
                   static_cast<double>(use->experts);
}

std::int64_t ExchangedOverEp(const Segment& segment) {
  std::int64_t bytes = 0;
  for (const Instruction& i : segment.instructions) {
    if (i.AsExchange() != nullptr && !i.IsBucketExchange() && i.group().axes.Has(graph::Axis::kEp))
      bytes += i.wire_bytes();
  }
  return bytes;
}

StageExperts StageOf(const plan::Plan& plan, const plan::StagePlan& stage, ExpertUse* use) {
  StageExperts of;
  for (const plan::Chunk& chunk : stage.chunks) {
    std::int64_t saved = 0;
    for (const std::int32_t index : {chunk.train().forward, chunk.train().backward, chunk.train().weights}) {
      if (index < 0) continue;
      const Segment& segment = stage.segments[static_cast<std::size_t>(index)];
      const RowBytes bytes = BytesOf(plan, segment);
      of.other_bytes = std::max(of.other_bytes, bytes.at_once);
      for (const Instruction& i : segment.instructions) {
        if (i.op() == &ops::kExpertPasses || i.op() == &ops::kExpertPassesGrad)
          of.other_bytes = std::max(of.other_bytes, i.scratch.bytes());
      }
      of.exchange_bytes += ExchangedOverEp(segment);
      if (index != chunk.train().forward) continue;
      saved = bytes.in_slots / (segment.halves ? 2 : 1);  // each half has a slot
      std::int64_t products = 0;                          // of a layer two, once for each half
      for (const Instruction& i : segment.instructions) {
        if (i.op() == &ops::kExpertPasses) {
          products += 2;
          SeePasses(plan, i, use);
        }
        if (!i.kernel().starts_with(ops::kGroupedLinear.name) || i.inputs.size() < 3) continue;
        ++products;
        SeeProduct(plan, i, use);
      }
      of.layers += products / (segment.halves ? 4 : 2);
    }
    of.saved_bytes += saved * chunk.slots;
  }
  if (of.layers > 0) of.exchange_bytes /= of.layers;
  return of;
}

std::string Times(double times) { return fmt::format("{:.2f} ×", times); }

}  // namespace

ExpertUse ExpertsOf(const plan::Plan& plan) {
  ExpertUse use;
  use.ranks = plan.mesh.size(graph::Axis::kEp);
  for (const plan::StagePlan& stage : plan.stages) use.stages.push_back(StageOf(plan, stage, &use));
  return use;
}

nlohmann::ordered_json ExpertsToJson(const ExpertUse& use) {
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (const StageExperts& stage : use.stages) {
    stages.push_back({{"layers", stage.layers},
                      {"saved_bytes", stage.saved_bytes},
                      {"other_bytes", stage.other_bytes},
                      {"exchange_bytes", stage.exchange_bytes}});
  }
  return {{"of_layer", use.experts},    {"of_rank", use.here},        {"top_k", use.top_k},
          {"ranks", use.ranks},         {"mean_rows", use.mean_rows}, {"row_bound", use.row_bound},
          {"stages", std::move(stages)}};
}

double FullestRank(const ExpertUse& use, double exponent) {
  if (use.here == 0 || use.here >= use.experts) return 1;
  std::vector<double> weights;
  for (std::int64_t e = 0; e < use.experts; ++e)
    weights.push_back(std::pow(static_cast<double>(e + 1), -exponent));
  // A token chooses an expert once at most: the first ones, which would be chosen more often, are chosen by all tokens.
  double rest = std::accumulate(weights.begin(), weights.end(), 0.0);
  double left = static_cast<double>(use.top_k);
  double of_rank = 0;
  for (std::int64_t e = 0; e < use.here; ++e) {
    const double share = std::min(1.0, rest > 0 ? left * weights[static_cast<std::size_t>(e)] / rest : 0);
    of_rank += share;
    if (share < 1) continue;
    left -= 1;
    rest -= weights[static_cast<std::size_t>(e)];
  }
  const double mean = static_cast<double>(use.top_k * use.here) / static_cast<double>(use.experts);
  return of_rank / mean;
}

double FullestRankAtWorst(const ExpertUse& use) {
  if (use.here == 0) return 1;
  return static_cast<double>(std::min(use.top_k, use.here) * use.experts) /
         static_cast<double>(use.top_k * use.here);
}

double PredictAtLoad(const plan::Plan& plan, const recipe::Cluster& cluster, double times_mean_rows) {
  CostModel costs(plan, cluster);
  costs.ScaleRows(times_mean_rows);
  return Play({.plan = plan, .costs = costs, .program = plan.ProgramOf(plan::kTrainForm)}).end_s;
}

std::string ExpertsText(const plan::Plan& plan, const recipe::Cluster& cluster,
                        const Prediction& prediction) {
  const ExpertUse use = ExpertsOf(plan);
  if (use.experts == 0) return "";
  std::vector<std::vector<std::string>> rows;
  for (const StageExperts& stage : use.stages) {
    rows.push_back({WithThousands(stage.layers), FormatBytes(stage.saved_bytes),
                    FormatBytes(stage.other_bytes), FormatBytes(stage.exchange_bytes)});
  }
  std::string text = fmt::format(
      "\nexperts: {} of {} on a rank, {} for a token; {} rows of a microbatch{} where all are chosen alike, "
      "and room for {} "
      "({})\n",
      use.here, use.experts, use.top_k, WithThousands(std::llround(use.mean_rows)),
      plan.halves > 1 ? "'s half" : "", WithThousands(use.row_bound),
      Times(static_cast<double>(use.row_bound) / use.mean_rows));
  text += plan::StageTable({"layers", "rows saved", "rows of a pass", "sent over ep a layer"}, rows);
  const double zipf = FullestRank(use, kZipf);
  const double worst = FullestRankAtWorst(use);
  if (worst <= 1) return text + "  every rank has all experts, so that no load makes others wait\n";
  text += fmt::format(
      "  the fullest rank has {} the mean rows where experts are chosen as Zipf's law has it (exponent {}), "
      "{} where all "
      "choose one rank's\n",
      Times(zipf), kZipf, Times(worst));
  if (!prediction.has_times()) return text;
  const auto at = [&](double load) {
    const double seconds = PredictAtLoad(plan, cluster, load);
    return fmt::format("{:.1f} ms ({})", 1e3 * seconds, Times(seconds / prediction.iteration_s));
  };
  return text + fmt::format("  predicted iteration at these loads: {}, {}\n", at(zipf), at(worst));
}

}  // namespace engine::predict
