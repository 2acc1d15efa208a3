#include "engine/backend/cuda/exchange/nccl_communicator.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <thread>
#include <utility>

#include "engine/backend/boxes.h"
#include "engine/backend/cuda/kernels/exchange.h"
#include "engine/backend/cuda/profile/scratch_exchange.h"

namespace engine::backend::cuda {
namespace {

using plan::Collective;

absl::Status NcclStatus(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return absl::OkStatus();
  return Internal("{}: {}: {}", what, ncclGetErrorString(result), ncclGetLastError(nullptr));
}

#define RETURN_IF_NCCL_ERROR(call) RETURN_IF_ERROR(NcclStatus((call), #call))

absl::StatusOr<ncclDataType_t> NcclTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kF64:
      return ncclFloat64;
    case DType::kI32:
      return ncclInt32;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kF16:
      return ncclFloat16;
    default:
      return Unimplemented("NCCL sums no {}", Name(dtype));
  }
}

// Ranks in a communicator of two.
constexpr int kSender = 0;
constexpr int kReceiver = 1;

class NcclLaunch final : public Launch {
 public:
  using Enqueue = std::function<absl::Status(cudaStream_t)>;
  NcclLaunch(Enqueue enqueue, cudaStream_t stream) : enqueue_(std::move(enqueue)), stream_(stream) {}
  absl::Status Run(const KernelContext&) override { return enqueue_(stream_); }

 private:
  Enqueue enqueue_;
  cudaStream_t stream_;
};

// What one launch works with. Counts are elements.
struct Exchange {
  const NcclGroup* group = nullptr;
  std::int64_t members = 1;
  std::int64_t index = 0;
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t reduction = ncclSum;
  std::int64_t element_bytes = 4;
  std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::int64_t input_count = 0;
  std::int64_t output_count = 0;
  ExchangeLayout layout;
  std::int64_t scratch_bytes = 0;
  std::byte* scratch = nullptr;
  std::vector<Box> pack;                                  // input → scratch
  std::vector<Box> unpack;                                // scratch + layout.received → output
  std::vector<std::int64_t> send_counts, receive_counts;  // of all-to-all, by member
  // These two describe a sum in order of rank.
  OrderedSumLayout ordered;
  DType dtype = DType::kF32;
};

absl::Status CopyBoxes(const std::vector<Box>& boxes, const std::byte* from, std::byte* to,
                       std::int64_t element_bytes, cudaStream_t stream) {
  for (const Box& box : boxes) CopyBox(from, to, box, element_bytes, stream);
  RETURN_IF_CUDA_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

size_t Count(std::int64_t count) { return static_cast<size_t>(count); }

absl::Status AllReduce(const Exchange& x, cudaStream_t stream) {
  RETURN_IF_NCCL_ERROR(ncclAllReduce(x.input, x.output, Count(x.input_count), x.type, x.reduction,
                                     x.group->communicator, stream));
  return absl::OkStatus();
}

absl::Status AllReduceLogSumExp(const Exchange& x, cudaStream_t stream) {
  RETURN_IF_NCCL_ERROR(
      ncclAllGather(x.input, x.scratch, Count(x.input_count), x.type, x.group->communicator, stream));
  CombineLogSumExp(reinterpret_cast<const float*>(x.scratch), x.members, x.input_count,
                   reinterpret_cast<float*>(x.output), stream);
  RETURN_IF_CUDA_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

// The input in members' parts, one behind the other.
absl::StatusOr<const std::byte*> InParts(const Exchange& x, cudaStream_t stream) {
  if (!x.layout.packed) return x.input;
  RETURN_IF_ERROR(CopyBoxes(x.pack, x.input, x.scratch, x.element_bytes, stream));
  return x.scratch;
}

absl::Status ReduceScatter(const Exchange& x, cudaStream_t stream) {
  ASSIGN_OR_RETURN(const std::byte* const from, InParts(x, stream));
  RETURN_IF_NCCL_ERROR(ncclReduceScatter(from, x.output, Count(x.output_count), x.type, ncclSum,
                                         x.group->communicator, stream));
  return absl::OkStatus();
}

// The part of a sum in order of rank that one member adds up: elements of the flat input.
struct SumPart {
  std::int64_t begin = 0, count = 0;
};

// What `member` adds up of the flat input: all of it, or a part.
SumPart SumPartOf(const Exchange& x, std::int64_t member) {
  if (x.ordered.whole) return {0, x.input_count};
  return {x.ordered.parts.PartBegin(member, x.input_count), x.ordered.parts.PartCount(member, x.input_count)};
}

// Sends each other member the part `sent(member)` of `from`, and gets the part `got(member)` of its from it, at
// place(member).
template <typename Sent, typename Got, typename Place>
absl::Status SwapParts(const Exchange& x, const std::byte* from, const Sent& sent, const Got& got,
                       const Place& place, cudaStream_t stream) {
  RETURN_IF_NCCL_ERROR(ncclGroupStart());
  for (std::int64_t member = 0; member < x.members; ++member) {
    if (member == x.index) continue;
    const int peer = static_cast<int>(member);
    const SumPart part = sent(member);
    RETURN_IF_NCCL_ERROR(ncclSend(from + part.begin * x.element_bytes, Count(part.count), x.type, peer,
                                  x.group->communicator, stream));
    RETURN_IF_NCCL_ERROR(
        ncclRecv(place(member), Count(got(member).count), x.type, peer, x.group->communicator, stream));
  }
  RETURN_IF_NCCL_ERROR(ncclGroupEnd());
  return absl::OkStatus();
}

// Each rank gets the others' terms of its part, and adds up; of an all-reduce in parts, then, each gets the others' sums.
// The bits are those of a pushed sum (PushCommunicator), however many numbers there are.
absl::Status SumInOrder(const Exchange& x, cudaStream_t stream) {
  ASSIGN_OR_RETURN(const std::byte* const from, InParts(x, stream));
  const auto part_of = [&x](std::int64_t member) { return SumPartOf(x, member); };
  const SumPart own = part_of(x.index);
  const auto own_part = [own](std::int64_t) { return own; };
  const PushLayout& parts = x.ordered.parts;
  std::byte* const received = x.scratch + x.ordered.packing.received;
  const auto slot = [&](std::int64_t member) { return received + parts.SlotOf(member, x.index); };
  RETURN_IF_ERROR(SwapParts(x, from, part_of, own_part, slot, stream));
  const bool scatters = x.output_count != x.input_count;
  std::byte* const sum = scatters ? x.output : x.output + own.begin * x.element_bytes;
  ENGINE_CHECK(SumParts(from + own.begin * x.element_bytes, received, parts.slot, x.members, x.index, x.dtype,
                        own.count, sum, stream),
               "a sum of {}", Name(x.dtype));
  RETURN_IF_CUDA_ERROR(cudaGetLastError());
  if (scatters || x.ordered.whole) return absl::OkStatus();
  const auto place = [&](std::int64_t member) { return x.output + part_of(member).begin * x.element_bytes; };
  return SwapParts(x, x.output, own_part, part_of, place, stream);
}

absl::Status AllGather(const Exchange& x, cudaStream_t stream) {
  std::byte* to = x.layout.staged ? x.scratch : x.output;
  RETURN_IF_NCCL_ERROR(
      ncclAllGather(x.input, to, Count(x.input_count), x.type, x.group->communicator, stream));
  return x.layout.staged ? CopyBoxes(x.unpack, x.scratch, x.output, x.element_bytes, stream)
                         : absl::OkStatus();
}

absl::Status AllToAll(const Exchange& x, cudaStream_t stream) {
  RETURN_IF_ERROR(CopyBoxes(x.pack, x.input, x.scratch, x.element_bytes, stream));
  RETURN_IF_NCCL_ERROR(ncclGroupStart());
  const std::byte* from = x.scratch;
  std::byte* to = x.scratch + x.layout.received;
  for (std::int64_t member = 0; member < x.members; ++member) {
    const auto m = static_cast<size_t>(member);
    const int peer = static_cast<int>(member);
    RETURN_IF_NCCL_ERROR(
        ncclSend(from, Count(x.send_counts[m]), x.type, peer, x.group->communicator, stream));
    RETURN_IF_NCCL_ERROR(
        ncclRecv(to, Count(x.receive_counts[m]), x.type, peer, x.group->communicator, stream));
    from += x.send_counts[m] * x.element_bytes;
    to += x.receive_counts[m] * x.element_bytes;
  }
  RETURN_IF_NCCL_ERROR(ncclGroupEnd());
  return CopyBoxes(x.unpack, x.scratch + x.layout.received, x.output, x.element_bytes, stream);
}

absl::Status Slice(const Exchange& x, cudaStream_t stream) {
  return CopyBoxes(x.unpack, x.input, x.output, x.element_bytes, stream);
}

// In place, over one flat buffer in parts of equal size.
absl::Status FlatReduceScatter(const Exchange& x, cudaStream_t stream) {
  const std::int64_t part = x.input_count / x.members;
  RETURN_IF_NCCL_ERROR(ncclReduceScatter(x.input, x.output + x.index * part * x.element_bytes, Count(part),
                                         x.type, x.reduction, x.group->communicator, stream));
  return absl::OkStatus();
}

absl::Status FlatAllGather(const Exchange& x, cudaStream_t stream) {
  const std::int64_t part = x.input_count / x.members;
  RETURN_IF_NCCL_ERROR(ncclAllGather(x.input + x.index * part * x.element_bytes, x.output, Count(part),
                                     x.type, x.group->communicator, stream));
  return absl::OkStatus();
}

// Boxes with their packed end moved to offset `at` in elements.
void AddBoxes(const std::vector<Box>& boxes, std::int64_t Box::*packed_end, std::int64_t at,
              std::vector<Box>* out) {
  for (Box box : boxes) {
    box.*packed_end += at;
    out->push_back(box);
  }
}

// What goes from one tensor to another, packed in the order of the receiver's.
struct Parcel {
  Extent extent;
  Shape sizes;
};
Parcel ParcelOf(const Extent& from, const Extent& to) {
  Extent extent = Intersection(from, to);
  Shape sizes = SizesOf(extent);
  return {std::move(extent), std::move(sizes)};
}

void PlanPacking(const CollectiveArgs& args, Exchange* x) {
  std::int64_t at = 0;
  for (const Extent& theirs : args.member_outputs) {
    const Parcel parcel = ParcelOf(args.input.extent, theirs);
    AddBoxes(CommonBoxes(args.input.extent, args.input.shape, parcel.extent, parcel.sizes), &Box::to, at,
             &x->pack);
    x->send_counts.push_back(parcel.sizes.elements());
    at += parcel.sizes.elements();
  }
}

void PlanUnpacking(const CollectiveArgs& args, Exchange* x) {
  std::int64_t at = 0;
  for (const Extent& theirs : args.member_inputs) {
    const Parcel parcel = ParcelOf(theirs, args.output.extent);
    AddBoxes(CommonBoxes(parcel.extent, parcel.sizes, args.output.extent, args.output.shape), &Box::from, at,
             &x->unpack);
    x->receive_counts.push_back(parcel.sizes.elements());
    at += parcel.sizes.elements();
  }
}

using EnqueueExchange = absl::Status (*)(const Exchange&, cudaStream_t);

EnqueueExchange EnqueueOf(const plan::Instruction& instruction) {
  if (instruction.AddsInOrder()) return SumInOrder;
  switch (instruction.collective()) {
    case Collective::kAllReduce:
      return instruction.reduction() == graph::Reduction::kLogSumExp ? AllReduceLogSumExp : AllReduce;
    case Collective::kReduceScatter:
      return instruction.IsBucketExchange() ? FlatReduceScatter : ReduceScatter;
    case Collective::kAllGather:
      return instruction.IsBucketExchange() ? FlatAllGather : AllGather;
    case Collective::kAllToAll:
      return AllToAll;
    case Collective::kSlice:
    case Collective::kNone:
      return Slice;
  }
  return Slice;
}

absl::Status CheckArgs(const CollectiveArgs& args, const Exchange& x) {
  const plan::Instruction& instruction = *args.instruction;
  if (instruction.IsBucketExchange() && args.input.data != args.output.data) {
    return Internal("{}: a flat collective works in place", instruction.name);
  }
  if (instruction.reduction() == graph::Reduction::kLogSumExp && args.input.dtype != DType::kF32) {
    return Internal("{}: a log-sum-exp of {}", instruction.name, Name(args.input.dtype));
  }
  if (x.scratch_bytes > static_cast<std::int64_t>(args.scratch.size())) {
    return Internal("{}: needs {} bytes of scratch, the plan gives {}", instruction.name, x.scratch_bytes,
                    args.scratch.size());
  }
  return absl::OkStatus();
}

}  // namespace

NcclCommunicator::~NcclCommunicator() {
  BeginAbort();
  for (const std::future<void>& abort : aborts_) abort.wait();
  cudaFree(warm_memory_);
}

void NcclCommunicator::BeginAbort() {
  for (const auto& [key, group] : groups_) {
    if (group->communicator == nullptr) continue;
    aborts_.push_back(std::async(std::launch::async, [this, communicator = group->communicator] {
      if (backend_.Enter().ok()) ncclCommAbort(communicator);
    }));
    group->communicator = nullptr;
  }
}

NcclGroup* NcclCommunicator::GroupOf(const Key& key) {
  std::unique_ptr<NcclGroup>& group = groups_[key];
  if (group == nullptr) group = std::make_unique<NcclGroup>();
  return group.get();
}

NcclCommunicator::Key NcclCommunicator::TransferKey(std::int64_t peer, std::int32_t stream) const {
  const bool next = stream == plan::kSendNext || stream == plan::kReceivePrevious;
  const bool sends = stream == plan::kSendNext || stream == plan::kSendPrevious;
  return {.ranks = {sends ? rank_ : peer, sends ? peer : rank_}, .use = next ? Use::kNext : Use::kPrevious};
}

absl::StatusOr<std::unique_ptr<Launch>> NcclCommunicator::Prepare(CollectiveArgs args) {
  const plan::Instruction& instruction = *args.instruction;
  Exchange x;
  x.members = static_cast<std::int64_t>(args.group.size());
  x.index = args.index;
  x.dtype = args.input.dtype;
  x.element_bytes = SizeOf(x.dtype);
  x.input = args.input.as<std::byte>();
  x.output = args.output.as<std::byte>();
  x.input_count = args.input.shape.elements();
  x.output_count = args.output.shape.elements();
  x.scratch = args.scratch.data();
  if (instruction.reduction() == graph::Reduction::kMax) x.reduction = ncclMax;
  if (instruction.collective() == Collective::kSlice) {
    x.unpack = CommonBoxes(args.input.extent, args.input.shape, args.output.extent, args.output.shape);
  } else {
    x.group = GroupOf({.ranks = args.group, .use = Use::kCollectives});
    ASSIGN_OR_RETURN(x.type, NcclTypeOf(args.input.dtype));
  }
  if (!instruction.IsBucketExchange() && instruction.collective() != Collective::kSlice) {
    const graph::TensorType from = {args.input.shape, args.input.dtype};
    const graph::TensorType to = {args.output.shape, args.output.dtype};
    const graph::Axis axis = instruction.AsConversion()->axis;
    x.layout = LayoutOfExchange(instruction.collective(), instruction.reduction(), from, to, axis, x.members);
    x.scratch_bytes = x.layout.bytes;
    if (instruction.AddsInOrder()) {
      x.ordered = LayoutOfOrderedSum(instruction.collective(), from, to, axis, x.members);
      x.scratch_bytes = x.ordered.bytes;
    }
    if (x.layout.packed) PlanPacking(args, &x);
    if (x.layout.staged && instruction.reduction() == graph::Reduction::kSum) PlanUnpacking(args, &x);
  }
  RETURN_IF_ERROR(CheckArgs(args, x));
  const EnqueueExchange enqueue = EnqueueOf(instruction);
  return std::make_unique<NcclLaunch>(
      [enqueue, x = std::move(x), name = instruction.name](cudaStream_t stream) {
        const absl::Status status = enqueue(x, stream);
        return status.ok() ? status : WithContext(status, name);
      },
      device_.stream(instruction.stream));
}

absl::Status NcclCommunicator::PrepareTransfer(std::int64_t peer, std::int32_t stream, bool push) {
  (void)push;
  GroupOf(TransferKey(peer, stream));
  return absl::OkStatus();
}

absl::StatusOr<ncclUniqueId> NcclCommunicator::AgreeOnId(const Key& key) {
  std::string name = fmt::format("nccl/{}", static_cast<int>(key.use));
  for (std::int64_t rank : key.ranks) name += fmt::format(".{}", rank);
  ncclUniqueId id;
  if (key.ranks.front() == rank_) {
    RETURN_IF_NCCL_ERROR(ncclGetUniqueId(&id));
    RETURN_IF_ERROR(store_.Set(name, std::string(id.internal, sizeof(id.internal))));
  } else {
    ASSIGN_OR_RETURN(const std::string bytes, store_.Get(name));
    if (bytes.size() != sizeof(id.internal)) return Internal("{}: {} bytes", name, bytes.size());
    std::memcpy(id.internal, bytes.data(), bytes.size());
  }
  return id;
}

absl::Status NcclCommunicator::Make(const Key& key, NcclGroup* group) {
  ASSIGN_OR_RETURN(const ncclUniqueId id, AgreeOnId(key));
  const auto index = std::find(key.ranks.begin(), key.ranks.end(), rank_) - key.ranks.begin();
  int device = 0;
  RETURN_IF_CUDA_ERROR(cudaGetDevice(&device));
  // It waits for the other ranks, where it cannot be told that one of them is gone; so a thread waits there,
  // and is left behind then.
  const auto made = std::make_shared<std::promise<absl::StatusOr<ncclComm_t>>>();
  std::future<absl::StatusOr<ncclComm_t>> result = made->get_future();
  std::thread([made, device, id, ranks = static_cast<int>(key.ranks.size()),
               index = static_cast<int>(index)] {
    ncclComm_t communicator = nullptr;
    const auto init = [&]() -> absl::Status {
      RETURN_IF_CUDA_ERROR(cudaSetDevice(device));
      RETURN_IF_NCCL_ERROR(ncclCommInitRank(&communicator, ranks, id, index));
      return absl::OkStatus();
    };
    const absl::Status status = init();
    made->set_value(status.ok() ? absl::StatusOr<ncclComm_t>(communicator) : status);
  }).detach();
  RETURN_IF_ERROR(backend_.Await([&] {
    return result.wait_for(std::chrono::seconds(0)) == std::future_status::ready ? cudaSuccess
                                                                                 : cudaErrorNotReady;
  }));
  ASSIGN_OR_RETURN(group->communicator, result.get());
  return absl::OkStatus();
}

absl::Status NcclCommunicator::Warm(const Key& key, const NcclGroup& group) {
  const cudaStream_t stream = device_.compute();
  if (key.use == Use::kCollectives) {
    RETURN_IF_NCCL_ERROR(
        ncclAllReduce(warm_memory_, warm_memory_, 2, ncclFloat32, ncclSum, group.communicator, stream));
  } else if (key.ranks.front() == rank_) {
    RETURN_IF_NCCL_ERROR(ncclSend(warm_memory_, 2, ncclFloat32, kReceiver, group.communicator, stream));
  } else {
    RETURN_IF_NCCL_ERROR(ncclRecv(warm_memory_, 2, ncclFloat32, kSender, group.communicator, stream));
  }
  return absl::OkStatus();
}

absl::Status NcclCommunicator::Connect() {
  if (groups_.empty()) return absl::OkStatus();
  RETURN_IF_CUDA_ERROR(cudaMalloc(reinterpret_cast<void**>(&warm_memory_), 2 * sizeof(float)));
  RETURN_IF_CUDA_ERROR(cudaMemsetAsync(warm_memory_, 0, 2 * sizeof(float), device_.compute()));
  for (const auto& [key, group] : groups_) {
    if (on_connecting_) {
      on_connecting_(fmt::format("connecting ranks {} by NCCL", fmt::join(key.ranks, ", ")));
    }
    RETURN_IF_ERROR(Make(key, group.get()));
    RETURN_IF_ERROR(Warm(key, *group));
    RETURN_IF_ERROR(backend_.Synchronize());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::int64_t> NcclCommunicator::Send(std::int64_t peer, std::int32_t channel,
                                                    const std::byte* data, std::int64_t bytes,
                                                    std::int32_t stream, std::int64_t there) {
  (void)there;
  (void)channel;  // the order of a direction's transfers is the same on both sides
  const NcclGroup* group = GroupOf(TransferKey(peer, stream));
  RETURN_IF_NCCL_ERROR(
      ncclSend(data, Count(bytes), ncclUint8, kReceiver, group->communicator, device_.stream(stream)));
  return 0;
}

absl::Status NcclCommunicator::WaitSent(std::int64_t, std::int32_t, std::int64_t) { return absl::OkStatus(); }

absl::Status NcclCommunicator::Receive(std::int64_t peer, std::int32_t channel, std::byte* data,
                                       std::int64_t bytes, std::int32_t stream) {
  (void)channel;
  const NcclGroup* group = GroupOf(TransferKey(peer, stream));
  RETURN_IF_NCCL_ERROR(
      ncclRecv(data, Count(bytes), ncclUint8, kSender, group->communicator, device_.stream(stream)));
  return absl::OkStatus();
}

absl::Status NcclCommunicator::Health() const {
  for (const auto& [key, group] : groups_) {
    if (group->communicator == nullptr) continue;
    ncclResult_t error = ncclSuccess;
    RETURN_IF_NCCL_ERROR(ncclCommGetAsyncError(group->communicator, &error));
    RETURN_IF_ERROR(NcclStatus(error, "NCCL"));
  }
  return absl::OkStatus();
}

}  // namespace engine::backend::cuda
