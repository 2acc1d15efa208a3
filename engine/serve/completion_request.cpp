#include "engine/serve/completion_request.h"

#include <functional>
#include <limits>
#include <utility>

#include "engine/base/json.h"
#include "engine/base/shown.h"
#include "engine/base/status.h"

namespace engine::serve {
namespace {

using nlohmann::json;

constexpr std::int64_t kMostTokens = std::int64_t{1} << 20;
constexpr std::int64_t kMostAnswers = 128;
constexpr std::int64_t kMostTop = 1000;
constexpr std::size_t kMostStops = 64;

absl::Status ReadTruth(const json& value, const char* key, bool* out) {
  if (value.is_null()) return absl::OkStatus();
  if (!value.is_boolean()) return InvalidArgument("{} must be true or false, and is {}", key, TypeOf(value));
  *out = value.get<bool>();
  return absl::OkStatus();
}

absl::Status ReadWhole(const json& value, const char* key, std::int64_t least, std::int64_t most,
                       std::int64_t* out) {
  if (value.is_null()) return absl::OkStatus();
  const bool is_whole =
      value.is_number_integer() &&
      !(value.is_number_unsigned() && value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max());
  if (!is_whole || value.get<std::int64_t>() < least || value.get<std::int64_t>() > most)
    return InvalidArgument("{} must be a whole number from {} to {}, and is {}", key, least, most,
                           Shown(value.dump(-1, ' ', true, json::error_handler_t::replace)));
  *out = value.get<std::int64_t>();
  return absl::OkStatus();
}

absl::Status ReadReal(const json& value, const char* key, double* out) {
  if (value.is_null()) return absl::OkStatus();
  if (!value.is_number()) return InvalidArgument("{} must be a number, and is {}", key, TypeOf(value));
  *out = value.get<double>();
  return absl::OkStatus();
}

// Keys of OpenAI's interface that are served with this value alone.
absl::Status ReadOnlyZero(const json& value, const char* key) {
  double number = 0;
  RETURN_IF_ERROR(ReadReal(value, key, &number));
  if (number != 0) return InvalidArgument("{} is not supported here, and must be 0", key);
  return absl::OkStatus();
}

absl::Status ReadStops(const json& value, std::vector<std::string>* stops) {
  if (value.is_null()) return absl::OkStatus();
  const json list = value.is_array() ? value : json::array({value});
  if (list.size() > kMostStops)
    return InvalidArgument("stop has {} texts, and may have {}", list.size(), kMostStops);
  for (const json& stop : list) {
    if (!stop.is_string()) return InvalidArgument("stop must be a string or a list of strings");
    // Harnesses send an empty one where they know no end of a document.
    if (!stop.get_ref<const std::string&>().empty()) stops->push_back(stop.get<std::string>());
  }
  return absl::OkStatus();
}

absl::Status ReadPrompt(const json& value, std::vector<PromptBody>* prompts) {
  if (value.is_string()) {
    prompts->emplace_back(value.get<std::string>());
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(std::vector<std::int32_t> ids, ParseIds(value, "prompt"));
  prompts->emplace_back(std::move(ids));
  return absl::OkStatus();
}

absl::Status ReadPrompts(const json& value, std::vector<PromptBody>* prompts) {
  const bool is_list = value.is_array() && !value.empty() && (value[0].is_string() || value[0].is_array());
  if (!is_list) return ReadPrompt(value, prompts);
  for (const json& one : value) RETURN_IF_ERROR(ReadPrompt(one, prompts));
  return absl::OkStatus();
}

// `logprobs` is a number here: true, of the interface of chats, does not say how many. False asks for none, as null does.
absl::Status ReadLogprobs(const json& value, std::optional<std::int64_t>* logprobs) {
  if (value.is_null() || value == false) return absl::OkStatus();
  std::int64_t count = 0;
  RETURN_IF_ERROR(ReadWhole(value, "logprobs", 0, kMostTop, &count));
  *logprobs = count;
  return absl::OkStatus();
}

// Any 64 bits, as a number with a sign or without one.
absl::Status ReadSeed(const json& value, std::optional<std::uint64_t>* seed) {
  if (value.is_null()) return absl::OkStatus();
  if (value.is_number_unsigned()) {
    *seed = value.get<std::uint64_t>();
    return absl::OkStatus();
  }
  if (!value.is_number_integer())
    return InvalidArgument("seed must be a whole number from {} to {}, and is {}",
                           std::numeric_limits<std::int64_t>::min(),
                           std::numeric_limits<std::uint64_t>::max(),
                           Shown(value.dump(-1, ' ', true, json::error_handler_t::replace)));
  *seed = static_cast<std::uint64_t>(value.get<std::int64_t>());
  return absl::OkStatus();
}

absl::Status ReadStreamOptions(const json& value, bool* includes_usage) {
  if (value.is_null()) return absl::OkStatus();
  if (!value.is_object()) return InvalidArgument("stream_options must be an object");
  for (const auto& [key, option] : value.items()) {
    if (key != "include_usage")
      return InvalidArgument("stream_options has an unknown key \"{}\"", Shown(key));
    RETURN_IF_ERROR(ReadTruth(option, "stream_options.include_usage", includes_usage));
  }
  return absl::OkStatus();
}

absl::Status ReadKey(const std::string& key, const json& value, CompletionRequest* to) {
  generate::SamplingOptions& sampling = to->sampling;
  if (key == "prompt") return ReadPrompts(value, &to->prompts);
  if (key == "max_tokens") return ReadWhole(value, "max_tokens", 0, kMostTokens, &to->max_tokens);
  if (key == "temperature") return ReadReal(value, "temperature", &sampling.temperature);
  if (key == "top_p") return ReadReal(value, "top_p", &sampling.top_p);
  if (key == "min_p") return ReadReal(value, "min_p", &sampling.min_p);
  if (key == "repetition_penalty") return ReadReal(value, "repetition_penalty", &sampling.repetition_penalty);
  if (key == "top_k") {  // −1: all, as vLLM has it
    RETURN_IF_ERROR(ReadWhole(value, "top_k", -1, kMostTokens * 1024, &sampling.top_k));
    sampling.top_k = std::max<std::int64_t>(0, sampling.top_k);
    return absl::OkStatus();
  }
  if (key == "seed") return ReadSeed(value, &to->seed);
  if (key == "stop") return ReadStops(value, &to->stops);
  if (key == "n" || key == "best_of") {
    std::int64_t count = to->n;
    RETURN_IF_ERROR(ReadWhole(value, key == "n" ? "n" : "best_of", 1, kMostAnswers, &count));
    if (key == "n") to->n = count;
    return absl::OkStatus();
  }
  if (key == "logprobs") return ReadLogprobs(value, &to->logprobs);
  if (key == "echo") return ReadTruth(value, "echo", &to->echo);
  if (key == "stream") return ReadTruth(value, "stream", &to->stream);
  if (key == "stream_options") return ReadStreamOptions(value, &to->includes_usage);
  if (key == "return_token_ids") return ReadTruth(value, "return_token_ids", &to->returns_ids);
  if (key == "add_special_tokens") {
    bool adds = false;
    RETURN_IF_ERROR(ReadTruth(value, "add_special_tokens", &adds));
    if (!value.is_null()) to->add_special_tokens = adds;
    return absl::OkStatus();
  }
  if (key == "presence_penalty" || key == "frequency_penalty") return ReadOnlyZero(value, key.c_str());
  if (key == "logit_bias" || key == "suffix") {
    if (value.is_null() || value.empty() ||
        (value.is_string() && value.get_ref<const std::string&>().empty()))
      return absl::OkStatus();
    return InvalidArgument("{} is not supported here, and must be null", key);
  }
  if (key == "model" || key == "user") {
    if (value.is_string() || value.is_null()) return absl::OkStatus();
    return InvalidArgument("{} must be a string, and is {}", key, TypeOf(value));
  }
  return InvalidArgument("unknown key \"{}\"", Shown(key));
}

}  // namespace

absl::StatusOr<std::vector<std::int32_t>> ParseIds(const json& value, std::string_view key) {
  std::vector<std::int32_t> ids;
  bool is_right = value.is_array();
  for (std::size_t i = 0; is_right && i < value.size(); ++i) {
    is_right = value[i].is_number_unsigned() &&
               value[i].get<std::uint64_t>() <= std::numeric_limits<std::int32_t>::max();
    if (is_right) ids.push_back(value[i].get<std::int32_t>());
  }
  if (!is_right)
    return InvalidArgument(
        "{} must be {}, and no id may be negative", key,
        key == "prompt" ? "a string, a list of token ids, or a list of either" : "a list of token ids");
  return ids;
}

absl::StatusOr<json> ParseBody(std::string_view body) {
  absl::StatusOr<json> parsed = ParseStrictJson(body, "the body");
  if (!parsed.ok()) return InvalidArgument("{}", Message(parsed.status()));
  if (!parsed->is_object()) return InvalidArgument("the body is {}, and must be an object", TypeOf(*parsed));
  return parsed;
}

absl::StatusOr<CompletionRequest> ParseCompletion(std::string_view body) {
  ASSIGN_OR_RETURN(const json parsed, ParseBody(body));
  CompletionRequest request;
  for (const auto& [key, value] : parsed.items()) RETURN_IF_ERROR(ReadKey(key, value, &request));
  if (request.prompts.empty()) return InvalidArgument("there is no prompt");
  RETURN_IF_ERROR(generate::CheckSampling(request.sampling));
  const auto best_of = parsed.find("best_of");
  if (best_of != parsed.end() && best_of->is_number() && *best_of != request.n)
    return InvalidArgument("best_of is not supported here, and must be n, {}", request.n);
  if (request.seed) request.sampling.seed = *request.seed;
  return request;
}

}  // namespace engine::serve
