// A decoder without a model, for tests of what stands above one.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <vector>

#include "engine/base/philox.h"
#include "engine/base/status.h"
#include "engine/generate/decoder.h"

namespace engine::generate::testing {

// The `count` likeliest tokens of these logits, and the sums over all: by sorting them all.
inline Likeliest LikeliestOf(std::span<const float> logits, std::int64_t count, double temperature) {
  Likeliest likeliest;
  double sum = 0, tempered = 0;
  for (std::size_t v = 0; v < logits.size(); ++v) {
    likeliest.tokens.push_back({static_cast<std::int32_t>(v), logits[v]});
    sum += std::exp(static_cast<double>(logits[v]));
    tempered += std::exp(logits[v] / (temperature > 0 ? temperature : 1));
  }
  std::stable_sort(likeliest.tokens.begin(), likeliest.tokens.end(),
                   [](const Likelihood& a, const Likelihood& b) { return a.value > b.value; });
  likeliest.tokens.resize(std::min(logits.size(), static_cast<std::size_t>(count)));
  likeliest.log_sum = std::log(sum);
  likeliest.tempered_log_sum = std::log(tempered);
  return likeliest;
}

// Logits follow from all tokens of a slot and nothing else, so that slots that are mixed up show. It checks how it is called.
class HashDecoder final : public Decoder {
 public:
  HashDecoder(std::int64_t slots, std::int64_t context, std::int64_t vocabulary)
      : tokens_(static_cast<std::size_t>(slots)), context_(context), vocabulary_(vocabulary) {}

  std::int64_t slots() const override { return static_cast<std::int64_t>(tokens_.size()); }
  std::int64_t context() const override { return context_; }
  std::int64_t vocabulary() const override { return vocabulary_; }

  std::int64_t slot_ranks() const override { return ranks; }

  absl::Status Prefill(std::span<const Prompt> prompts) override {
    ++prefills;
    if (on_call) RETURN_IF_ERROR(on_call());
    rows_.clear();
    temperatures_.clear();
    std::set<std::int64_t> with_prompt;
    for (const Prompt& prompt : prompts) {
      const auto count = static_cast<std::int64_t>(prompt.tokens.size());
      if (count < 1 || count > context_ || prompt.rows < 1 || prompt.rows > count)
        return Internal("a prefill of {} tokens", count);
      if (!with_prompt.insert(prompt.slot % ranks).second) return Internal("two prompts of one rank");
      tokens_[static_cast<std::size_t>(prompt.slot)].assign(prompt.tokens.begin(), prompt.tokens.end());
      for (std::int64_t row = count - prompt.rows; row < count; ++row) {
        AppendLogits(prompt.tokens.first(static_cast<std::size_t>(row) + 1), &rows_);
        temperatures_.push_back(row + 1 < count ? 1 : prompt.temperature);
      }
    }
    return absl::OkStatus();
  }

  absl::Status Step(std::span<const Next> next) override {
    ++steps;
    widest_step = std::max<std::int64_t>(widest_step, static_cast<std::int64_t>(next.size()));
    if (on_call) RETURN_IF_ERROR(on_call());
    rows_.clear();
    temperatures_.clear();
    for (const Next& one : next) {
      std::vector<std::int32_t>& held = tokens_[static_cast<std::size_t>(one.slot)];
      if (held.empty() || static_cast<std::int64_t>(held.size()) >= context_)
        return Internal("a step of a full slot");
      held.push_back(one.token);
      AppendLogits(held, &rows_);
      temperatures_.push_back(one.temperature);
    }
    return absl::OkStatus();
  }

  absl::Status ReadLogits(std::int64_t first, std::int64_t count, std::vector<float>* logits) override {
    rows_read += count;
    const auto begin = rows_.begin() + first * vocabulary_;
    logits->assign(begin, begin + count * vocabulary_);
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<Likeliest>> ReadLikeliest(std::int64_t row) override {
    if (known == 0) return std::nullopt;
    const std::span<const float> logits = std::span(rows_).subspan(
        static_cast<std::size_t>(row * vocabulary_), static_cast<std::size_t>(vocabulary_));
    return LikeliestOf(logits, known, temperatures_[static_cast<std::size_t>(row)]);
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
  std::int64_t ranks = 1;  // that have slots
  std::int64_t known = 0;  // how many tokens ReadLikeliest tells; 0: it tells nothing
  std::int64_t rows_read = 0;

 private:
  std::vector<std::vector<std::int32_t>> tokens_;
  std::int64_t context_, vocabulary_;
  std::vector<float> rows_;
  std::vector<double> temperatures_;  // of the rows
};

}  // namespace engine::generate::testing
