#include "engine/serve/completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/status.h"
#include "engine/base/utf8.h"
#include "engine/generate/generate.h"
#include "engine/generate/trained_model.h"

namespace engine::serve {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no infinity. Nothing that a model can tell apart is as unlikely as this.
constexpr double kLeastLogProbability = -9999;

std::int64_t CountCharacters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Json ReasonJson(const std::optional<generate::Finish>& finish) {
  if (!finish) return nullptr;
  return generate::NameOf(*finish);
}

}  // namespace

absl::StatusOr<std::vector<std::int32_t>> IdsOf(const ServedModel& model, const std::string& text,
                                                std::optional<bool> adds_template) {
  if (model.tokenizer == nullptr)
    return FailedPrecondition("the model has no tokenizer here, so prompts must be token ids");
  return generate::EncodePrompt(
      *model.tokenizer, {.special_tokens = true, .add_template = adds_template.value_or(model.adds_template)},
      model.vocabulary, text);
}

absl::StatusOr<std::shared_ptr<Completion>> Completion::Start(
    const ServedModel& model, CompletionRequest request, std::uint64_t number,
    std::chrono::steady_clock::time_point deadline) {
  std::shared_ptr<Completion> made(new Completion(model, std::move(request), number));
  RETURN_IF_ERROR(made->Prepare());
  std::vector<generate::Request> requests;
  for (std::size_t i = 0; i < made->choices_.size(); ++i) {
    requests.push_back(made->RequestOf(i));
    requests.back().deadline = deadline;
  }
  ASSIGN_OR_RETURN(made->cancels_, model.batch->Submit(std::move(requests)));
  return made;
}

absl::Status Completion::Prepare() {
  if (model_.tokenizer == nullptr && !request_.stops.empty())
    return FailedPrecondition("the model has no tokenizer here, so there is no text that stop could end");
  for (const PromptBody& body : request_.prompts) {
    Choice choice;
    const std::string* text = std::get_if<std::string>(&body);
    if (text == nullptr) {
      choice.prompt = std::get<std::vector<std::int32_t>>(body);
    } else {
      ASSIGN_OR_RETURN(choice.prompt, IdsOf(model_, *text, request_.add_special_tokens));
    }
    ASSIGN_OR_RETURN(generate::TextStream stream,
                     generate::TextStream::Begin(model_.tokenizer, choice.prompt, request_.stops));
    choice.stream = std::move(stream);
    if (request_.echo) RETURN_IF_ERROR(Echo(text, &choice));
    choices_.insert(choices_.end(), static_cast<std::size_t>(request_.n), choice);
  }
  return absl::OkStatus();
}

// The answer begins with the prompt: as it came where that was a text, else what its ids spell.
absl::Status Completion::Echo(const std::string* text, Choice* choice) const {
  if (text == nullptr) {
    ASSIGN_OR_RETURN(choice->prompt_text, generate::TextOfIds(model_.tokenizer, choice->prompt));
  } else {
    choice->prompt_text = *text;
  }
  if (text != nullptr && request_.logprobs) {
    ASSIGN_OR_RETURN(const std::vector<std::int32_t> own, IdsOf(model_, *text, /*adds_template=*/false));
    const std::vector<std::int32_t>& prompt = choice->prompt;
    const auto found = std::search(prompt.begin(), prompt.end(), own.begin(), own.end());
    const auto begin = static_cast<std::size_t>(found - prompt.begin());
    choice->own_ids = {begin, begin + own.size()};
  }
  choice->text = choice->prompt_text;
  return absl::OkStatus();
}

generate::Request Completion::RequestOf(std::size_t index) {
  Choice* choice = &choices_[index];
  generate::Request request{
      .tokens = choice->prompt,
      .most_tokens = request_.max_tokens,
      .sampling = request_.sampling,
      .number = index,
      .end_tokens = model_.end_tokens,
      .top = request_.logprobs,
      .scores_prompt = request_.echo && (request_.logprobs || request_.max_tokens == 0)};
  if (!request_.seed) {
    request.sampling.seed = model_.seed;
    request.number = (number_ << 20) | index;
  }
  // They hold the completion until the last call.
  const std::shared_ptr<Completion> self = shared_from_this();
  request.on_prompt = [self, choice](std::vector<generate::ScoredToken> scored) {
    self->TakePrompt(choice, std::move(scored));
  };
  request.on_token = [self, choice](const generate::ScoredToken& token) {
    return self->TakeToken(choice, token);
  };
  request.on_finish = [self, choice](generate::Finish finish, const absl::Status& status) {
    self->TakeFinish(choice, finish, status);
  };
  return request;
}

void Completion::TakePrompt(Choice* choice, std::vector<generate::ScoredToken> scored) const {
  if (!request_.logprobs) return;
  const std::lock_guard lock(mutex_);
  absl::StatusOr<generate::TextStream> stream = generate::TextStream::Begin(model_.tokenizer, {}, {});
  const std::int64_t end = CountCharacters(choice->prompt_text);
  const Choice::OwnIds own = choice->own_ids.value_or(Choice::OwnIds{0, scored.size()});
  std::int64_t at = 0;
  for (std::size_t i = 0; i < scored.size(); ++i) {
    choice->offsets.push_back(std::min(at, end));
    if (!stream.ok() || i < own.begin || i >= own.end) continue;
    absl::StatusOr<std::string> text = stream->Add(scored[i].token);
    // The end of a document is no text where it comes from a model, and is what was written where it came in a text.
    if (text.ok() && choice->own_ids && scored[i].token == model_.tokenizer->end_of_document())
      *text += model_.tokenizer->Written(scored[i].token);
    if (text.ok()) at += CountCharacters(*text);
  }
  choice->scored = std::move(scored);
}

bool Completion::TakeToken(Choice* choice, const generate::ScoredToken& token) {
  const std::lock_guard lock(mutex_);
  if (request_.logprobs) {
    choice->offsets.push_back(CountCharacters(choice->text));
    choice->scored.push_back(token);
  }
  choice->ids.push_back(token.token);
  if (!token.ends) {
    const absl::StatusOr<std::string> text = choice->stream->Add(token.token);
    if (text.ok()) choice->text += *text;
    choice->status = text.status();
  }
  if (request_.stream) changed_.notify_all();
  return choice->status.ok() && !choice->stream->has_stopped();
}

void Completion::TakeFinish(Choice* choice, generate::Finish finish, const absl::Status& status) {
  const std::lock_guard lock(mutex_);
  choice->text += choice->stream->Finish();
  choice->finish = finish;
  if (!status.ok()) choice->status = status;
  if (finish == generate::Finish::kTimedOut)
    choice->status = absl::DeadlineExceededError("the request took longer than the server's --timeout");
  if (finish == generate::Finish::kCancelled) choice->status = absl::CancelledError("the server stops");
  changed_.notify_all();
}

bool Completion::AllDone() const {
  return std::ranges::all_of(choices_, [](const Choice& choice) { return choice.finish.has_value(); });
}

bool Completion::WaitForEnd(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, most, [this] { return AllDone(); });
}

absl::Status Completion::status() const {
  const std::lock_guard lock(mutex_);
  for (const Choice& choice : choices_) RETURN_IF_ERROR(choice.status);
  return absl::OkStatus();
}

bool Completion::has_ended() const {
  const std::lock_guard lock(mutex_);
  return has_ended_;
}

void Completion::Cancel() {
  for (const generate::Batch::Cancel& cancel : cancels_) *cancel = true;
}

Json Completion::Head() const {
  return {{"id", fmt::format("cmpl-{}", number_)},
          {"object", "text_completion"},
          {"created", model_.created},
          {"model", model_.name}};
}

Json Completion::Usage() const {
  std::size_t prompt = 0, made = 0;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    if (i % static_cast<std::size_t>(request_.n) == 0) prompt += choices_[i].prompt.size();
    made += choices_[i].ids.size();
  }
  return {{"prompt_tokens", prompt}, {"completion_tokens", made}, {"total_tokens", prompt + made}};
}

// A token as a JSON string can have it: of bytes that are no whole characters, those; of one that has no text, how the vocabulary writes it.
std::string Completion::TokenText(std::int32_t token) const {
  if (model_.tokenizer == nullptr) return fmt::format("token_id:{}", token);
  const absl::StatusOr<std::string> decoded = model_.tokenizer->Decode({&token, 1});
  std::string text = decoded.ok() ? *decoded : "";
  if (text.empty()) text = model_.tokenizer->Written(token);
  if (text.empty()) return fmt::format("token_id:{}", token);
  if (ValidUtf8Prefix(text) == text.size()) return text;
  std::string bytes = "bytes:";
  for (const char c : text) bytes += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return bytes;
}

Json Completion::ScoresJson(const Choice& choice, std::size_t from) const {
  const auto bounded = [](double value) { return std::max(value, kLeastLogProbability); };
  Json tokens = Json::array(), values = Json::array(), tops = Json::array(), offsets = Json::array();
  for (std::size_t i = from; i < choice.scored.size(); ++i) {
    const generate::ScoredToken& token = choice.scored[i];
    tokens.push_back(TokenText(token.token));
    offsets.push_back(choice.offsets[i]);
    if (!token.log_probability) {  // the prompt's first token
      values.push_back(nullptr);
      tops.push_back(nullptr);
      continue;
    }
    values.push_back(bounded(*token.log_probability));
    // The likeliest tokens and the chosen one. Of two tokens of one text the likelier counts.
    Json top = Json::object();
    for (const generate::Likelihood& one : token.top) {
      const std::string text = TokenText(one.token);
      if (!top.contains(text)) top[text] = bounded(one.value);
    }
    const std::string text = TokenText(token.token);
    if (!top.contains(text)) top[text] = bounded(*token.log_probability);
    tops.push_back(std::move(top));
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(values)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

Json Completion::ChoiceJson(std::size_t index, std::size_t text_from, std::size_t scored_from) const {
  const Choice& choice = choices_[index];
  Json json = {{"index", index},
               {"text", choice.text.substr(text_from)},
               {"logprobs", nullptr},
               {"finish_reason", ReasonJson(choice.finish)}};
  if (request_.logprobs) json["logprobs"] = ScoresJson(choice, scored_from);
  if (request_.returns_ids) json["token_ids"] = choice.ids;
  return json;
}

Json Completion::Answer() const {
  const std::lock_guard lock(mutex_);
  Json answer = Head();
  answer["choices"] = Json::array();
  for (std::size_t i = 0; i < choices_.size(); ++i) answer["choices"].push_back(ChoiceJson(i, 0, 0));
  answer["usage"] = Usage();
  return answer;
}

std::string Completion::EventOf(std::size_t index) {
  Choice& choice = choices_[index];
  const bool has_more = choice.text.size() > choice.told_text || (choice.finish && !choice.told_finish);
  if (!has_more) return "";
  Json event = Head();
  event["choices"] = Json::array({ChoiceJson(index, choice.told_text, choice.told_scored)});
  choice.told_text = choice.text.size();
  choice.told_scored = choice.scored.size();
  choice.told_finish = choice.finish.has_value();
  return "data: " + Dump(event) + "\n\n";
}

std::string Completion::NextEvents(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  const auto has_news = [this] {
    return AllDone() || std::ranges::any_of(choices_, [](const Choice& choice) {
             return choice.text.size() > choice.told_text || (choice.finish && !choice.told_finish);
           });
  };
  changed_.wait_for(lock, most, has_news);
  std::string events;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    if (!choices_[i].status.ok() && choices_[i].finish && !choices_[i].told_finish) {
      const Json error = {{"error", {{"message", Message(choices_[i].status)}, {"type", "server_error"}}}};
      events += "data: " + Dump(error) + "\n\n";
    }
    events += EventOf(i);
  }
  if (!AllDone()) return events;
  if (request_.includes_usage) {
    Json usage = Head();
    usage["choices"] = Json::array();
    usage["usage"] = Usage();
    events += "data: " + Dump(usage) + "\n\n";
  }
  has_ended_ = true;
  return events + "data: [DONE]\n\n";
}

}  // namespace engine::serve
