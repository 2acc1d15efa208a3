#include "engine/backend/cuda/exchange/push_exchange.h"

#include <algorithm>
#include <utility>

#include "engine/backend/cuda/kernels/exchange.h"

namespace engine::backend::cuda {
namespace {

using plan::Collective;

// Bytes. Rows of 1280 took CUDA 0.095 ms for 21 MB beside kernels, one piece 0.026 (docs/performance.md).
constexpr std::int64_t kLongRow = std::int64_t{32} << 10;

std::vector<std::byte*> FlagsOfPeers(const PushExchange& x, Flag flag) {
  std::vector<std::byte*> flags;
  for (const PushPeer* peer : x.place.peers) {
    flags.push_back(peer->flags + OffsetOfFlag(x.place.rank, x.place.stream_index, flag));
  }
  return flags;
}
std::vector<std::byte*> OwnFlags(const PushExchange& x, Flag flag) {
  std::vector<std::byte*> flags;
  for (const PushPeer* peer : x.place.peers) {
    flags.push_back(*x.place.flags + OffsetOfFlag(peer->rank, x.place.stream_index, flag));
  }
  return flags;
}

absl::Status Meet(const PushExchange& x, Flag flag, const StreamNote& before, const StreamNote& after) {
  return x.place.operations->Enqueue(FlagsOfPeers(x, flag), OwnFlags(x, flag), x.place.stream, before, after);
}

// By a copy engine: it takes nothing from the kernels that run at the same time.
absl::Status EnqueueCopy(const PitchedCopy& copy, const std::byte* source, std::byte* target,
                         cudaStream_t stream) {
  const auto size = [](std::int64_t bytes) { return static_cast<std::size_t>(bytes); };
  std::byte* const to = target + copy.to;
  const std::byte* const from = source + copy.from;
  if (copy.rows == 1) {
    RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(to, from, size(copy.width), cudaMemcpyDefault, stream));
  } else if (copy.planes == 1) {
    RETURN_IF_CUDA_ERROR(cudaMemcpy2DAsync(to, size(copy.to_pitch), from, size(copy.from_pitch),
                                           size(copy.width), size(copy.rows), cudaMemcpyDefault, stream));
  } else {
    cudaMemcpy3DParms parameters{};
    parameters.srcPtr = {.ptr = const_cast<std::byte*>(from),
                         .pitch = size(copy.from_pitch),
                         .xsize = size(copy.width),
                         .ysize = size(copy.from_plane / copy.from_pitch)};
    parameters.dstPtr = {.ptr = to,
                         .pitch = size(copy.to_pitch),
                         .xsize = size(copy.width),
                         .ysize = size(copy.to_plane / copy.to_pitch)};
    parameters.extent = {.width = size(copy.width), .height = size(copy.rows), .depth = size(copy.planes)};
    parameters.kind = cudaMemcpyDefault;
    RETURN_IF_CUDA_ERROR(cudaMemcpy3DAsync(&parameters, stream));
  }
  return absl::OkStatus();
}

absl::Status EnqueuePushes(const std::vector<Push>& pushes, cudaStream_t stream) {
  for (const Push& push : pushes) {
    RETURN_IF_ERROR(EnqueueCopy(push.copy, push.from, push.peer->arena + push.to, stream));
  }
  return absl::OkStatus();
}

// After it, all that the peers have pushed is here, and what this rank has pushed is there; what it keeps is
// where it belongs when the exchange is finished.
absl::Status PushThenNote(const PushExchange& x, const StreamNote& done) {
  if (!x.own_copies.empty()) {
    RETURN_IF_CUDA_ERROR(cudaEventRecord(x.place.fork, x.place.stream));
    RETURN_IF_CUDA_ERROR(cudaStreamWaitEvent(x.place.local, x.place.fork, 0));
    for (const PitchedCopy& copy : x.own_copies) {
      RETURN_IF_ERROR(EnqueueCopy(copy, x.input, x.output, x.place.local));
    }
    RETURN_IF_CUDA_ERROR(cudaEventRecord(x.place.copied, x.place.local));
  }
  if (x.place.ready) RETURN_IF_ERROR(Meet(x, Flag::kReady, x.place.notes.begun, {}));
  RETURN_IF_ERROR(EnqueuePushes(x.pushes, x.place.stream));
  return Meet(x, Flag::kDone, {}, done);
}
absl::Status PushAll(const PushExchange& x) { return PushThenNote(x, x.place.notes.ended); }

// The reader of a direct sum comes next, then ReleasePart.
absl::Status MeetBefore(const PushExchange& x) {
  if (!x.place.ready) return absl::OkStatus();
  return Meet(x, Flag::kReady, x.place.notes.begun, {});
}

absl::Status Sum(const PushExchange& x, const std::byte* own, std::int64_t count, std::byte* out,
                 cudaStream_t stream) {
  ENGINE_CHECK(SumParts(own, x.scratch, x.layout.slot, x.members, x.index, x.dtype, count, out, stream),
               "a sum of {}", Name(x.dtype));
  RETURN_IF_CUDA_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

// ReduceScatter, and AllReduce of two.
absl::Status SumAll(const PushExchange& x) { return Sum(x, x.own, x.count, x.output, x.place.compute); }

// AllReduce of more than two. A peer's sum may overwrite an input that is the output too: this rank has
// pushed that part, to this peer.
absl::Status SumInParts(const PushExchange& x) {
  RETURN_IF_ERROR(PushThenNote(x, {}));
  const std::int64_t begin = x.layout.PartBegin(x.index, x.count) * x.element_bytes;
  RETURN_IF_ERROR(
      Sum(x, x.input + begin, x.layout.PartCount(x.index, x.count), x.output + begin, x.place.stream));
  RETURN_IF_ERROR(EnqueuePushes(x.gather, x.place.stream));
  return Meet(x, Flag::kGathered, {}, x.place.notes.ended);
}

absl::Status LogSumExp(const PushExchange& x) {
  RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(x.scratch + x.index * x.layout.slot, x.input,
                                       static_cast<std::size_t>(x.layout.slot), cudaMemcpyDeviceToDevice,
                                       x.place.stream));
  return PushAll(x);
}
absl::Status CombineAll(const PushExchange& x) {
  CombineLogSumExp(reinterpret_cast<const float*>(x.scratch), x.members, x.count,
                   reinterpret_cast<float*>(x.output), x.place.compute);
  RETURN_IF_CUDA_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

void ChooseForm(const plan::Instruction& instruction, PushExchange* x) {
  x->enqueue = PushAll;  // everything goes where it belongs
  const bool reduces = instruction.collective() == Collective::kAllReduce;
  if (instruction.direct()) {
    x->enqueue = MeetBefore;
  } else if (reduces && instruction.reduction() != graph::Reduction::kSum) {
    x->enqueue = LogSumExp;
    x->finish = CombineAll;
  } else if (reduces && x->members > 2) {
    x->enqueue = SumInParts;
  } else if (reduces || instruction.collective() == Collective::kReduceScatter) {
    if (!instruction.LeavesAddition()) x->finish = SumAll;  // else whoever reads the sum adds what arrives
  }
}

bool Within(std::span<const std::byte> memory, const void* data, std::int64_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  return at >= begin && at + static_cast<std::size_t>(bytes) <= begin + memory.size();
}

absl::Status CheckArgs(const CollectiveArgs& args, const PushExchange& x) {
  const std::string& name = args.instruction->name;
  if (x.layout.bytes > static_cast<std::int64_t>(args.scratch.size())) {
    return Internal("{}: needs {} bytes of scratch, the plan gives {}", name, x.layout.bytes,
                    args.scratch.size());
  }
  const std::int64_t bytes = args.output.shape.elements() * SizeOf(args.output.dtype);
  const bool scratch = x.layout.bytes == 0 || Within(x.place.arena, args.scratch.data(), x.layout.bytes);
  if (!Within(x.place.arena, args.output.data, bytes) || !scratch) {
    return Internal("{}: what is pushed goes to the arena", name);
  }
  return absl::OkStatus();
}

// One box that is a run of the input and all of the output, in its order: where it begins. Else null.
const std::byte* AsRun(const std::vector<Box>& boxes, const PushExchange& x) {
  constexpr size_t kInner = Box::kLoops - 1;
  if (boxes.size() != 1 || boxes[0].size[kInner] != x.count || boxes[0].to != 0) return nullptr;
  if (x.count > 1 && (boxes[0].from_stride[kInner] != 1 || boxes[0].to_stride[kInner] != 1)) return nullptr;
  return x.input + boxes[0].from * x.element_bytes;
}

// What goes to the i-th peer.
void PlanPushes(const CollectiveArgs& args, size_t i, PushExchange* x) {
  if (args.instruction->direct()) return;
  const PushPeer* const peer = x->place.peers[i];
  const std::int64_t member =
      std::find(args.group.begin(), args.group.end(), peer->rank) - args.group.begin();
  const auto add = [&](const std::byte* from, const std::byte* to, const PitchedCopy& copy,
                       std::vector<Push>* pushes) {
    if (copy.width == 0) return;
    pushes->push_back({.peer = peer, .from = from, .to = to - x->place.arena.data(), .copy = copy});
  };
  const auto flat = [&](std::int64_t count) {
    const std::int64_t bytes = count * x->element_bytes;
    return PitchedCopy{.width = bytes, .from_pitch = bytes, .to_pitch = bytes};
  };
  const std::byte* const slot = x->scratch + x->layout.SlotOf(x->index, member);
  if (x->enqueue == SumInParts) {
    const std::byte* const theirs = x->input + x->layout.PartBegin(member, x->count) * x->element_bytes;
    add(theirs, slot, flat(x->layout.PartCount(member, x->count)), &x->pushes);
    const std::byte* const sum = x->output + x->layout.PartBegin(x->index, x->count) * x->element_bytes;
    add(sum, sum, flat(x->layout.PartCount(x->index, x->count)), &x->gather);
    return;
  }
  if (args.instruction->collective() == Collective::kAllReduce) {
    return add(x->input, slot, flat(x->count), &x->pushes);
  }
  if (args.instruction->IsBucketExchange()) {
    const bool gathers = args.instruction->collective() == Collective::kAllGather;
    const std::byte* const part = x->input + (gathers ? x->index : member) * x->count * x->element_bytes;
    return add(part, gathers ? part : slot, flat(x->count), &x->pushes);
  }
  const Extent& theirs = args.member_outputs[static_cast<size_t>(member)];
  for (const Box& box : CommonBoxes(args.input.extent, args.input.shape, theirs, args.output.shape)) {
    for (const PitchedCopy& copy : PitchedCopies(box, x->element_bytes)) {
      add(x->input, x->layout.slot > 0 ? slot : x->output, copy, &x->pushes);
    }
  }
}

void PlanOwn(const CollectiveArgs& args, PushExchange* x) {
  x->own = x->input;
  if (args.instruction->collective() == Collective::kAllReduce) return;
  if (args.instruction->IsBucketExchange()) {
    x->output = x->input + x->index * x->count * x->element_bytes;
    x->own = x->output;
    return;
  }
  if (args.instruction->LeavesAddition()) {  // a run of the input, of however many boxes: nothing is copied
    x->own = x->input + x->index * x->count * x->element_bytes;
    return;
  }
  const std::vector<Box> boxes =
      CommonBoxes(args.input.extent, args.input.shape, args.output.extent, args.output.shape);
  if (args.instruction->collective() == Collective::kReduceScatter) {
    x->own = AsRun(boxes, *x);
    if (x->own != nullptr) return;
    x->own = x->output;
  }
  for (const Box& box : boxes) {
    const std::vector<PitchedCopy> copies = PitchedCopies(box, x->element_bytes);
    const bool short_rows = std::any_of(copies.begin(), copies.end(), [](const PitchedCopy& copy) {
      return copy.width < kLongRow && copy.rows > 1;
    });
    if (short_rows) {
      x->own_boxes.push_back(box);
      continue;
    }
    for (const PitchedCopy& copy : copies) {
      if (copy.width > 0) x->own_copies.push_back(copy);
    }
  }
}

}  // namespace

bool Pushes(const plan::Instruction& instruction, DType dtype) {
  if (!instruction.push()) return false;
  if (instruction.IsBucketExchange() && instruction.collective() == Collective::kAllReduce) return false;
  switch (instruction.collective()) {
    case Collective::kAllGather:
    case Collective::kAllToAll:
      return true;
    case Collective::kAllReduce:
      if (instruction.reduction() == graph::Reduction::kLogSumExp) return dtype == DType::kF32;
      [[fallthrough]];
    case Collective::kReduceScatter:
      return instruction.reduction() == graph::Reduction::kSum &&
             (dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32 || dtype == DType::kF64);
    case Collective::kSlice:
    case Collective::kNone:
      return false;
  }
  return false;
}

absl::Status FinishPush(const PushExchange& exchange) {
  if (!exchange.own_copies.empty()) {
    RETURN_IF_CUDA_ERROR(cudaStreamWaitEvent(exchange.place.compute, exchange.place.copied, 0));
  }
  for (const Box& box : exchange.own_boxes) {
    CopyBox(exchange.input, exchange.output, box, exchange.element_bytes, exchange.place.compute);
  }
  RETURN_IF_CUDA_ERROR(cudaGetLastError());
  return exchange.finish == nullptr ? absl::OkStatus() : exchange.finish(exchange);
}

// Arenas of a stage are alike.
const std::byte* OtherPart(const PushExchange& x) {
  return x.place.peers[0]->arena + (x.own - x.place.arena.data());
}
absl::Status ReleasePart(const PushExchange& x) {
  if (!x.place.release) return absl::OkStatus();
  return Meet(x, Flag::kDone, {}, x.place.notes.ended);
}

absl::StatusOr<PushExchange> PlanPush(const CollectiveArgs& args, PushPlace place) {
  const plan::Instruction& instruction = *args.instruction;
  PushExchange x;
  x.place = std::move(place);
  x.members = static_cast<std::int64_t>(args.group.size());
  x.index = args.index;
  x.dtype = args.input.dtype;
  x.element_bytes = SizeOf(args.input.dtype);
  x.input = args.input.as<std::byte>();
  x.output = args.output.as<std::byte>();
  x.scratch = args.scratch.data();
  // A flat buffer is exchanged in place, in parts of equal size.
  x.count = args.output.shape.elements() / (instruction.IsBucketExchange() ? x.members : 1);
  const Shape to = instruction.IsBucketExchange() ? Shape{x.count} : args.output.shape;
  x.layout = LayoutOfPush(instruction.collective(), instruction.reduction(),
                          {args.input.shape, args.input.dtype}, {to, args.output.dtype}, x.members);
  RETURN_IF_ERROR(CheckArgs(args, x));
  ChooseForm(instruction, &x);
  for (size_t i = 0; i < x.place.peers.size(); ++i) PlanPushes(args, i, &x);
  PlanOwn(args, &x);
  if (instruction.LeavesAddition() && (x.members != 2 || x.own != x.output || x.finish != nullptr)) {
    return Internal("{}: only a sum of two ranks, at its place, is left to its reader", instruction.name);
  }
  if (instruction.direct() && !instruction.LeavesAddition())
    return Internal("{}: only a sum that is left to its reader is read directly", instruction.name);
  return x;
}

}  // namespace engine::backend::cuda
