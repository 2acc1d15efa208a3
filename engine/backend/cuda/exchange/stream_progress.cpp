#include "engine/backend/cuda/exchange/stream_progress.h"

#include <fmt/ranges.h>

#include <atomic>
#include <cstddef>
#include <utility>

namespace engine::backend::cuda {
namespace {

// Words stand apart, so that no two streams write to one line.
constexpr std::size_t kApart = 16;

bool IsSend(std::int32_t stream) { return stream == plan::kSendNext || stream == plan::kSendPrevious; }

}  // namespace

StreamProgress::~StreamProgress() { cudaFreeHost(words_); }

absl::Status StreamProgress::Make() {
  if (words_ != nullptr) return absl::OkStatus();
  constexpr std::size_t kWords = plan::kStreams * kApart;
  RETURN_IF_CUDA_ERROR(cudaHostAlloc(reinterpret_cast<void**>(&words_), kWords * sizeof(*words_),
                                     cudaHostAllocMapped | cudaHostAllocPortable));
  for (std::size_t i = 0; i < kWords; ++i) words_[i] = 0;
  return absl::OkStatus();
}

absl::StatusOr<ExchangeNotes> StreamProgress::Add(std::int32_t stream, std::string what) {
  RETURN_IF_ERROR(Make());
  std::vector<std::string>& names = names_[static_cast<std::size_t>(stream)];
  names.push_back(std::move(what));
  return NotesOf(stream, static_cast<std::uint32_t>(names.size() - 1));
}

absl::Status StreamProgress::AddTransfers(std::int32_t stream, std::int64_t peer) {
  peers_[static_cast<std::size_t>(stream)] = peer;
  return Make();
}

ExchangeNotes StreamProgress::Transfer(std::int32_t stream, std::int32_t channel) const {
  return NotesOf(stream, static_cast<std::uint32_t>(channel));
}

// 0 is a stream that has exchanged nothing yet.
ExchangeNotes StreamProgress::NotesOf(std::int32_t stream, std::uint32_t number) const {
  auto* const word = reinterpret_cast<std::byte*>(words_ + static_cast<std::size_t>(stream) * kApart);
  const std::uint32_t begun = 2 * (number + 1);
  return {.begun = {.word = word, .value = begun}, .ended = {.word = word, .value = begun + 1}};
}

std::string StreamProgress::NameOf(std::int32_t stream, std::uint32_t number) const {
  const std::vector<std::string>& names = names_[static_cast<std::size_t>(stream)];
  if (number < names.size()) return names[number];
  return fmt::format("transfer {}, {} rank {}", number, IsSend(stream) ? "to" : "from",
                     peers_[static_cast<std::size_t>(stream)]);
}

std::string StreamProgress::Text() const {
  if (words_ == nullptr) return "";
  std::vector<std::string> in, after;
  for (std::int32_t stream = 0; stream < plan::kStreams; ++stream) {
    const std::uint32_t value =
        std::atomic_ref<std::uint32_t>(words_[static_cast<std::size_t>(stream) * kApart]).load();
    if (value == 0) continue;
    (value % 2 == 0 ? in : after).push_back(NameOf(stream, value / 2 - 1));
  }
  if (!in.empty()) return fmt::format("its GPU is in {}", fmt::join(in, "; and in "));
  return after.empty() ? "" : fmt::format("its GPU computes after {}", fmt::join(after, "; and after "));
}

}  // namespace engine::backend::cuda
