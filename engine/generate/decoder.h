// What makes text needs of a model: logits that follow a sequence of tokens. Everything above it (sampling, batching,
// the server) knows no model.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/executor/executor.h"
#include "engine/generate/sampling.h"
#include "engine/plan/plan.h"

namespace engine::generate {

// Sequences of tokens in a fixed number of slots, each with the tokens it has seen so far. One thread at a time calls it.
// After an error of a call its slots hold nothing that counts: they begin anew by Prefill. Tokens are those of the
// vocabulary, and slots are 0 … slots() − 1: the caller sees to both.
//
// Slots lie on one rank or on several (dp, ep): slot s on rank s mod slot_ranks(), which does no more work for one sequence of its own than
// without any.
//
// Prefill and Step leave rows, each for what follows a token, which are read until the next of these calls.
class Decoder {
 public:
  virtual ~Decoder() = default;

  virtual std::int64_t slots() const = 0;
  virtual std::int64_t context() const = 0;     // tokens that a slot can hold
  virtual std::int64_t vocabulary() const = 0;  // without padding
  virtual std::int64_t slot_ranks() const { return 1; }

  struct Prompt {
    std::int64_t slot = 0;
    std::span<const std::int32_t> tokens = {};  // 1 … context()
    std::int64_t rows = 1;                      // 1 … tokens.size()
    double temperature = 1;                     // as Next::temperature, of the last row
  };
  // The slots begin anew with these tokens, one prompt or more, each in a slot of another rank. Rows: of each of the last `rows` tokens of
  // the first prompt, then of the second, and so on.
  virtual absl::Status Prefill(std::span<const Prompt> prompts) = 0;

  struct Next {
    std::int64_t slot = 0;
    std::int32_t token = 0;
    double temperature = 1;  // that of Likeliest::tempered_log_sum; 0: as 1
  };
  // Adds a token to each of these slots, which are distinct, hold tokens and are not full. Rows: one for each.
  virtual absl::Status Step(std::span<const Next> next) = 0;

  // Logits of the rows [first, first + count): [count, vocabulary], f32.
  virtual absl::Status ReadLogits(std::int64_t first, std::int64_t count, std::vector<float>* logits) = 0;
  // Of the same rows, log Σ exp of their logits by the op that training has, where a recipe asks for that (generate.invariant): the
  // logarithm of a token's probability is its logit less this, in f32. Else nothing.
  virtual absl::StatusOr<std::vector<float>> ReadLogSums(std::int64_t first, std::int64_t count) {
    static_cast<void>(first);
    static_cast<void>(count);
    return std::vector<float>();
  }
  // What the device has made of a row's logits, which is much less to read; nullopt: nothing, or they are no numbers that a
  // token could be drawn from.
  virtual absl::StatusOr<std::optional<Likeliest>> ReadLikeliest(std::int64_t row) = 0;

  // Both in one, with all logits of the rows.
  absl::Status PrefillAndRead(std::int64_t slot, std::span<const std::int32_t> tokens, std::int64_t rows,
                              std::vector<float>* logits);
  absl::Status StepAndRead(std::span<const Next> next, std::vector<float>* logits);
};

// Keeps the slots' tokens, and evaluates the whole window for each new one: slow, and the oracle of what has a cache.
// `plan` is of one rank and one sample, made with keep_logits; it and the executor outlive the decoder.
std::unique_ptr<Decoder> MakeWindowDecoder(const plan::Plan& plan, executor::RankExecutor& executor,
                                           std::int64_t slots);

}  // namespace engine::generate
