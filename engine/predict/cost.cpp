#include "engine/predict/cost.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <tuple>

#include "engine/graph/rows.h"
#include "engine/ops/expert_passes.h"
#include "engine/ops/ops.h"
#include "engine/predict/cost_table.h"

namespace engine::predict {
namespace {

// Of the other rank's term of a sum, where the kernel adds it.
double TermBytes(const plan::Instruction& instruction) {
  const plan::Kernel* kernel = instruction.AsKernel();
  return kernel != nullptr && kernel->adds ? static_cast<double>(kernel->adds->place.bytes()) : 0;
}

const KernelRate& RateOf(std::string_view kernel, bool cpu) {
  const std::span<const KernelRate> rows =
      cpu ? std::span<const KernelRate>(kCpuRates) : std::span<const KernelRate>(kCudaRates);
  const auto row =
      std::find_if(rows.begin(), rows.end(), [&](const KernelRate& r) { return r.kernel == kernel; });
  return row == rows.end() ? rows.back() : *row;
}

double ProductShare(const graph::Work& work) {
  if (work.depth == 0) return 1;
  const double waves = work.results / (kTile * kMultiprocessors) * std::max(1.0, work.depth / kSplit);
  return waves / (waves + kHalfWave) * work.depth / (work.depth + kHalfDepth);
}

// FLOPs that attention computes for each element of the queries and each key: in 2 products or 5.
double FlopsOfPair(const graph::Work& work) { return work.backward ? 10 : 4; }

// Seconds that the reference kernels take for attention.
double ReferenceSeconds(const plan::Instruction& instruction) {
  const ReferenceRate& rate = instruction.work().backward ? kReferenceBackward : kReferenceForward;
  const double head = instruction.work().head;
  const double pairs = instruction.work().flops / (FlopsOfPair(instruction.work()) * head);
  const double steps = std::exp2(std::ceil(std::log2(std::max(1.0, head / kWarpElements))));
  const graph::Attributes& attributes = instruction.attributes();
  const bool drops = attributes.Has("dropout") && attributes.Float("dropout") > 0;
  return pairs * (rate.pair_s + steps * rate.element_s + (drops ? rate.dropout_s : 0));
}

// The share of matmul_flops that attention reaches. `keys`: how many keys its last query sees.
double AttentionShare(double head, double keys, bool backward, bool cpu) {
  const std::span<const AttentionRate> rows =
      cpu ? std::span<const AttentionRate>(kCpuAttention) : std::span<const AttentionRate>(kCudaAttention);
  const auto of = [&](const AttentionRate& row) { return backward ? row.backward : row.forward; };
  double share = of(rows.back());
  if (head <= rows.front().head) {
    share = of(rows.front()) * head / rows.front().head;
  } else {
    for (size_t i = 1; i < rows.size(); ++i) {
      if (head > rows[i].head) continue;
      const double at = (head - rows[i - 1].head) / (rows[i].head - rows[i - 1].head);
      share = of(rows[i - 1]) + at * (of(rows[i]) - of(rows[i - 1]));
      break;
    }
  }
  return share * keys / (keys + (cpu ? kCpuHalfKeys : kCudaHalfKeys));
}

// The FLOPs that would take as long as this attention if they ran at matmul_flops. `masked`: pairs that are
// masked are computed, too.
double AttentionFlops(const plan::Instruction& instruction, bool masked, bool cpu) {
  const auto& [head, backward] = std::tie(instruction.work().head, instruction.work().backward);
  const double flops = masked ? instruction.slow().flops : instruction.work().flops;
  // Keys that a query meets in the mean.
  const double keys = flops / (FlopsOfPair(instruction.work()) * instruction.work().queries * head);
  // The rate depends on the keys that the last query meets. Where masked pairs are computed, every query
  // meets as many; else the mask is causal, and the last query meets about twice as many as the mean one.
  const double last = std::max(1.0, masked ? keys : 2 * keys - 1);
  const double share = AttentionShare(head, last, backward, cpu);
  const bool drops = !cpu && instruction.attributes().Float("dropout", 0) > 0;
  const double longer = drops ? (backward ? kDropoutFactor.backward : kDropoutFactor.forward) : 1;
  return longer * flops /
         (masked ? share * (backward ? kMaskedShare.backward : kMaskedShare.forward) : share);
}

const ExchangeRate& RateOf(const plan::Instruction& instruction) {
  if (instruction.direct()) return kDirectRate;
  if (instruction.push()) return kPushRate;
  if (instruction.collective() == plan::Collective::kAllReduce) return kAllReduceRate;
  return instruction.collective() == plan::Collective::kAllToAll ? kAllToAllRate : kScatterGatherRate;
}

bool Adds(const plan::Instruction& instruction) {
  return instruction.collective() == plan::Collective::kAllReduce ||
         instruction.collective() == plan::Collective::kReduceScatter;
}

bool InPasses(const plan::Instruction& instruction) {
  return instruction.op() == &ops::kExpertPasses || instruction.op() == &ops::kExpertPassesGrad;
}

// Kernels that an instruction in passes launches, whether or not these find rows.
double Launches(const plan::Instruction& instruction) {
  const auto passes = static_cast<double>(instruction.attributes().Int("passes"));
  return passes * (instruction.op() == &ops::kExpertPasses ? ops::kForwardLaunches : ops::kBackwardLaunches);
}

}  // namespace

CostModel::CostModel(const plan::Plan& plan, const recipe::Cluster& cluster, Kernels kernels)
    : plan_(plan), given_(cluster), kernels_(kernels), cpu_(cluster.device == "cpu") {
  const DeviceConstants& usual = cpu_ ? kCpu : kCuda;
  const auto either = [](double given, double otherwise) { return given > 0 ? given : otherwise; };
  const std::int64_t world = plan.mesh.world();
  ranks_per_node_ = cluster.devices_per_node > 0 ? std::min(world, cluster.devices_per_node) : world;
  // The ranks of a CPU are threads of it: what it can do is for all of them.
  const double sharing = cpu_ ? static_cast<double>(ranks_per_node_) : 1;
  matmul_flops_ = either(cluster.matmul_flops, usual.matmul_flops) / sharing;
  memory_bandwidth_ = either(cluster.memory_bandwidth, usual.memory_bandwidth) / sharing;
  intra_node_bandwidth_ =
      either(cluster.intra_node_bandwidth, cpu_ ? memory_bandwidth_ / kCpuPasses : usual.link);
  inter_node_bandwidth_ = either(cluster.inter_node_bandwidth, usual.network);
  for (const plan::StagePlan& stage : plan.stages) {
    for (const plan::Segment& segment : stage.segments) {
      for (const plan::Instruction& instruction : segment.instructions) NoteRows(instruction);
    }
  }
}

void CostModel::NoteRows(const plan::Instruction& place) {
  if (place.op() != &ops::kPlace) return;
  const plan::LocalValue& count = plan_.values[static_cast<size_t>(place.inputs[1].value)];
  const auto here = static_cast<double>(count.local[1]);
  const double chosen =
      static_cast<double>(place.inputs[0].elements) * here / static_cast<double>(count.shape[1]);
  const double mean = chosen + here * static_cast<double>(graph::kRowAlignment) / 2;
  const std::int64_t bound = place.outputs[0].elements;
  filled_[bound] = std::min(1.0, mean / static_cast<double>(bound));
}

double CostModel::Bytes(const plan::BufferRef& ref) const {
  const auto bytes = static_cast<double>(ref.bytes());
  if (ref.value < 0) return bytes;
  const plan::LocalValue& value = plan_.values[static_cast<size_t>(ref.value)];
  if (value.local.rank() == 0 || value.layout.dims()[0] != graph::Dim::kSlot) return bytes;
  const auto filled = filled_.find(value.local[0]);
  return filled == filled_.end() ? bytes : bytes * filled->second;
}

double CostModel::Bytes(const plan::Instruction& instruction) const {
  double bytes = instruction.direct() ? 0 : TermBytes(instruction);
  for (const auto* refs : {&instruction.inputs, &instruction.outputs}) {
    for (const plan::BufferRef& ref : *refs) bytes += Bytes(ref);
  }
  return bytes;
}

bool CostModel::HasRows(const plan::Instruction& instruction) const {
  const auto is_rows = [&](const plan::BufferRef& ref) {
    if (ref.value < 0) return false;
    const plan::LocalValue& value = plan_.values[static_cast<size_t>(ref.value)];
    return value.local.rank() > 1 && value.layout.dims()[0] == graph::Dim::kSlot;
  };
  return std::any_of(instruction.inputs.begin(), instruction.inputs.end(), is_rows) ||
         std::any_of(instruction.outputs.begin(), instruction.outputs.end(), is_rows);
}

double CostModel::KernelSeconds(const plan::Instruction& instruction) const {
  const DeviceConstants& constants = cpu_ ? kCpu : kCuda;
  const plan::SlowPath::Kind slow =
      kernels_ == Kernels::kFast ? plan::SlowPath::Kind::kNone : instruction.slow().kind;
  if (slow == plan::SlowPath::Kind::kReference) return constants.launch_s + ReferenceSeconds(instruction);
  const KernelRate& rate = RateOf(instruction.kernel(), cpu_);
  double share = rate.arithmetic;
  double flops = instruction.work().flops;
  const graph::Family family = instruction.family();
  if (family == graph::Family::kAttention) {
    share = 1;
    flops = AttentionFlops(instruction, slow == plan::SlowPath::Kind::kMasked, cpu_);
  } else if (family == graph::Family::kProduct || family == graph::Family::kHead) {
    if (!cpu_) share *= ProductShare(instruction.work());
    if (!instruction.inputs.empty() && instruction.inputs[0].dtype == DType::kF32) share *= constants.float32;
  }
  const double rows = rows_ != 1 && HasRows(instruction) ? rows_ : 1;
  if (InPasses(instruction)) {  // its products and what moves rows follow each other
    return Launches(instruction) * constants.launch_s + rows * flops / (share * matmul_flops_) +
           rows * instruction.work().bytes / (rate.memory * memory_bandwidth_);
  }
  // Two ranks of one node, which meet before it and behind it.
  double far = 0;
  if (instruction.direct()) far = TermBytes(instruction) / (kDirectRate.share * intra_node_bandwidth_);
  return constants.launch_s + std::max({rows * flops / (share * matmul_flops_),
                                        rows * Bytes(instruction) / (rate.memory * memory_bandwidth_), far});
}

CostModel::Link CostModel::MakeLink(const std::vector<std::int64_t>& ranks) const {
  Link link{.members = static_cast<double>(ranks.size()), .nodes = 0, .bandwidth = 0, .known = true};
  std::int64_t last = -1;
  for (std::int64_t rank : ranks) {  // ascending
    if (rank / ranks_per_node_ != last) ++link.nodes;
    last = rank / ranks_per_node_;
  }
  link.bandwidth = intra_node_bandwidth_;
  if (link.nodes > 1) {
    // Every member on a node has a way out of its own, and rings use them all.
    const double ways = link.members / link.nodes;
    link.bandwidth = std::min(link.bandwidth, ways * kAcrossShare * inter_node_bandwidth_);
  }
  return link;
}

CostModel::Link CostModel::LinkOf(const plan::Group& group) const {
  if (group.IsTie())
    return MakeLink(plan_.mesh.Group(group.holders.front() * plan_.mesh.ranks_per_stage(), group));
  Link& link = links_[group.axes.bits()];
  if (!link.known) link = MakeLink(plan_.mesh.Group(0, group));
  return link;
}

double CostModel::HostCopySeconds(std::int64_t bytes) const {
  const auto all = static_cast<double>(bytes);
  return cpu_ ? kCpu.launch_s + 2 * all / memory_bandwidth_ : kCuda.launch_s + all / kHostBandwidth;
}

double CostModel::LinkSeconds(std::int64_t bytes) const {
  const double bandwidth =
      inter_node_bandwidth_ > 0 ? std::min(kLinkBandwidth, inter_node_bandwidth_) : kLinkBandwidth;
  return static_cast<double>(bytes) / bandwidth;
}

double CostModel::Seconds(const plan::Instruction& instruction) const {
  if (instruction.AsHostCopy() != nullptr) {
    const plan::BufferRef& ref = instruction.inputs.empty() ? instruction.outputs[0] : instruction.inputs[0];
    return HostCopySeconds(ref.bytes());  // all of it, however many rows are filled
  }
  if (instruction.collective() == plan::Collective::kNone ||
      instruction.collective() == plan::Collective::kSlice) {
    return KernelSeconds(instruction);
  }
  const Link link = LinkOf(instruction.group());
  const ExchangeRate& rate = RateOf(instruction);
  const double bandwidth = link.nodes > 1 ? link.bandwidth : rate.share * link.bandwidth;
  // A ring passes all members; trees of an all-reduce are shallower, and as wide.
  const double passes = instruction.collective() == plan::Collective::kAllReduce ? 2 : 1;
  const double ring = passes * ((link.members - link.nodes) * kInsideHop + (link.nodes - 1) * kAcrossHop);
  const double tree = passes * (link.members / link.nodes * kInsideHop + std::log2(link.nodes) * kAcrossHop);
  const double hops = instruction.collective() == plan::Collective::kAllReduce ? std::min(ring, tree) : ring;
  // What is read directly crosses while its reader runs.
  double seconds = instruction.direct() ? 0 : static_cast<double>(instruction.wire_bytes()) / bandwidth;
  if (!instruction.push() && plan::IsBehind(instruction.stream)) seconds *= kBesideSlowdown;
  // Parts that do not lie as they are sent are packed and unpacked.
  if (!instruction.push())
    seconds += 2 * static_cast<double>(instruction.scratch.bytes()) / memory_bandwidth_;
  return rate.start_s + hops + seconds;
}

double CostModel::FinishSeconds(const plan::Instruction& instruction) const {
  if (!instruction.push()) return 0;
  if (instruction.collective() == plan::Collective::kAllToAll) {  // what the rank keeps is copied
    const std::int64_t own = instruction.inputs[0].bytes() - instruction.wire_bytes();
    return kCuda.launch_s + 2 * static_cast<double>(own) / (RateOf("", false).memory * memory_bandwidth_);
  }
  if (!Adds(instruction) || instruction.LeavesAddition()) return 0;
  const double members = LinkOf(instruction.group()).members;
  const bool whole = instruction.collective() == plan::Collective::kAllReduce && members == 2;
  const double part = static_cast<double>(instruction.inputs[0].bytes()) / (whole ? 1 : members);
  return kCuda.launch_s + (members + 1) * part / (RateOf("", false).memory * memory_bandwidth_);
}

double CostModel::BesideShare(const plan::Instruction& instruction) {
  if (!plan::IsBehind(instruction.stream) || instruction.AsHostCopy() != nullptr) return 0;
  return instruction.push() ? kPushBesideCost : kBesideCost;
}

double CostModel::AwaitSeconds() const { return cpu_ ? kCpu.await_s : kCuda.await_s; }

double CostModel::TransferSeconds(const plan::Transfer& transfer) const {
  const auto stage = [&](std::int32_t chunk) {
    return plan_.chunk_stage[static_cast<size_t>(chunk)] * plan_.mesh.ranks_per_stage();
  };
  std::vector<std::int64_t> ranks = {stage(transfer.from_chunk), stage(transfer.to_chunk)};
  std::sort(ranks.begin(), ranks.end());
  const Link link = MakeLink(ranks);
  const ExchangeRate& rate = transfer.push ? kPushRate : kSendRate;
  const double hop = link.nodes > 1 ? kAcrossHop : 0;
  const double bandwidth = link.nodes > 1 ? link.bandwidth : rate.share * link.bandwidth;
  return rate.start_s + hop + static_cast<double>(transfer.bytes) / bandwidth;
}

std::vector<std::string> CostModel::Missing() const {
  std::vector<std::string> missing;
  const auto need = [&](double rate, const char* key) {
    if (rate <= 0) missing.emplace_back(key);
  };
  need(given_.matmul_flops, "matmul_flops");
  need(given_.memory_bandwidth, "memory_bandwidth");
  const std::int64_t world = plan_.mesh.world();
  if (!cpu_ && ranks_per_node_ > 1) need(given_.intra_node_bandwidth, "intra_node_bandwidth");
  if (world > ranks_per_node_) need(given_.inter_node_bandwidth, "inter_node_bandwidth");
  return missing;
}

}  // namespace engine::predict
