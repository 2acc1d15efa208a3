// Many requests over the slots of one decoder: continuous batching, as Orca has it (Yu et al., OSDI 2022). Requests wait in a
// bounded queue; one that finds a slot is prefilled; those in slots step together; one that is done leaves its slot to the next.
// What a request gets depends on the others in nothing but time: the draw is keyed by (seed, request, position), and the decoder
// keeps slots apart.
#pragma once

#include <absl/status/status.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "engine/generate/decoder.h"
#include "engine/generate/sampling.h"

namespace engine::generate {

enum class Finish : std::uint8_t {
  kEndToken,  // the model has said that the text ends
  kEnough,    // whoever asked wants no more: a stop string, say
  kLength,    // as many tokens as were asked for, or as the slot holds
  kCancelled,
  kTimedOut,
  kFailed,  // by the status that goes with it
};

// A token of a sequence and, where they were asked for, log-probabilities (sampling.h).
struct ScoredToken {
  std::int32_t token = 0;
  bool ends = false;  // it is one of the request's end tokens, and no text
  std::optional<double> log_probability = std::nullopt;
  std::vector<Likelihood> top = {};  // the likeliest tokens at its place and their log-probabilities
};

// All that it calls is called on the thread of Batch::Advance, and must not call the batch.
struct Request {
  std::vector<std::int32_t> tokens;  // the prompt: at least one, of the vocabulary
  std::int64_t most_tokens = 16;     // new ones; 0: only the prompt is looked at
  SamplingOptions sampling = {};
  std::uint64_t number = 0;  // keys the draws, with the seed
  std::vector<std::int32_t> end_tokens = {};
  std::optional<std::int64_t> top = std::nullopt;  // log-probabilities, and those of so many likeliest tokens
  bool scores_prompt = false;                      // those of the prompt's tokens too, all but the first
  // What to do where the slot is full, or the prompt is longer than it: go on with the last tokens that it holds; else that is the
  // end, and a longer prompt is refused.
  bool slides = false;
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();

  std::function<void(std::vector<ScoredToken>)> on_prompt =
      nullptr;                                                 // where scores_prompt; the first has no score
  std::function<bool(const ScoredToken&)> on_token = nullptr;  // false: enough
  std::function<void(Finish, const absl::Status&)> on_finish = nullptr;  // once, as the last call
};

class Batch {
 public:
  // At most `most_waiting` requests wait for a slot. The decoder must outlive this, and nobody else calls it meanwhile.
  Batch(Decoder* decoder, std::size_t most_waiting) : decoder_(*decoder), most_waiting_(most_waiting) {
    running_.resize(static_cast<std::size_t>(decoder->slots()));
  }
  // Requests that are left are cancelled.
  ~Batch() { CancelAll(); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  // The switch by which a request is ended early: set it, and its on_finish is called soon.
  using Cancel = std::shared_ptr<std::atomic<bool>>;

  // Adds all these requests to the queue or, with an error, none. From any thread. InvalidArgument: a request that cannot be
  // answered, or more requests than ever may wait. ResourceExhausted: the queue has no room now.
  absl::StatusOr<std::vector<Cancel>> Submit(std::vector<Request> requests);

  // One round: those that are cancelled or late leave, requests take free slots, and each running one gets a token. False: there was
  // nothing to do. One thread at a time.
  bool Advance();
  // Returns when there may be something to do, after this time at the latest.
  void WaitForWork(std::chrono::milliseconds most);
  // All that wait and run leave as cancelled. On the thread of Advance.
  void CancelAll();

  struct Counts {
    std::int64_t waiting = 0, running = 0, finished = 0;
    std::int64_t dropped = 0;  // of the finished: cancelled, or too late
  };
  Counts counts() const;

 private:
  struct Sequence {
    Request request;
    Cancel cancel;
    std::int64_t held = 0;  // tokens that its slot holds
    std::int64_t made = 0;  // new tokens
  };
  using SequencePtr = std::unique_ptr<Sequence>;

  absl::Status Check(const Request& request) const;
  // Why the sequence should leave now, if it should.
  static std::optional<Finish> ReasonToLeave(const Sequence& sequence);
  void DropWaiting();
  void FillSlots();
  // The sequences in these slots begin in the decoder, or begin anew there with their last tokens, and each gets its next token. Prompts of
  // different ranks take one call.
  void BeginAll(std::vector<std::size_t> slots);
  void Begin(std::span<const std::size_t> slots);
  // What follows the decoder's rows [row, row + rows).
  void GoOn(std::size_t slot, std::int64_t row, std::int64_t rows);
  absl::Status ScorePrompt(const Sequence& sequence, std::int64_t row);
  void StepAll();
  // The next token, by the decoder's row.
  absl::StatusOr<ScoredToken> Choose(const Sequence& sequence, std::int64_t row);
  // `log_sum`: as LogProbabilities::Of.
  static absl::StatusOr<ScoredToken> Score(std::int32_t token, std::int64_t top,
                                           std::span<const float> logits, std::optional<float> log_sum);
  // The same by the likeliest tokens alone; nullopt where the token, or one of the top, is not among them.
  static std::optional<ScoredToken> Score(std::int32_t token, std::int64_t top, const Likeliest& likeliest);
  // Gives the sequence the token that follows the decoder's row.
  void Extend(std::size_t slot, std::int64_t row);
  void Leave(std::size_t slot, Finish finish, const absl::Status& status = absl::OkStatus());
  void End(SequencePtr sequence, Finish finish, const absl::Status& status);

  Decoder& decoder_;
  const std::size_t most_waiting_;
  std::vector<float> logits_;         // what was read last
  std::vector<SequencePtr> running_;  // by slot; null: it is free

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable has_work_;
  std::deque<SequencePtr> waiting_;
  Counts counts_;
};

}  // namespace engine::generate
