#include "engine/generate/batch.h"

#include <algorithm>
#include <set>
#include <utility>

#include "engine/base/status.h"

namespace engine::generate {

absl::Status Batch::Check(const Request& request) const {
  RETURN_IF_ERROR(CheckSampling(request.sampling));
  if (request.tokens.empty()) return InvalidArgument("the prompt has no tokens");
  for (const std::int32_t token : request.tokens) {
    if (token < 0 || token >= decoder_.vocabulary())
      return InvalidArgument("token {} is outside of the model's vocabulary, 0 to {}", token,
                             decoder_.vocabulary() - 1);
  }
  const auto count = static_cast<std::int64_t>(request.tokens.size());
  if (count > decoder_.context() && (!request.slides || request.scores_prompt))
    return InvalidArgument("the prompt has {} tokens, but the model's window is {}", count,
                           decoder_.context());
  if (request.most_tokens < 0 || (request.most_tokens == 0 && !request.scores_prompt))
    return InvalidArgument("{} new tokens are asked for, and nothing else", request.most_tokens);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Batch::Cancel>> Batch::Submit(std::vector<Request> requests) {
  for (const Request& request : requests) RETURN_IF_ERROR(Check(request));
  const std::size_t slots = running_.size();
  if (requests.size() > slots + most_waiting_)
    return InvalidArgument("{} sequences are asked for at once, but {} can run, and at most {} may wait",
                           requests.size(), slots, most_waiting_);
  std::vector<Cancel> cancels;
  const std::lock_guard lock(mutex_);
  const std::size_t free = slots - static_cast<std::size_t>(counts_.running);
  if (waiting_.size() + requests.size() > free + most_waiting_)
    return ResourceExhausted("{} sequences wait or run already, and at most {} may",
                             waiting_.size() + slots - free, slots + most_waiting_);
  for (Request& request : requests) {
    cancels.push_back(std::make_shared<std::atomic<bool>>(false));
    waiting_.push_back(
        std::make_unique<Sequence>(Sequence{.request = std::move(request), .cancel = cancels.back()}));
  }
  counts_.waiting = static_cast<std::int64_t>(waiting_.size());
  has_work_.notify_all();
  return cancels;
}

bool Batch::Advance() {
  DropWaiting();
  for (std::size_t slot = 0; slot < running_.size(); ++slot) {
    if (running_[slot] == nullptr) continue;
    if (const std::optional<Finish> reason = ReasonToLeave(*running_[slot])) Leave(slot, *reason);
  }
  // Those that already run, before others join them: a prompt takes longer than a step.
  StepAll();
  FillSlots();
  const std::lock_guard lock(mutex_);
  return counts_.running > 0 || counts_.waiting > 0;
}

void Batch::WaitForWork(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  has_work_.wait_for(lock, most, [this] { return counts_.running > 0 || counts_.waiting > 0; });
}

void Batch::CancelAll() {
  {
    const std::lock_guard lock(mutex_);
    for (const SequencePtr& sequence : waiting_) *sequence->cancel = true;
  }
  DropWaiting();
  for (std::size_t slot = 0; slot < running_.size(); ++slot) {
    if (running_[slot] != nullptr) Leave(slot, Finish::kCancelled);
  }
}

Batch::Counts Batch::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

std::optional<Finish> Batch::ReasonToLeave(const Sequence& sequence) {
  if (*sequence.cancel) return Finish::kCancelled;
  if (std::chrono::steady_clock::now() > sequence.request.deadline) return Finish::kTimedOut;
  return std::nullopt;
}

void Batch::DropWaiting() {
  std::vector<std::pair<SequencePtr, Finish>> dropped;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(waiting_, [&](SequencePtr& sequence) {
      const std::optional<Finish> reason = ReasonToLeave(*sequence);
      if (reason) dropped.emplace_back(std::move(sequence), *reason);
      return reason.has_value();
    });
    counts_.waiting = static_cast<std::int64_t>(waiting_.size());
  }
  for (auto& [sequence, reason] : dropped) End(std::move(sequence), reason, absl::OkStatus());
}

void Batch::FillSlots() {
  std::vector<std::size_t> filled;
  for (std::size_t slot = 0; slot < running_.size(); ++slot) {
    if (running_[slot] != nullptr) continue;
    const std::lock_guard lock(mutex_);
    if (waiting_.empty()) break;
    running_[slot] = std::move(waiting_.front());
    waiting_.pop_front();
    --counts_.waiting;
    ++counts_.running;
    filled.push_back(slot);
  }
  BeginAll(std::move(filled));
}

void Batch::BeginAll(std::vector<std::size_t> slots) {
  while (!slots.empty()) {
    std::vector<std::size_t> at_once;
    std::set<std::size_t> ranks;
    std::erase_if(slots, [&](std::size_t slot) {
      const bool takes = ranks.insert(slot % static_cast<std::size_t>(decoder_.slot_ranks())).second;
      if (takes) at_once.push_back(slot);
      return takes;
    });
    Begin(at_once);
  }
}

void Batch::Begin(std::span<const std::size_t> slots) {
  std::vector<Decoder::Prompt> prompts;
  for (const std::size_t slot : slots) {
    Sequence& sequence = *running_[slot];
    const Request& request = sequence.request;
    const std::span<const std::int32_t> all = request.tokens;
    const bool scores = request.scores_prompt && sequence.made == 0;
    const auto held = std::min(all.size(), static_cast<std::size_t>(decoder_.context()));
    sequence.held = static_cast<std::int64_t>(held);
    prompts.push_back({.slot = static_cast<std::int64_t>(slot),
                       .tokens = all.last(held),
                       .rows = scores ? sequence.held : 1,
                       .temperature = request.sampling.temperature});
  }
  const absl::Status status = decoder_.Prefill(prompts);
  std::int64_t row = 0;
  for (const Decoder::Prompt& prompt : prompts) {
    const auto slot = static_cast<std::size_t>(prompt.slot);
    if (!status.ok()) {
      Leave(slot, Finish::kFailed, status);
    } else {
      GoOn(slot, row, prompt.rows);
    }
    row += prompt.rows;
  }
}

void Batch::GoOn(std::size_t slot, std::int64_t row, std::int64_t rows) {
  const Sequence& sequence = *running_[slot];
  if (sequence.made == 0) {
    const absl::Status status =
        sequence.request.scores_prompt ? ScorePrompt(sequence, row) : absl::OkStatus();
    if (!status.ok()) return Leave(slot, Finish::kFailed, status);
    if (sequence.request.most_tokens == 0) return Leave(slot, Finish::kLength);
  }
  Extend(slot, row + rows - 1);
}

absl::Status Batch::ScorePrompt(const Sequence& sequence, std::int64_t row) {
  const std::vector<std::int32_t>& tokens = sequence.request.tokens;
  const auto width = static_cast<std::size_t>(decoder_.vocabulary());
  const auto rows = static_cast<std::int64_t>(tokens.size()) - 1;
  RETURN_IF_ERROR(decoder_.ReadLogits(row, rows, &logits_));
  ASSIGN_OR_RETURN(const std::vector<float> sums, decoder_.ReadLogSums(row, rows));
  std::vector<ScoredToken> scored = {{.token = tokens[0]}};
  for (std::size_t i = 1; i < tokens.size(); ++i) {
    const std::span<const float> logits = std::span(logits_).subspan((i - 1) * width, width);
    const std::optional<float> log_sum = sums.empty() ? std::nullopt : std::optional(sums[i - 1]);
    ASSIGN_OR_RETURN(ScoredToken one, Score(tokens[i], sequence.request.top.value_or(0), logits, log_sum));
    scored.push_back(std::move(one));
  }
  sequence.request.on_prompt(std::move(scored));
  return absl::OkStatus();
}

void Batch::StepAll() {
  std::vector<Decoder::Next> next;
  std::vector<std::size_t> full;
  for (std::size_t slot = 0; slot < running_.size(); ++slot) {
    if (running_[slot] == nullptr) continue;
    if (running_[slot]->held == decoder_.context()) {
      full.push_back(slot);
    } else {
      const Request& request = running_[slot]->request;
      next.push_back({.slot = static_cast<std::int64_t>(slot),
                      .token = request.tokens.back(),
                      .temperature = request.sampling.temperature});
    }
  }
  BeginAll(std::move(full));
  if (next.empty()) return;
  const absl::Status status = decoder_.Step(next);
  for (std::size_t i = 0; i < next.size(); ++i) {
    const auto slot = static_cast<std::size_t>(next[i].slot);
    if (!status.ok()) {
      Leave(slot, Finish::kFailed, status);
      continue;
    }
    ++running_[slot]->held;
    Extend(slot, static_cast<std::int64_t>(i));
  }
}

absl::StatusOr<ScoredToken> Batch::Score(std::int32_t token, std::int64_t top, std::span<const float> logits,
                                         std::optional<float> log_sum) {
  ASSIGN_OR_RETURN(const LogProbabilities all, LogProbabilities::Of(logits, log_sum));
  return ScoredToken{.token = token, .log_probability = all[token], .top = all.Top(top)};
}

std::optional<ScoredToken> Batch::Score(std::int32_t token, std::int64_t top, const Likeliest& likeliest) {
  const auto of_token = std::ranges::find(likeliest.tokens, token, &Likelihood::token);
  if (of_token == likeliest.tokens.end() || top > std::ssize(likeliest.tokens)) return std::nullopt;
  ScoredToken scored = {.token = token, .log_probability = likeliest.LogProbabilityOf(of_token->value)};
  for (std::int64_t i = 0; i < top; ++i) {
    const Likelihood& one = likeliest.tokens[static_cast<std::size_t>(i)];
    scored.top.push_back({one.token, likeliest.LogProbabilityOf(one.value)});
  }
  return scored;
}

absl::StatusOr<ScoredToken> Batch::Choose(const Sequence& sequence, std::int64_t row) {
  const Request& request = sequence.request;
  const double uniform = DrawUniform(request.sampling.seed, request.number, request.tokens.size());
  ASSIGN_OR_RETURN(const std::optional<Likeliest> likeliest, decoder_.ReadLikeliest(row));
  std::optional<std::int32_t> token;
  if (likeliest) token = ChooseToken(*likeliest, request.sampling, uniform);
  std::optional<ScoredToken> chosen;
  if (token) chosen = request.top ? Score(*token, *request.top, *likeliest) : ScoredToken{.token = *token};
  if (!chosen) {  // it takes all logits
    RETURN_IF_ERROR(decoder_.ReadLogits(row, 1, &logits_));
    if (!token) {
      ASSIGN_OR_RETURN(token, ChooseToken(logits_, request.tokens, request.sampling, uniform));
    }
    chosen = ScoredToken{.token = *token};
    if (request.top) {
      ASSIGN_OR_RETURN(const std::vector<float> sums, decoder_.ReadLogSums(row, 1));
      const std::optional<float> log_sum = sums.empty() ? std::nullopt : std::optional(sums[0]);
      ASSIGN_OR_RETURN(chosen, Score(*token, *request.top, logits_, log_sum));
    }
  }
  chosen->ends = std::ranges::find(request.end_tokens, *token) != request.end_tokens.end();
  return *std::move(chosen);
}

void Batch::Extend(std::size_t slot, std::int64_t row) {
  Sequence& sequence = *running_[slot];
  const absl::StatusOr<ScoredToken> chosen = Choose(sequence, row);
  if (!chosen.ok()) return Leave(slot, Finish::kFailed, chosen.status());
  Request& request = sequence.request;
  request.tokens.push_back(chosen->token);
  ++sequence.made;
  const bool wants_more = request.on_token(*chosen);
  if (chosen->ends) return Leave(slot, Finish::kEndToken);
  if (!wants_more) return Leave(slot, Finish::kEnough);
  const bool is_full = sequence.held == decoder_.context() && !request.slides;
  if (sequence.made == request.most_tokens || is_full) Leave(slot, Finish::kLength);
}

void Batch::Leave(std::size_t slot, Finish finish, const absl::Status& status) {
  {
    const std::lock_guard lock(mutex_);
    --counts_.running;
  }
  End(std::move(running_[slot]), finish, status);
}

void Batch::End(SequencePtr sequence, Finish finish, const absl::Status& status) {
  {
    const std::lock_guard lock(mutex_);
    ++counts_.finished;
    if (finish == Finish::kCancelled || finish == Finish::kTimedOut) ++counts_.dropped;
  }
  sequence->request.on_finish(finish, status);
}

}  // namespace engine::generate
