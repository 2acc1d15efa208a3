// One POST /v1/completions, from its body to its answer.
#pragma once

#include <absl/status/statusor.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/tokenizer.h"
#include "engine/generate/batch.h"
#include "engine/generate/text_stream.h"
#include "engine/serve/completion_request.h"

namespace engine::serve {

// What all requests ask. All of it outlives the server.
struct ServedModel {
  std::string name;
  generate::Batch* batch = nullptr;
  const data::Tokenizer* tokenizer = nullptr;  // null: prompts and answers are ids
  std::string chat_template;                   // its text; empty: there is none
  std::vector<std::int32_t> end_tokens;
  bool adds_template =
      false;  // what the tokenizer's template puts around a prompt, where a request does not say
  std::int64_t vocabulary = 0;
  std::int64_t context = 0;
  std::uint64_t seed = 0;    // of requests without one
  std::int64_t created = 0;  // seconds since 1970
};

// Ids of a prompt's text. Special tokens in it are tokens, as harnesses and front ends expect. FailedPrecondition: there is no tokenizer.
absl::StatusOr<std::vector<std::int32_t>> IdsOf(const ServedModel& model, const std::string& text,
                                                std::optional<bool> adds_template);

// A request on its way. Its choices grow on the thread of the batch, and one thread reads them.
class Completion : public std::enable_shared_from_this<Completion> {
 public:
  // Errors are those of IdsOf and of Batch::Submit. `number` is of the server's requests: the seedless differ by it.
  static absl::StatusOr<std::shared_ptr<Completion>> Start(const ServedModel& model,
                                                           CompletionRequest request, std::uint64_t number,
                                                           std::chrono::steady_clock::time_point deadline);

  // Whether all choices are done, after this time at the latest.
  bool WaitForEnd(std::chrono::milliseconds most);
  // The error of the first choice that has one; DeadlineExceeded, Cancelled.
  absl::Status status() const;
  // The whole answer, once all are done.
  nlohmann::ordered_json Answer() const;

  // Of a stream: the next events, after this time at the latest, each a line "data: …" and an empty one; the last one is
  // "data: [DONE]".
  std::string NextEvents(std::chrono::milliseconds most);
  bool has_ended() const;  // the last event has been given

  // Its client has left, or the server goes.
  void Cancel();

 private:
  struct Choice {
    std::vector<std::int32_t> prompt;
    std::string prompt_text;  // where it is echoed
    // Where that text came as one: which of the prompt's ids are its own. Those before and behind are what the tokenizer's template
    // puts around it, and stand in no text.
    struct OwnIds {
      std::size_t begin = 0, end = 0;
    };
    std::optional<OwnIds> own_ids;
    std::vector<generate::ScoredToken>
        scored;                         // with logprobs: of the prompt, where it is echoed, and of new tokens
    std::vector<std::int64_t> offsets;  // of each of these, in characters of the text
    std::vector<std::int32_t> ids;      // new ones
    std::string text;
    std::optional<generate::TextStream> stream;
    std::optional<generate::Finish> finish;
    absl::Status status = absl::OkStatus();
    // What events have told of it.
    std::size_t told_text = 0, told_scored = 0;
    bool told_finish = false;
  };

  Completion(const ServedModel& model, CompletionRequest request, std::uint64_t number)
      : model_(model), request_(std::move(request)), number_(number) {}
  absl::Status Prepare();
  absl::Status Echo(const std::string* text, Choice* choice) const;
  generate::Request RequestOf(std::size_t index);
  void TakePrompt(Choice* choice, std::vector<generate::ScoredToken> scored) const;
  bool TakeToken(Choice* choice, const generate::ScoredToken& token);
  void TakeFinish(Choice* choice, generate::Finish finish, const absl::Status& status);
  bool AllDone() const;
  nlohmann::ordered_json Head() const;
  nlohmann::ordered_json Usage() const;
  nlohmann::ordered_json ChoiceJson(std::size_t index, std::size_t text_from, std::size_t scored_from) const;
  nlohmann::ordered_json ScoresJson(const Choice& choice, std::size_t from) const;
  std::string TokenText(std::int32_t token) const;
  // The event of what a choice has that was not told; empty: there is nothing.
  std::string EventOf(std::size_t index);

  const ServedModel& model_;
  const CompletionRequest request_;
  const std::uint64_t number_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Choice> choices_;
  std::vector<generate::Batch::Cancel> cancels_;
  bool has_ended_ = false;
};

}  // namespace engine::serve
