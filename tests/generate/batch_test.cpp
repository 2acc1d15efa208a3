#include "engine/generate/batch.h"

#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/generate/hash_decoder.h"

namespace engine::generate {
namespace {

using testing::HashDecoder;

// What came of a request.
struct Outcome {
  std::vector<ScoredToken> prompt;
  std::vector<std::int32_t> tokens;
  std::vector<ScoredToken> scored;
  std::optional<Finish> finish;
  absl::Status status = absl::OkStatus();
  int finishes = 0;
};

Request RequestInto(Outcome* outcome, std::vector<std::int32_t> prompt, std::int64_t most_tokens,
                    std::uint64_t number = 0) {
  Request request{.tokens = std::move(prompt), .most_tokens = most_tokens, .number = number};
  request.sampling.seed = 9;
  request.on_prompt = [outcome](std::vector<ScoredToken> scores) { outcome->prompt = std::move(scores); };
  request.on_token = [outcome](const ScoredToken& token) {
    outcome->tokens.push_back(token.token);
    outcome->scored.push_back(token);
    return true;
  };
  request.on_finish = [outcome](Finish finish, const absl::Status& status) {
    outcome->finish = finish;
    outcome->status = status;
    ++outcome->finishes;
  };
  return request;
}

std::vector<std::int32_t> PromptOf(std::uint64_t number) {
  std::vector<std::int32_t> prompt;
  for (std::uint64_t i = 0; i <= number % 7; ++i)
    prompt.push_back(static_cast<std::int32_t>((number * 5 + i) % 30));
  return prompt;
}

void RunOut(Batch* batch) {
  while (batch->Advance()) {
  }
}

Outcome Alone(const Request& like, std::int64_t context) {
  HashDecoder decoder(1, context, 30);
  Batch batch(&decoder, 1);
  Outcome outcome;
  Request request = RequestInto(&outcome, like.tokens, like.most_tokens, like.number);
  request.slides = like.slides;
  request.end_tokens = like.end_tokens;
  REQUIRE(batch.Submit({request}).ok());
  RunOut(&batch);
  return outcome;
}

}  // namespace

TEST_CASE("batch: each answer is the one that the request gets alone") {
  HashDecoder decoder(4, 24, 30);
  Batch batch(&decoder, 64);
  std::vector<std::unique_ptr<Outcome>> outcomes;
  std::vector<Request> requests;
  for (std::uint64_t number = 0; number < 40; ++number) {
    outcomes.push_back(std::make_unique<Outcome>());
    Request request = RequestInto(outcomes.back().get(), PromptOf(number),
                                  1 + static_cast<std::int64_t>(number % 30), number);
    request.slides = number % 2 == 0;
    request.end_tokens = {static_cast<std::int32_t>(number % 30)};
    requests.push_back(request);
  }
  for (std::size_t i = 0; i < requests.size(); ++i) {  // they come while others run
    REQUIRE(batch.Submit({requests[i]}).ok());
    if (i % 3 == 0) batch.Advance();
  }
  RunOut(&batch);
  CHECK(decoder.widest_step == 4);
  std::set<Finish> finishes;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Outcome alone = Alone(requests[i], 24);
    INFO("request " << i);
    CHECK(outcomes[i]->tokens == alone.tokens);
    CHECK(outcomes[i]->finish == alone.finish);
    CHECK(outcomes[i]->finishes == 1);
    finishes.insert(*outcomes[i]->finish);
  }
  CHECK(finishes == std::set<Finish>{Finish::kEndToken, Finish::kLength});
  CHECK(batch.counts().finished == 40);
  CHECK(batch.counts().running == 0);
  CHECK(batch.counts().waiting == 0);
}

TEST_CASE("batch: answers are the same where the decoder tells the likeliest tokens, and few rows are read") {
  for (const bool scored : {false, true}) {
    std::vector<std::vector<ScoredToken>> answers;
    std::vector<std::int64_t> rows_read;
    for (const std::int64_t known : {0, 12}) {
      HashDecoder decoder(3, 24, 30);
      decoder.known = known;
      Batch batch(&decoder, 64);
      std::vector<Outcome> outcomes(20);
      for (std::uint64_t number = 0; number < outcomes.size(); ++number) {
        Request request = RequestInto(&outcomes[number], PromptOf(number), 15, number);
        request.sampling.temperature = number % 3 == 0 ? 0 : 0.5;
        request.sampling.top_k = number % 4 == 0 ? 5 : 0;
        if (number % 5 == 1) request.sampling.repetition_penalty = 1.3;
        if (scored) request.top = 3;
        REQUIRE(batch.Submit({request}).ok());
      }
      RunOut(&batch);
      answers.emplace_back();
      for (const Outcome& outcome : outcomes)
        answers.back().insert(answers.back().end(), outcome.scored.begin(), outcome.scored.end());
      rows_read.push_back(decoder.rows_read);
    }
    REQUIRE(answers[0].size() == answers[1].size());
    for (std::size_t i = 0; i < answers[0].size(); ++i) {
      CHECK(answers[0][i].token == answers[1][i].token);
      CHECK(answers[0][i].log_probability.has_value() == scored);
      REQUIRE(answers[0][i].top.size() == answers[1][i].top.size());
      if (!scored) continue;
      CHECK(std::abs(*answers[0][i].log_probability - *answers[1][i].log_probability) < 1e-12);
      for (std::size_t n = 0; n < 3; ++n) {
        CHECK(answers[0][i].top[n].token == answers[1][i].top[n].token);
        CHECK(std::abs(answers[0][i].top[n].value - answers[1][i].top[n].value) < 1e-12);
      }
    }
    CHECK(rows_read[0] == 20 * 15);
    CHECK(rows_read[1] < rows_read[0] / 2);
    CHECK(rows_read[1] >= 4 * 15);  // of those with a penalty
  }
}

TEST_CASE("batch: prompts of different ranks take one call, and answers are those of one rank") {
  std::vector<std::vector<std::int32_t>> answers;
  for (const std::int64_t ranks : {1, 3}) {
    HashDecoder decoder(6, 24, 30);
    decoder.ranks = ranks;
    Batch batch(&decoder, 64);
    std::vector<Outcome> outcomes(7);
    for (std::uint64_t number = 0; number < outcomes.size(); ++number) {
      Request request = RequestInto(&outcomes[number], PromptOf(number), 40, number);
      request.slides = number != 2;
      request.scores_prompt = number % 2 == 0;
      REQUIRE(batch.Submit({request}).ok());
    }
    batch.Advance();
    CHECK(decoder.prefills == (ranks == 1 ? 6 : 2));
    RunOut(&batch);
    answers.emplace_back();
    for (std::size_t number = 0; number < outcomes.size(); ++number) {
      const Outcome& outcome = outcomes[number];
      CHECK(outcome.finish == Finish::kLength);
      CHECK(outcome.prompt.size() == (number % 2 == 0 ? PromptOf(number).size() : 0));
      for (const ScoredToken& one : outcome.prompt)
        answers.back().push_back(static_cast<std::int32_t>(1e6 * one.log_probability.value_or(0)));
      answers.back().insert(answers.back().end(), outcome.tokens.begin(), outcome.tokens.end());
    }
  }
  CHECK(answers[0] == answers[1]);
}

TEST_CASE("batch: scores of the prompt and of new tokens are log-probabilities of what the decoder gives") {
  HashDecoder decoder(1, 24, 30);
  Batch batch(&decoder, 1);
  Outcome outcome;
  Request request = RequestInto(&outcome, {3, 1, 4, 1, 5}, 2);
  request.scores_prompt = true;
  request.top = 2;
  REQUIRE(batch.Submit({request}).ok());
  RunOut(&batch);
  REQUIRE(outcome.prompt.size() == 5);
  CHECK(!outcome.prompt[0].log_probability);
  REQUIRE(outcome.scored.size() == 2);
  std::vector<ScoredToken> all = outcome.prompt;
  all.insert(all.end(), outcome.scored.begin(), outcome.scored.end());
  std::vector<std::int32_t> tokens;
  for (const ScoredToken& one : all) {
    if (!tokens.empty()) {
      std::vector<float> logits;
      decoder.AppendLogits(tokens, &logits);
      const LogProbabilities expected = *LogProbabilities::Of(logits);
      CHECK(one.log_probability == expected[one.token]);
      REQUIRE(one.top.size() == 2);
      CHECK(one.top[1].token == expected.Top(2)[1].token);
    }
    tokens.push_back(one.token);
  }
  // Scores alone.
  Outcome scored;
  request = RequestInto(&scored, {3, 1, 4}, 0);
  request.scores_prompt = true;
  REQUIRE(batch.Submit({request}).ok());
  RunOut(&batch);
  CHECK(scored.prompt.size() == 3);
  CHECK(scored.tokens.empty());
  CHECK(scored.finish == Finish::kLength);
}

TEST_CASE("batch: a full slot ends a sequence, or older tokens fall out of it") {
  HashDecoder decoder(1, 8, 30);
  Batch batch(&decoder, 2);
  Outcome ends;
  REQUIRE(batch.Submit({RequestInto(&ends, {1, 2, 3}, 100)}).ok());
  RunOut(&batch);
  CHECK(ends.finish == Finish::kLength);
  CHECK(ends.tokens.size() == 6);  // the last one follows a full slot
  Outcome exact;
  REQUIRE(batch.Submit({RequestInto(&exact, {1, 2, 3, 4, 5, 6, 7, 8}, 1)}).ok());
  RunOut(&batch);
  CHECK(exact.tokens.size() == 1);

  Outcome slides;
  Request request = RequestInto(&slides, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 20);
  request.slides = true;
  request.sampling.temperature = 0;
  REQUIRE(batch.Submit({request}).ok());
  RunOut(&batch);
  REQUIRE(slides.tokens.size() == 20);
  std::vector<std::int32_t> all = request.tokens;
  for (const std::int32_t token : slides.tokens) {
    std::vector<float> logits;
    decoder.AppendLogits(std::span(all).last(8), &logits);
    CHECK(token == std::max_element(logits.begin(), logits.end()) - logits.begin());
    all.push_back(token);
  }
}

TEST_CASE("batch: the queue is bounded, and takes all requests or none") {
  HashDecoder decoder(1, 8, 30);
  Batch batch(&decoder, 3);
  std::vector<Outcome> outcomes(6);
  const auto two = [&](std::size_t first) {
    return std::vector<Request>{RequestInto(&outcomes[first], {1}, 3),
                                RequestInto(&outcomes[first + 1], {2}, 3)};
  };
  // The slot is free: one of these takes it.
  REQUIRE(batch.Submit(two(0)).ok());
  REQUIRE(batch.Submit(two(2)).ok());
  const auto is_full = [&] {
    const absl::Status full = batch.Submit(two(4)).status();
    CHECK(absl::IsResourceExhausted(full));
    CHECK(Message(full) == "4 sequences wait or run already, and at most 4 may");
  };
  is_full();
  CHECK(batch.counts().waiting == 4);
  batch.Advance();  // one is in the slot now
  is_full();
  CHECK(batch.counts().waiting == 3);
  RunOut(&batch);
  for (std::size_t i = 0; i < 4; ++i) CHECK(outcomes[i].finish == Finish::kLength);
  std::vector<Request> many(5, RequestInto(&outcomes[4], {1}, 3));
  CHECK(Message(batch.Submit(many).status()) ==
        "5 sequences are asked for at once, but 1 can run, and at most 3 may wait");
}

TEST_CASE("batch: requests that cannot be answered are refused") {
  HashDecoder decoder(1, 8, 30);
  Batch batch(&decoder, 3);
  Outcome outcome;
  const auto why = [&](Request request) {
    const absl::Status status = batch.Submit({std::move(request)}).status();
    CHECK(absl::IsInvalidArgument(status));
    return Message(status);
  };
  CHECK(why(RequestInto(&outcome, {}, 3)) == "the prompt has no tokens");
  CHECK(why(RequestInto(&outcome, {1, 30}, 3)) == "token 30 is outside of the model's vocabulary, 0 to 29");
  CHECK(why(RequestInto(&outcome, {-1}, 3)) == "token -1 is outside of the model's vocabulary, 0 to 29");
  CHECK(why(RequestInto(&outcome, std::vector<std::int32_t>(9, 1), 3)) ==
        "the prompt has 9 tokens, but the model's window is 8");
  CHECK(why(RequestInto(&outcome, {1}, 0)) == "0 new tokens are asked for, and nothing else");
  Request hot = RequestInto(&outcome, {1}, 3);
  hot.sampling.temperature = -1;
  CHECK(why(hot) == "temperature is -1, and must be from 0 to 100");
  CHECK(outcome.finishes == 0);
}

TEST_CASE("batch: requests are cancelled and time out, waiting and running, and their slots are free") {
  HashDecoder decoder(1, 1000, 30);
  Batch batch(&decoder, 8);
  std::vector<Outcome> outcomes(4);
  Request late = RequestInto(&outcomes[2], {1}, 500);
  late.deadline = std::chrono::steady_clock::now();
  const absl::StatusOr<std::vector<Batch::Cancel>> cancels =
      batch.Submit({RequestInto(&outcomes[0], {1}, 500), RequestInto(&outcomes[1], {2}, 500), late,
                    RequestInto(&outcomes[3], {3}, 5)});
  REQUIRE(cancels.ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  batch.Advance();
  CHECK(outcomes[2].finish == Finish::kTimedOut);
  CHECK(outcomes[2].tokens.empty());
  *(*cancels)[0] = true;
  *(*cancels)[1] = true;
  RunOut(&batch);
  CHECK(outcomes[0].finish == Finish::kCancelled);
  CHECK(!outcomes[0].tokens.empty());
  CHECK(outcomes[1].finish == Finish::kCancelled);
  CHECK(outcomes[1].tokens.empty());
  CHECK(outcomes[3].finish == Finish::kLength);
  CHECK(outcomes[3].tokens == Alone(RequestInto(&outcomes[3], {3}, 5), 1000).tokens);

  Outcome running;
  Request short_time = RequestInto(&running, {1}, 900);
  short_time.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(30);
  REQUIRE(batch.Submit({short_time}).ok());
  batch.Advance();
  CHECK(!running.finish);
  std::this_thread::sleep_for(std::chrono::milliseconds(40));
  RunOut(&batch);
  CHECK(running.finish == Finish::kTimedOut);
  CHECK(batch.counts().finished == 5);
  CHECK(batch.counts().dropped == 4);

  Outcome left;
  {
    Batch other(&decoder, 2);
    REQUIRE(other.Submit({RequestInto(&left, {1}, 3), RequestInto(&running, {1}, 3)}).ok());
    other.Advance();
  }
  CHECK(left.finish == Finish::kCancelled);
  CHECK(running.finish == Finish::kCancelled);
}

TEST_CASE("batch: whoever asked has enough; a decoder that fails ends the requests of its call alone") {
  HashDecoder decoder(2, 100, 30);
  Batch batch(&decoder, 8);
  std::vector<Outcome> outcomes(4);
  Request enough = RequestInto(&outcomes[0], {1}, 50);
  enough.on_token = [&](const ScoredToken& token) {
    outcomes[0].tokens.push_back(token.token);
    return outcomes[0].tokens.size() < 3;
  };
  REQUIRE(batch.Submit({enough, RequestInto(&outcomes[1], {2}, 50), RequestInto(&outcomes[2], {3}, 4)}).ok());
  while (!outcomes[0].finish) batch.Advance();
  CHECK(outcomes[0].finish == Finish::kEnough);
  CHECK(outcomes[0].tokens.size() == 3);
  decoder.on_call = [&] {
    decoder.on_call = nullptr;
    return Internal("the device is gone");
  };
  batch.Advance();
  CHECK(outcomes[1].finish == Finish::kFailed);
  CHECK(Message(outcomes[1].status) == "the device is gone");
  RunOut(&batch);
  REQUIRE(batch.Submit({RequestInto(&outcomes[3], {3}, 4)}).ok());
  RunOut(&batch);
  CHECK(outcomes[3].finish == Finish::kLength);
}

}  // namespace engine::generate
