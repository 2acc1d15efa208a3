// A decoder without a model, for tests of what stands above one.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/base/philox.h"
#include "engine/base/status.h"
#include "engine/generate/decoder.h"

namespace engine::generate::testing {

// Logits follow from all tokens of a slot and nothing else, so that slots that are mixed up show. It checks how it is called.
class HashDecoder final : public Decoder {
 public:
  HashDecoder(std::int64_t slots, std::int64_t context, std::int64_t vocabulary)
      : tokens_(static_cast<std::size_t>(slots)), context_(context), vocabulary_(vocabulary) {}

  std::int64_t slots() const override { return static_cast<std::int64_t>(tokens_.size()); }
  std::int64_t context() const override { return context_; }
  std::int64_t vocabulary() const override { return vocabulary_; }

  absl::Status Prefill(std::int64_t slot, std::span<const std::int32_t> tokens, std::int64_t rows,
                       std::vector<float>* logits) override {
    ++prefills;
    if (on_call) RETURN_IF_ERROR(on_call());
    const auto count = static_cast<std::int64_t>(tokens.size());
    if (count < 1 || count > context_ || rows < 1 || rows > count)
      return Internal("a prefill of {} tokens", count);
    tokens_[static_cast<std::size_t>(slot)].assign(tokens.begin(), tokens.end());
    logits->clear();
    for (std::int64_t row = count - rows; row < count; ++row)
      AppendLogits(tokens.first(static_cast<std::size_t>(row) + 1), logits);
    return absl::OkStatus();
  }

  absl::Status Step(std::span<const Next> next, std::vector<float>* logits) override {
    ++steps;
    widest_step = std::max<std::int64_t>(widest_step, static_cast<std::int64_t>(next.size()));
    if (on_call) RETURN_IF_ERROR(on_call());
    logits->clear();
    for (const Next& one : next) {
      std::vector<std::int32_t>& held = tokens_[static_cast<std::size_t>(one.slot)];
      if (held.empty() || static_cast<std::int64_t>(held.size()) >= context_)
        return Internal("a step of a full slot");
      held.push_back(one.token);
      AppendLogits(held, logits);
    }
    return absl::OkStatus();
  }

  // Those that follow these tokens.
  void AppendLogits(std::span<const std::int32_t> tokens, std::vector<float>* logits) const {
    std::uint64_t hash = 1469598103934665603ULL;
    for (const std::int32_t token : tokens)
      hash = (hash ^ static_cast<std::uint64_t>(token + 1)) * 1099511628211ULL;
    for (std::int64_t v = 0; v < vocabulary_; ++v) {
      const float uniform = UniformFromWord(PhiloxWord({1, 2}, static_cast<std::uint64_t>(v), hash));
      logits->push_back(4.0F * uniform);
    }
  }

  std::function<absl::Status()> on_call = nullptr;  // before each call; an error is the call's
  std::atomic<std::int64_t> prefills = 0, steps = 0, widest_step = 0;

 private:
  std::vector<std::vector<std::int32_t>> tokens_;
  std::int64_t context_, vocabulary_;
};

}  // namespace engine::generate::testing
