#include "engine/state/copies.h"

#include <algorithm>
#include <map>
#include <memory>

#include "engine/base/hash.h"

namespace engine::state {
namespace {

using Holders = std::vector<const RankHashes*>;

std::string ExtentText(const Extent& extent) {
  std::string text;
  for (const DimExtent& dim : extent.dims) {
    if (!text.empty()) text += "×";
    for (const Interval& interval : dim)
      text += fmt::format("[{},{})", interval.start, interval.start + interval.length);
  }
  return text;
}

// Of bytes in the rank's arena, through a little memory of the host.
absl::StatusOr<std::string> HashBytes(const void* device, std::int64_t bytes, backend::Backend& backend) {
  constexpr std::int64_t kAtOnce = std::int64_t{64} << 20;
  const auto host =
      std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(std::min(bytes, kAtOnce)));
  Hasher hasher;
  for (std::int64_t at = 0; at < bytes; at += kAtOnce) {
    const std::int64_t count = std::min(kAtOnce, bytes - at);
    RETURN_IF_ERROR(backend.Download(host.get(), static_cast<const std::byte*>(device) + at, count));
    hasher.Update(host.get(), static_cast<size_t>(count));
  }
  return hasher.HexDigest();
}

std::string NamesOf(const Holders& holders) {
  constexpr size_t kMostNamed = 8;
  std::string text;
  for (size_t i = 0; i < std::min(kMostNamed, holders.size()); ++i)
    text += fmt::format("{}{} ({})", i == 0 ? "" : ", ", holders[i]->rank, holders[i]->host);
  if (holders.size() > kMostNamed) text += fmt::format(" and {} more", holders.size() - kMostNamed);
  return fmt::format("{} {}", holders.size() == 1 ? "rank" : "ranks", text);
}

// What the holders of one piece have, by hash.
using Versions = std::map<std::string, Holders>;

// The version that more than half of the holders have; null where there is none.
const Holders* Majority(const Versions& versions) {
  size_t count = 0;
  for (const auto& [hash, holders] : versions) count += holders.size();
  for (const auto& [hash, holders] : versions) {
    if (2 * holders.size() > count) return &holders;
  }
  return nullptr;
}

Holders AllBut(const Versions& versions, const Holders* majority) {
  Holders others;
  for (const auto& [hash, holders] : versions) {
    if (&holders != majority) others.insert(others.end(), holders.begin(), holders.end());
  }
  std::sort(others.begin(), others.end(),
            [](const RankHashes* a, const RankHashes* b) { return a->rank < b->rank; });
  return others;
}

std::string FaultOf(const std::string& piece, const Versions& versions) {
  const Holders* const majority = Majority(versions);
  const Holders others = AllBut(versions, majority);
  if (majority != nullptr) {
    return fmt::format("{} {} other bits of {} than {} other ranks that have it, which agree",
                       NamesOf(others), others.size() == 1 ? "holds" : "hold", piece, majority->size());
  }
  return fmt::format("{} hold different bits of {}, and no majority says which are right", NamesOf(others),
                     piece);
}

}  // namespace

absl::StatusOr<std::vector<PieceHash>> HashWeights(const plan::Plan& plan, executor::RankExecutor& executor) {
  std::vector<PieceHash> pieces;
  std::map<std::int32_t, std::string> places;  // by parameter
  for (const executor::LocalTensor& tensor : executor.Parameters()) {
    const std::string place = fmt::format(
        "{} {}", plan.parameters[static_cast<size_t>(tensor.parameter)].name, ExtentText(tensor.view.extent));
    places[tensor.parameter] = place;
    if (tensor.view.data == nullptr) continue;
    const std::int64_t bytes = tensor.view.shape.elements() * SizeOf(tensor.view.dtype);
    ASSIGN_OR_RETURN(std::string hash, HashBytes(tensor.view.data, bytes, executor.backend()));
    pieces.push_back({place, std::move(hash)});
  }
  for (const executor::OptimizerRange& range : executor.OptimizerState()) {
    if (range.master == nullptr) continue;
    const std::int64_t bytes = (range.end - range.begin) * SizeOf(DType::kF32);
    ASSIGN_OR_RETURN(std::string hash, HashBytes(range.master, bytes, executor.backend()));
    pieces.push_back({fmt::format("{}, the fp32 master of its elements {} to {}", places[range.parameter],
                                  range.begin, range.end - 1),
                      std::move(hash)});
  }
  return pieces;
}

absl::Status CompareCopies(const std::vector<RankHashes>& ranks) {
  std::map<std::string, Versions> pieces;
  for (const RankHashes& rank : ranks) {
    for (const PieceHash& piece : rank.pieces) pieces[piece.piece][piece.hash].push_back(&rank);
  }
  std::string first;
  size_t differ = 0;
  for (const auto& [piece, versions] : pieces) {
    if (versions.size() < 2) continue;
    ++differ;
    // One with a majority says more.
    if (first.empty() || (Majority(versions) != nullptr && first.find("no majority") != std::string::npos))
      first = FaultOf(piece, versions);
  }
  if (differ == 0) return absl::OkStatus();
  return Internal(
      "copies of weights differ, so a machine has stored or computed something wrong: {}{}\n"
      "    hint: `engine run` goes on from the last checkpoint, whose weights agreed; on another machine "
      "than that one",
      first, differ == 1 ? "" : fmt::format("; of {} pieces in all copies differ", differ));
}

}  // namespace engine::state
