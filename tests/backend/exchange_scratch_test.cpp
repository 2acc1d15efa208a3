// What an exchange between GPUs may use of scratch: by NCCL, and pushed.
#include "engine/backend/cuda/profile/scratch_exchange.h"

#include <doctest/doctest.h>

#include <vector>

#include "engine/backend/cuda/profile/profile.h"
#include "engine/ops/fused.h"
#include "engine/ops/ops.h"

namespace engine::backend::cuda {
namespace {

using graph::Axis;
using graph::Reduction;
using graph::TensorType;
using plan::Collective;

constexpr Reduction kSum = Reduction::kSum;

std::int64_t Bytes(Collective collective, Reduction reduction, const TensorType& from, const TensorType& to,
                   std::int64_t members, bool push) {
  plan::Conversion conversion;
  conversion.collective = collective;
  conversion.reduction = reduction;
  conversion.push = push;
  return CudaProfile(true).exchange_bytes(conversion, from, to, members);
}

// By NCCL, in order of rank.
std::int64_t OrderedBytes(Collective collective, const TensorType& from, const TensorType& to,
                          std::int64_t members) {
  plan::Conversion conversion;
  conversion.collective = collective;
  conversion.addition = plan::Addition::kInOrder;
  return CudaProfile(true).exchange_bytes(conversion, from, to, members);
}

}  // namespace

TEST_CASE("exchange scratch: what is pushed is what the others send") {
  const TensorType whole = {{4, 16, 24}, DType::kBF16};    // 3072 bytes
  const TensorType samples = {{2, 16, 24}, DType::kBF16};  // 1536 bytes, a run of it
  const TensorType tokens = {{4, 8, 24}, DType::kBF16};    // 1536 bytes, strided
  CHECK(Bytes(Collective::kAllReduce, kSum, whole, whole, 2, true) == 3072);
  CHECK(Bytes(Collective::kAllReduce, kSum, whole, whole, 2, false) == 0);
  CHECK(Bytes(Collective::kReduceScatter, kSum, whole, samples, 2, true) == 1536);
  CHECK(Bytes(Collective::kReduceScatter, kSum, whole, samples, 2, false) == 0);
  CHECK(Bytes(Collective::kAllGather, kSum, samples, whole, 2, true) == 0);
  // Strided parts: NCCL, which may have to take over, packs all of it.
  CHECK(LayoutOfPush(Collective::kReduceScatter, kSum, whole, tokens, 2).bytes == 1536);
  CHECK(Bytes(Collective::kReduceScatter, kSum, whole, tokens, 2, true) == 3072);
  CHECK(LayoutOfPush(Collective::kAllToAll, kSum, samples, tokens, 2).bytes == 0);
  CHECK(Bytes(Collective::kAllToAll, kSum, samples, tokens, 2, true) == 2 * 1536);
}

TEST_CASE("exchange scratch: sums of more than two go in parts") {
  const TensorType whole = {{1000}, DType::kF32};
  // ⌈1000 / 3⌉ = 334, on a border of 16: 336 elements, 1344 bytes, in slots of 256: 1536.
  const PushLayout layout = LayoutOfPush(Collective::kAllReduce, kSum, whole, whole, 3);
  CHECK(layout.part == 336);
  CHECK(layout.slot == 1536);
  CHECK(layout.bytes == 2 * 1536);
  // A rank has no slot for itself.
  CHECK(layout.SlotOf(1, 0) == 0);
  CHECK(layout.SlotOf(2, 0) == 1536);
  CHECK(layout.SlotOf(0, 1) == 0);
  CHECK(layout.SlotOf(2, 1) == 1536);
  CHECK(layout.SlotOf(1, 2) == 1536);
}

TEST_CASE("exchange scratch: a sum in order of rank by NCCL has a slot for each other rank's term") {
  // 96 KiB: all of each term.
  const TensorType few = {{48, 1024}, DType::kBF16};
  CHECK(OrderedBytes(Collective::kAllReduce, few, few, 4) == 3 * 98304);
  // 384 KiB: a quarter of each.
  const TensorType many = {{192, 1024}, DType::kBF16};
  CHECK(OrderedBytes(Collective::kAllReduce, many, many, 4) == 3 * 98304);
  CHECK(OrderedBytes(Collective::kReduceScatter, many, few, 4) == 3 * 98304);
  // Strided parts are packed before.
  const TensorType columns = {{192, 256}, DType::kBF16};
  CHECK(OrderedBytes(Collective::kReduceScatter, many, columns, 4) == 393216 + 3 * 98304);
}

TEST_CASE("parts of a sum are added by norms of rows that a block holds, and by no other kernel") {
  const plan::DeviceProfile profile = CudaProfile(true);
  std::vector<std::string_view> adding;
  for (const auto& ops : {ops::AllOps(), ops::AllFusedOps()}) {
    for (const graph::OpDef* op : ops) {
      for (const Shape& shape : {Shape{}, Shape{2}}) {  // a loss, a state
        const int input = profile.adds_part(*op, {shape, DType::kF64}, {});
        CHECK(input == -1);
      }
      if (!AddsPart(op->name)) CHECK(profile.adds_part(*op, {{}, DType::kF32}, {}) == -1);
      const int input = profile.adds_part(*op, {{4, 1024, 1280}, DType::kBF16}, {});
      if (input >= 0) adding.push_back(op->name);
      CHECK(profile.adds_part(*op, {{1, 1 << 20}, DType::kBF16}, {}) == -1);
      CHECK(profile.adds_part(*op, {{4, 1280}, DType::kE4M3}, {}) == -1);
    }
  }
  CHECK(adding.size() == 6);
}

TEST_CASE("exchange scratch: a log-sum-exp has all parts side by side") {
  const TensorType whole = {{1001}, DType::kF32};
  const PushLayout layout = LayoutOfPush(Collective::kAllReduce, Reduction::kLogSumExp, whole, whole, 3);
  CHECK(layout.bytes == 3 * 4004);
  CHECK(layout.SlotOf(2, 0) == 2 * 4004);
  CHECK(layout.SlotOf(0, 2) == 0);
}

}  // namespace engine::backend::cuda
