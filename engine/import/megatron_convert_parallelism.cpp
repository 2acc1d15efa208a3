#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/import/megatron_writer.h"

namespace engine::import {
namespace {

constexpr const char* kPerStage = "--num-layers-per-virtual-pipeline-stage";
constexpr const char* kFirst = "--decoder-first-pipeline-num-layers";
constexpr const char* kLast = "--decoder-last-pipeline-num-layers";

// How many ranks share what: the degrees that the command leaves open, and what they shard.
class DegreesConverter : MegatronWriter {
 public:
  DegreesConverter(const MegatronArguments& arguments, MegatronSettings* settings, MegatronRemarks* remarks)
      : MegatronWriter(arguments, settings, remarks) {}

  void Convert() {
    const std::int64_t tp = Degree("parallelism.tp");
    const std::int64_t pp = Degree("parallelism.pp");
    const std::int64_t cp = Degree("parallelism.cp");
    const MegatronWorld& world = a_.command().world;
    const std::int64_t ep =
        a_.Has("--num-experts")
            ? std::max<std::int64_t>(1, a_.Int("--expert-model-parallel-size").value_or(1))
            : 1;
    const std::int64_t dp = std::max<std::int64_t>(1, world.ranks / (tp * pp * cp * ep));
    Set("parallelism.dp", dp,
        fmt::format("{} ranks / (tp {} · pp {} · cp {}{})", world.ranks, tp, pp, cp,
                    ep > 1 ? fmt::format(" · ep {}", ep) : ""));
    if (ep > 1) {
      Set("parallelism.ep", ep, fmt::format("a part of Megatron-LM's dp {}", dp * ep),
          "--expert-model-parallel-size");
    }
    ExpertTp(tp);
    if (a_.Has("--sequence-parallel")) {
      if (tp > 1) {
        Set("parallelism.sequence_parallel", true, "", "--sequence-parallel");
      } else {
        Remark("--sequence-parallel", "no effect without tp");
      }
    }
    ZeroStage();
  }

 private:
  std::int64_t Degree(const char* key) const { return std::max<std::int64_t>(1, IntOf(key, 1)); }

  // The rules say that it is tp, the default, or 1.
  void ExpertTp(std::int64_t tp) {
    constexpr const char* kFlag = "--expert-tensor-parallel-size";
    if (!a_.Has("--num-experts") || !a_.Has(kFlag)) return;
    if (a_.Int(kFlag) == tp) {
      Remark(kFlag, "as tp, experts are split as all weights are");
    } else {
      Set("parallelism.expert_tp", std::int64_t{1}, "each rank of tp has whole experts", kFlag);
    }
  }

  void ZeroStage() {
    const char* fsdp = a_.Has("--use-megatron-fsdp") ? "--use-megatron-fsdp"
                       : a_.Has("--use-custom-fsdp") ? "--use-custom-fsdp"
                       : a_.Has("--use-torch-fsdp2") ? "--use-torch-fsdp2"
                                                     : nullptr;
    const char* strategy = "--data-parallel-sharding-strategy";
    if (a_.Has("--use-distributed-optimizer")) {
      Set("parallelism.zero_stage", std::int64_t{1}, "", "--use-distributed-optimizer");
    }
    if (fsdp == nullptr) {
      if (a_.Has(strategy)) Remark(strategy, "no effect without FSDP");
      return;
    }
    const std::string text = a_.Text(strategy).value_or("optim_grads_params");
    constexpr std::array<std::string_view, 4> kStrategies = {"no_shard", "optim", "optim_grads",
                                                             "optim_grads_params"};
    const auto* found = std::find(kStrategies.begin(), kStrategies.end(), text);
    if (found == kStrategies.end()) {
      a_.Error(strategy, fmt::format("{} {} is unknown", strategy, Shown(text)),
               "no_shard, optim, optim_grads or optim_grads_params");
      return;
    }
    Set("parallelism.zero_stage", static_cast<std::int64_t>(found - kStrategies.begin()), text, fsdp);
  }
};

// Which layers each chunk of the pipeline has.
class StagesConverter : MegatronWriter {
 public:
  StagesConverter(const MegatronArguments& arguments, MegatronSettings* settings, MegatronRemarks* remarks)
      : MegatronWriter(arguments, settings, remarks) {}

  // Chunks of the pipeline: equal ones are written down too, as the planner would balance head and embedding.
  void Convert() {
    const std::int64_t pp = PipelineStages();
    const std::int64_t layers = IntOf("model.layers", 0);
    constexpr std::int64_t kMostStages = 2000;
    if (pp == 1 || pp > kMostStages || layers < 1 || layers > kMostStages) return;
    const std::int64_t chunks_a_rank = VirtualStages(pp, layers);
    if (chunks_a_rank == 0 || chunks_a_rank > kMostStages) return;
    if (chunks_a_rank > 1) {
      Set("parallelism.virtual_stages", chunks_a_rank, "",
          a_.Has(kPerStage) ? kPerStage : "--num-virtual-stages-per-pipeline-rank");
    }
    const std::int64_t chunks = pp * chunks_a_rank;
    std::vector<std::int64_t> list;
    if (a_.Has(kFirst) || a_.Has(kLast)) {
      list = UnevenEnds(chunks, layers);
    } else {
      list = EvenChunks(chunks, layers);
    }
    if (!list.empty())
      Set("parallelism.layers_per_stage", std::move(list), "as Megatron-LM cuts them", StagesFlag());
  }

 private:
  std::int64_t PipelineStages() const { return std::max<std::int64_t>(1, IntOf("parallelism.pp", 1)); }

  const char* StagesFlag() const {
    return a_.Has(kFirst) ? kFirst : a_.Has(kLast) ? kLast : "--pipeline-model-parallel-size";
  }

  // 0: they cannot be equal, which is reported.
  std::int64_t VirtualStages(std::int64_t pp, std::int64_t layers) {
    if (const std::optional<std::int64_t> stages = a_.Int("--num-virtual-stages-per-pipeline-rank")) {
      return std::max<std::int64_t>(1, *stages);
    }
    const std::optional<std::int64_t> each = a_.Int(kPerStage);
    if (!each) return 1;
    if (*each > 0 && *each <= layers && layers % (pp * *each) == 0) return layers / (pp * *each);
    a_.Error(kPerStage,
             fmt::format("--num-layers {} cannot be cut into pp {} × chunks of {}", layers, pp, *each),
             "a divisor of the layers of a pipeline rank");
    return 0;
  }

  std::vector<std::int64_t> EvenChunks(std::int64_t chunks, std::int64_t layers) {
    const std::int64_t embedding = a_.Has("--account-for-embedding-in-pipeline-split") ? 1 : 0;
    const std::int64_t loss = a_.Has("--account-for-loss-in-pipeline-split") ? 1 : 0;
    const std::int64_t counted = layers + embedding + loss;
    if (counted % chunks != 0) {
      a_.Error(
          "--num-layers",
          fmt::format("--num-layers {}{} cannot be shared by {} pipeline chunks equally", layers,
                      counted > layers ? fmt::format(" (with embedding and loss {})", counted) : "", chunks),
          "--decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers cut unevenly");
      return {};
    }
    std::vector<std::int64_t> list(static_cast<std::size_t>(chunks), counted / chunks);
    list.front() -= embedding;
    list.back() -= loss;
    return list;
  }

  std::vector<std::int64_t> UnevenEnds(std::int64_t chunks, std::int64_t layers) {
    const std::int64_t pp = PipelineStages();
    if (chunks != pp) {
      a_.Error(StagesFlag(), fmt::format("{} with several chunks a rank cannot be imported", StagesFlag()),
               "one chunk a rank");
      return {};
    }
    const std::optional<std::int64_t> first = a_.Int(kFirst);
    const std::optional<std::int64_t> last = a_.Int(kLast);
    const auto is_possible = [&](const std::optional<std::int64_t>& end) {
      return !end || (*end >= 1 && *end <= layers);
    };
    const bool possible = is_possible(first) && is_possible(last);
    const std::int64_t between = pp - (first ? 1 : 0) - (last ? 1 : 0);
    const std::int64_t rest = possible ? layers - first.value_or(0) - last.value_or(0) : 0;
    if (!possible || rest < between || (between == 0 && rest != 0) || (between > 0 && rest % between != 0)) {
      a_.Error(StagesFlag(),
               fmt::format("--num-layers {} cannot be cut so: {} remain for {} pipeline stages", layers, rest,
                           between),
               "a multiple of these stages");
      return {};
    }
    std::vector<std::int64_t> list(static_cast<std::size_t>(pp), between > 0 ? rest / between : 0);
    if (first) list.front() = *first;
    if (last) list.back() = *last;
    return list;
  }
};

}  // namespace

void ConvertMegatronParallelism(const MegatronArguments& arguments, MegatronSettings* settings,
                                MegatronRemarks* remarks) {
  DegreesConverter(arguments, settings, remarks).Convert();
  StagesConverter(arguments, settings, remarks).Convert();
}

}  // namespace engine::import
