#include "engine/compile/transfer_buffers.h"

#include <utility>

namespace engine::compile {
namespace {

// Finds or makes, hop by hop along the pipeline, the place of each value that a chunk of the stage sends or receives.
class TransferPlacer {
 public:
  TransferPlacer(const plan::Plan& plan, std::int64_t halves, const SlotsByChunk& slots,
                 UnfinishedStage* stage, std::int64_t* item)
      : plan_(plan), halves_(halves), slots_(slots), stage_(stage), item_(item) {}

  // `id`: of Plan::transfers. In their order, so that a value's hops follow each other.
  void Add(std::int32_t id) {
    const plan::Transfer& transfer = plan_.transfers[static_cast<size_t>(id)];
    if (IsHere(transfer.from_chunk)) buffers_.send[id] = PlaceIn(transfer.value, transfer.from_chunk);
    if (!IsHere(transfer.to_chunk)) return;
    const HalfBuffers place = PlaceIn(transfer.value, transfer.to_chunk);
    buffers_.receive[id] = place;
    arrived_[{transfer.value, transfer.to_chunk}] = place;
  }

  TransferBuffers TakeBuffers() { return std::move(buffers_); }

 private:
  bool IsHere(std::int32_t chunk) const {
    return plan_.chunk_stage[static_cast<size_t>(chunk)] == stage_->index;
  }

  // Where the chunk has the value already: in its slot, or where an earlier hop has brought it; else a new place.
  HalfBuffers PlaceIn(std::int32_t value, std::int32_t chunk) {
    const auto slot = slots_.find(chunk);
    if (slot != slots_.end() && slot->second.values.first.contains(value)) {
      HalfBuffers kept;
      kept[0] = slot->second.values.first.at(value);
      if (halves_ > 1) kept[1] = slot->second.values.second.at(value);
      return kept;
    }
    const auto hop = arrived_.find({value, chunk});
    return hop != arrived_.end() ? hop->second : Reserve(value);
  }

  HalfBuffers Reserve(std::int32_t value) {
    HalfBuffers buffer;
    for (std::int64_t half = 0; half < halves_; ++half)
      buffer[static_cast<size_t>(half)] = stage_->ReserveValue(Unplaced(plan_, value), item_);
    return buffer;
  }

  const plan::Plan& plan_;
  const std::int64_t halves_;
  const SlotsByChunk& slots_;
  UnfinishedStage* stage_;
  std::int64_t* item_;
  TransferBuffers buffers_;
  absl::flat_hash_map<std::pair<std::int32_t, std::int32_t>, HalfBuffers> arrived_;  // by value, chunk
};

}  // namespace

TransferBuffers PlaceTransfers(const plan::Plan& plan, const CutGraph& graph, std::int64_t halves,
                               const SlotsByChunk& slots, UnfinishedStage* stage, std::int64_t* item) {
  TransferPlacer placer(plan, halves, slots, stage, item);
  const std::int32_t end = graph.base + static_cast<std::int32_t>(graph.local.values.size());
  for (size_t t = 0; t < plan.transfers.size(); ++t) {
    const std::int32_t value = plan.transfers[t].value;
    if (value >= graph.base && value < end) placer.Add(static_cast<std::int32_t>(t));
  }
  return placer.TakeBuffers();
}

void AddTransfers(const plan::Plan& plan, const TransferBuffers& buffers, std::int32_t chunk,
                  std::int64_t halves, HalfStorage* storage) {
  const auto add = [&](const plan::Transfer& transfer, const HalfBuffers& refs) {
    storage->first[transfer.value] = refs[0];
    if (halves > 1) storage->second[transfer.value] = refs[1];
  };
  for (const auto& [t, refs] : buffers.send) {
    const plan::Transfer& transfer = plan.transfers[static_cast<size_t>(t)];
    if (transfer.from_chunk == chunk) add(transfer, refs);
  }
  for (const auto& [t, refs] : buffers.receive) {
    const plan::Transfer& transfer = plan.transfers[static_cast<size_t>(t)];
    if (transfer.to_chunk == chunk) add(transfer, refs);
  }
}

}  // namespace engine::compile
