#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <numeric>
#include <optional>

#include "engine/plan/collective.h"
#include "engine/verify/text.h"
#include "engine/verify/verify.h"

namespace engine::verify {
namespace {

bool SpansStages(const plan::Instruction& instruction) {
  return instruction.collective() != plan::Collective::kNone && instruction.group().SpansStages();
}

// Collectives of one stage's groups are entered alike by all its ranks, because these share one program and
// no collective is left out on some of them.
absl::Status Lawful(const plan::Plan& plan, std::int32_t stage, const plan::Instruction& instruction) {
  if (instruction.collective() == plan::Collective::kSlice) return absl::OkStatus();
  const plan::Group group = instruction.group();
  const bool world = group == plan::AxisSet::World();
  if (group.axes.HasPp() && !world) return Internal("its group {} crosses stages", plan.mesh.NameOf(group));
  const std::vector<std::int32_t>& holders = group.holders;
  if (group.IsTie()) {
    for (std::int32_t holder : holders) {
      if (holder < 0 || holder >= plan.mesh.pp) return Internal("there is no stage {}", holder);
    }
    const bool ascend = std::is_sorted(holders.begin(), holders.end(), std::less_equal<>());
    if (!ascend || std::find(holders.begin(), holders.end(), stage) == holders.end())
      return Internal("stage {} is not one of its holders, {}", stage, fmt::join(holders, ", "));
  }
  if (plan.mesh.GroupSize(group) < 2) return Internal("its group {} is one rank", plan.mesh.NameOf(group));
  if (instruction.inputs.size() != 1 || instruction.outputs.size() != 1)
    return Internal("it takes one buffer and fills one");
  const std::int64_t size = plan.mesh.GroupSize(instruction.group());
  const std::int64_t from = instruction.inputs[0].bytes();
  const std::int64_t to = instruction.outputs[0].bytes();
  std::int64_t expected = from;  // of the output
  if (!instruction.IsBucketExchange() && instruction.collective() == plan::Collective::kReduceScatter)
    expected = from / size;
  if (!instruction.IsBucketExchange() && instruction.collective() == plan::Collective::kAllGather)
    expected = from * size;
  if (to != expected)
    return Internal("it makes {} bytes of {} over {} ranks, not {}", to, from, size, expected);
  if (instruction.inputs[0].dtype != instruction.outputs[0].dtype) return Internal("it changes the dtype");
  const std::int64_t wire = plan::WireBytes(instruction.collective(), from, to, size);
  if (instruction.wire_bytes() != wire)
    return Internal("it counts {} bytes on the wire, not {}", instruction.wire_bytes(), wire);
  return absl::OkStatus();
}

// Two communicators of NCCL at work at once can wait for each other, so its collectives are all on one
// stream, from a program's first segment to the end of its passes.
absl::Status OneStreamOfNccl(const plan::Plan& plan, std::int32_t index, plan::ProgramKind kind) {
  const plan::StagePlan& stage = plan.stages[static_cast<size_t>(index)];
  std::vector<std::int32_t> segments = {stage.ends[kind].first};
  for (const plan::Chunk& chunk : stage.chunks) {
    const plan::ChunkPasses& passes = chunk.passes[kind];
    segments.insert(segments.end(), {passes.forward, passes.backward, passes.weights});
  }
  std::int32_t stream = -1;
  for (const std::int32_t s : segments) {
    if (s < 0) continue;
    const plan::Segment& segment = stage.segments[static_cast<size_t>(s)];
    for (size_t i = 0; i < segment.instructions.size(); ++i) {
      const plan::Instruction& instruction = segment.instructions[i];
      if (instruction.push() || instruction.collective() == plan::Collective::kNone ||
          instruction.collective() == plan::Collective::kSlice) {
        continue;
      }
      if (stream >= 0 && stream != instruction.stream) {
        return Internal("{} is on stream {}, collectives of NCCL before it on stream {}",
                        InstructionName(index, segment, i), instruction.stream, stream);
      }
      stream = instruction.stream;
    }
  }
  return absl::OkStatus();
}

// What is exchanged of buckets runs in one order, that of its stream.
absl::Status OneStreamOfBuckets(std::int32_t stage, const plan::Segment& segment, std::int32_t* stream) {
  for (size_t i = 0; i < segment.instructions.size(); ++i) {
    const plan::Instruction& instruction = segment.instructions[i];
    if (!instruction.IsBucketExchange() || !plan::IsBehind(instruction.stream)) continue;
    if (*stream >= 0 && *stream != instruction.stream) {
      return Internal("{} is on stream {}, what is exchanged of buckets before it on stream {}",
                      InstructionName(stage, segment, i), instruction.stream, *stream);
    }
    *stream = instruction.stream;
  }
  return absl::OkStatus();
}

absl::Status Collectives(const plan::Plan& plan) {
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const std::int32_t stage = static_cast<std::int32_t>(s);
    std::int32_t of_buckets = -1;
    for (const plan::Segment& segment : plan.stages[s].segments) {
      for (size_t i = 0; i < segment.instructions.size(); ++i) {
        if (segment.instructions[i].collective() == plan::Collective::kNone) continue;
        const absl::Status status = Lawful(plan, stage, segment.instructions[i]);
        if (!status.ok()) return WithContext(status, InstructionName(stage, segment, i));
      }
      RETURN_IF_ERROR(OneStreamOfBuckets(stage, segment, &of_buckets));
    }
    for (plan::ProgramKind kind : plan::kProgramKinds) RETURN_IF_ERROR(OneStreamOfNccl(plan, stage, kind));
  }
  return absl::OkStatus();
}

// One program of all stages, walked together.
class Simulation {
 public:
  Simulation(const plan::Plan& plan, std::int32_t program)
      : plan_(plan),
        program_(program),
        microbatches_(static_cast<size_t>(plan.ProgramAt(program).microbatches)),
        stages_(plan.stages.size()) {
    const size_t cells = plan.transfers.size() * microbatches_;
    send_.assign(cells, -1);
    receive_.assign(cells, -1);
  }

  absl::Status Run() {
    for (size_t s = 0; s < stages_.size(); ++s) RETURN_IF_ERROR(Enter(static_cast<std::int32_t>(s)));
    RETURN_IF_ERROR(Paired());
    for (bool progress = true; progress;) {
      progress = false;
      for (std::int32_t s = 0; s < Stages(); ++s) {
        ASSIGN_OR_RETURN(const bool moved, Advance(s));
        progress = progress || moved;
      }
    }
    for (std::int32_t s = 0; s < Stages(); ++s) {
      if (!Done(s)) return Stuck();
    }
    return absl::OkStatus();
  }

 private:
  struct StageState {
    size_t at = 0;                           // step
    size_t site = 0;                         // collective over stages that comes next in the step's segment
    bool here = false;                       // it waits there for the others
    std::vector<bool> completed;             // by step
    std::vector<std::vector<size_t>> sites;  // by segment: instructions that span stages
  };

  std::int32_t Stages() const { return static_cast<std::int32_t>(stages_.size()); }
  StageState& At(std::int32_t stage) { return stages_[static_cast<size_t>(stage)]; }
  const StageState& At(std::int32_t stage) const { return stages_[static_cast<size_t>(stage)]; }
  const plan::Program& ProgramAt(std::int32_t stage) const { return ProgramOf(plan_, {stage, program_}); }
  bool Done(std::int32_t stage) const { return At(stage).at == ProgramAt(stage).size(); }
  const plan::Step& Current(std::int32_t stage) const { return ProgramAt(stage)[At(stage).at]; }
  std::string Name(std::int32_t stage, std::int64_t step) const {
    return StepName(plan_, {stage, program_}, static_cast<size_t>(step));
  }
  const plan::Transfer& TransferAt(std::int32_t t) const { return plan_.transfers[static_cast<size_t>(t)]; }
  std::int32_t From(const plan::Transfer& transfer) const {
    return plan_.chunk_stage[static_cast<size_t>(transfer.from_chunk)];
  }
  std::int32_t To(const plan::Transfer& transfer) const {
    return plan_.chunk_stage[static_cast<size_t>(transfer.to_chunk)];
  }
  size_t Cell(const plan::Step& step) const {
    return static_cast<size_t>(step.transfer) * microbatches_ + static_cast<size_t>(step.microbatch);
  }

  absl::Status Enter(std::int32_t stage) {
    RETURN_IF_ERROR(ProgramWellFormed(plan_, {stage, program_}));
    StageState& state = At(stage);
    for (const plan::Segment& segment : plan_.stages[static_cast<size_t>(stage)].segments) {
      std::vector<size_t>& sites = state.sites.emplace_back();
      for (size_t i = 0; i < segment.instructions.size(); ++i) {
        if (SpansStages(segment.instructions[i])) sites.push_back(i);
      }
    }
    const plan::Program& program = ProgramAt(stage);
    state.completed.assign(program.size(), false);
    for (size_t i = 0; i < program.size(); ++i) {
      const plan::Step& step = program[i];
      if (step.kind == plan::StepKind::kRun) continue;
      const bool send = step.kind == plan::StepKind::kSend;
      const plan::Transfer& transfer = TransferAt(step.transfer);
      if ((send ? From(transfer) : To(transfer)) != stage) {
        return Internal("{} belongs to stage {}", Name(stage, static_cast<std::int64_t>(i)),
                        send ? From(transfer) : To(transfer));
      }
      const plan::LocalValue& value = plan_.values[static_cast<size_t>(transfer.value)];
      if (step.buffer.bytes() != transfer.bytes || transfer.bytes != value.local_bytes() ||
          step.buffer.dtype != value.dtype) {
        return Internal("{}: its buffer has {} bytes of {}, the transfer {} and the value {} of {}",
                        Name(stage, static_cast<std::int64_t>(i)), step.buffer.bytes(),
                        engine::Name(step.buffer.dtype), transfer.bytes, value.local_bytes(),
                        engine::Name(value.dtype));
      }
      std::int32_t& known = (send ? send_ : receive_)[Cell(step)];
      if (known >= 0)
        return Internal("{} repeats {}", Name(stage, static_cast<std::int64_t>(i)), Name(stage, known));
      known = static_cast<std::int32_t>(i);
    }
    return absl::OkStatus();
  }

  absl::Status Paired() const {
    for (size_t cell = 0; cell < send_.size(); ++cell) {
      if ((send_[cell] < 0) == (receive_[cell] < 0)) continue;
      const plan::Transfer& transfer = plan_.transfers[cell / microbatches_];
      if (receive_[cell] < 0)
        return Internal("{} has no receive on stage {}", Name(From(transfer), send_[cell]), To(transfer));
      return Internal("{} has no send on stage {}", Name(To(transfer), receive_[cell]), From(transfer));
    }
    return absl::OkStatus();
  }

  // Walks one stage until it must wait. Whether it came any further.
  absl::StatusOr<bool> Advance(std::int32_t stage) {
    bool moved = false;
    while (!Done(stage)) {
      if (BlockedSend(stage)) break;
      ASSIGN_OR_RETURN(const bool completed, Take(stage));
      if (!completed) break;
      StageState& state = At(stage);
      if (Current(stage).kind != plan::StepKind::kSend) state.completed[state.at] = true;
      ++state.at;
      state.site = 0;
      moved = true;
    }
    return moved || std::exchange(released_, false);
  }

  // The send of this stage that the current step waits for and that has not been received.
  std::optional<std::int32_t> BlockedSend(std::int32_t stage) const {
    for (std::int32_t wait : Current(stage).waits) {
      if (!At(stage).completed[static_cast<size_t>(wait)]) return wait;
    }
    return std::nullopt;
  }

  absl::StatusOr<bool> Take(std::int32_t stage) {
    const plan::Step& step = Current(stage);
    if (step.kind == plan::StepKind::kRun) return Execute(stage, step);
    const plan::Transfer& transfer = TransferAt(step.transfer);
    std::deque<std::int32_t>& channel = channels_[{From(transfer), To(transfer), IsBackward(transfer)}];
    if (step.kind == plan::StepKind::kSend) {
      channel.push_back(static_cast<std::int32_t>(At(stage).at));
      return true;
    }
    if (channel.empty()) return false;
    const std::int32_t sent = channel.front();
    const plan::Step& send = ProgramAt(From(transfer))[static_cast<size_t>(sent)];
    if (send.transfer != step.transfer || send.microbatch != step.microbatch) {
      return Internal("{} meets {}: the order of sends is not that of receives",
                      Name(stage, static_cast<std::int64_t>(At(stage).at)), Name(From(transfer), sent));
    }
    channel.pop_front();
    At(From(transfer)).completed[static_cast<size_t>(sent)] = true;
    return true;
  }

  // Whether the segment has run to its end; false: it waits in a collective for other stages.
  absl::StatusOr<bool> Execute(std::int32_t stage, const plan::Step& step) {
    StageState& state = At(stage);
    const std::vector<size_t>& sites = state.sites[static_cast<size_t>(step.segment)];
    while (state.site < sites.size()) {
      state.here = true;
      const std::vector<std::int32_t> members = Members(Site(stage));
      for (std::int32_t member : members) {
        if (!At(member).here) return false;
        if (!(Site(member).group() == Site(stage).group())) return false;
      }
      for (std::int32_t member : members) RETURN_IF_ERROR(Alike(stage, member));
      for (std::int32_t member : members) {
        At(member).here = false;
        ++At(member).site;
      }
      released_ = true;
    }
    return true;
  }

  const plan::Instruction& Site(std::int32_t stage) const {
    const size_t segment = static_cast<size_t>(Current(stage).segment);
    return plan_.stages[static_cast<size_t>(stage)]
        .segments[segment]
        .instructions[At(stage).sites[segment][At(stage).site]];
  }
  std::string SiteName(std::int32_t stage) const {
    const size_t segment = static_cast<size_t>(Current(stage).segment);
    return InstructionName(stage, plan_.stages[static_cast<size_t>(stage)].segments[segment],
                           At(stage).sites[segment][At(stage).site]);
  }

  std::vector<std::int32_t> Members(const plan::Instruction& instruction) const {
    if (instruction.group().IsTie()) return instruction.group().holders;
    std::vector<std::int32_t> members(static_cast<size_t>(Stages()));
    std::iota(members.begin(), members.end(), 0);
    return members;
  }

  absl::Status Alike(std::int32_t stage, std::int32_t member) const {
    const plan::Instruction& a = Site(stage);
    const plan::Instruction& b = Site(member);
    if (a.collective() == b.collective() && a.reduction() == b.reduction() &&
        a.inputs[0].elements == b.inputs[0].elements && a.inputs[0].dtype == b.inputs[0].dtype) {
      return absl::OkStatus();
    }
    return Internal("{} ({} of {}[{}]) meets {} ({} of {}[{}])", SiteName(stage), a.kernel(),
                    engine::Name(a.inputs[0].dtype), a.inputs[0].elements, SiteName(member), b.kernel(),
                    engine::Name(b.inputs[0].dtype), b.inputs[0].elements);
  }

  // Whom a stage waits for; empty when it is done.
  std::vector<std::int32_t> WaitsFor(std::int32_t stage) const {
    if (Done(stage)) return {};
    if (const auto send = BlockedSend(stage)) {
      return {To(TransferAt(ProgramAt(stage)[static_cast<size_t>(*send)].transfer))};
    }
    const plan::Step& step = Current(stage);
    if (step.kind == plan::StepKind::kReceive) return {From(TransferAt(step.transfer))};
    std::vector<std::int32_t> absent;
    for (std::int32_t member : Members(Site(stage))) {
      if (!At(member).here || !(Site(member).group() == Site(stage).group())) absent.push_back(member);
    }
    return absent;
  }

  // Of a stage: "waits at …".
  std::string Where(std::int32_t stage) const {
    if (Done(stage)) return "has ended";
    std::string text = fmt::format("waits at {}", StepText(plan_, {stage, program_}, At(stage).at));
    if (const auto send = BlockedSend(stage)) {
      text += fmt::format(" until {} is received",
                          StepText(plan_, {stage, program_}, static_cast<size_t>(*send)));
    } else if (Current(stage).kind == plan::StepKind::kRun) {
      text += " in " + SiteName(stage);
    }
    return text;
  }

  // The shortest cycle of stages that wait for each other, or else the shortest way to one that has ended.
  absl::Status Stuck() const {
    std::vector<std::int32_t> best;
    for (std::int32_t from = 0; from < Stages(); ++from) {
      if (Done(from)) continue;
      const std::vector<std::int32_t> way = ShortestWay(from);
      const bool better = best.empty() || (way.size() < best.size());
      if (!way.empty() && better) best = way;
    }
    std::string text;
    for (size_t i = 0; i + 1 < best.size(); ++i) {
      text += i == 0 ? fmt::format("stage {}", best[i]) : ", which";
      text += fmt::format(" {} for stage {}", Where(best[i]), best[i + 1]);
    }
    if (!best.empty() && Done(best.back())) text += ", which has ended";
    return Internal("deadlock: {}", text);
  }

  // Breadth first from a stage along WaitsFor, to itself or to a stage that has ended.
  std::vector<std::int32_t> ShortestWay(std::int32_t from) const {
    std::vector<std::int32_t> previous(stages_.size(), -1);
    std::deque<std::int32_t> queue = {from};
    while (!queue.empty()) {
      const std::int32_t at = queue.front();
      queue.pop_front();
      for (std::int32_t next : WaitsFor(at)) {
        const bool end = next == from || Done(next);
        if (!end && previous[static_cast<size_t>(next)] >= 0) continue;
        if (!end) {
          previous[static_cast<size_t>(next)] = at;
          queue.push_back(next);
          continue;
        }
        std::vector<std::int32_t> way = {next};
        for (std::int32_t back = at; back != from; back = previous[static_cast<size_t>(back)])
          way.push_back(back);
        way.push_back(from);
        std::reverse(way.begin(), way.end());
        return way;
      }
    }
    return {};
  }

  const plan::Plan& plan_;
  const std::int32_t program_;
  const size_t microbatches_;  // of it
  std::vector<StageState> stages_;
  std::vector<std::int32_t> send_, receive_;  // steps, by transfer and microbatch
  // Sends that are posted and not yet received, by (from, to, backward): each is one stream at both ends.
  absl::flat_hash_map<std::tuple<std::int32_t, std::int32_t, bool>, std::deque<std::int32_t>> channels_;
  bool released_ = false;  // a collective has let stages go on
};

// Values go from chunk to neighbouring chunk, and come to a chunk once: those in between relay them.
absl::Status Hops(const plan::Plan& plan) {
  absl::flat_hash_set<std::pair<std::int32_t, std::int32_t>> known;
  for (const plan::Transfer& transfer : plan.transfers) {
    const std::string& name = NameOf(plan, transfer.value);
    const std::int32_t step = transfer.to_chunk - transfer.from_chunk;
    if (step != 1 && step != -1) {
      return Internal("{} goes from chunk {} to chunk {}, which is no neighbour", name, transfer.from_chunk,
                      transfer.to_chunk);
    }
    if (!known.insert({transfer.value, transfer.to_chunk}).second)
      return Internal("{} comes to chunk {} twice", name, transfer.to_chunk);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VerifyCommunication(const plan::Plan& plan) {
  RETURN_IF_ERROR(Hops(plan));
  RETURN_IF_ERROR(Collectives(plan));
  for (size_t p = 0; p < plan.programs.size(); ++p)
    RETURN_IF_ERROR(Simulation(plan, static_cast<std::int32_t>(p)).Run());
  return absl::OkStatus();
}

}  // namespace engine::verify
