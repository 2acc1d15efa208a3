#include "engine/generate/generate.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "engine/base/status.h"
#include "engine/base/write_file.h"
#include "engine/generate/text_stream.h"

namespace engine::generate {
namespace {

// NumPy's form, version 1.0: a magic number, the length of a text and the text, which describes an array, padded to 64
// bytes, and the array's elements.
absl::Status WriteArray(const std::string& path, const std::vector<float>& values, std::int64_t width) {
  std::string text = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}",
                                 static_cast<std::int64_t>(values.size()) / width, width);
  constexpr size_t kBefore = 10;  // bytes of the magic number, version and length
  text.append(63 - (kBefore + text.size()) % 64, ' ');
  text += '\n';
  std::string file = "\x93NUMPY";
  for (const size_t byte : {size_t{1}, size_t{0}, text.size() & 0xFF, text.size() >> 8}) {
    file += static_cast<char>(byte);
  }
  file += text;
  file.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  return WriteFile(path, file);
}

// An answer as it grows.
struct Growing {
  TextStream stream;
  Answer answer = {};
  absl::Status status = absl::OkStatus();
  bool is_done = false;

  // The text that this token makes certain.
  std::string Add(const ScoredToken& token) {
    answer.tokens.push_back(token);
    if (token.ends) return "";
    absl::StatusOr<std::string> text = stream.Add(token.token);
    if (!text.ok()) status = text.status();
    return text.ok() ? *std::move(text) : "";
  }
};

Request RequestOf(const Prompt& prompt, std::size_t number, const GenerateOptions& options,
                  const GenerateCalls& calls, Growing* growing) {
  const auto show = [number, growing, &calls](const std::string& text) {
    growing->answer.text += text;
    if (!text.empty()) calls.on_text(number, text);
  };
  Request request{.tokens = prompt.ids,
                  .most_tokens = options.tokens,
                  .sampling = options.sampling,
                  .number = number,
                  .end_tokens = options.end_tokens,
                  .top = options.top,
                  .slides = true};
  request.on_token = [growing, show](const ScoredToken& token) {
    show(growing->Add(token));
    return growing->status.ok() && !growing->stream.has_stopped();
  };
  request.on_finish = [number, growing, show, &calls](Finish finish, const absl::Status& status) {
    growing->is_done = true;
    if (!status.ok()) growing->status = status;
    if (!growing->status.ok()) return;
    show(growing->stream.Finish());
    growing->answer.finish = finish;
    calls.on_answer(number, growing->answer);
  };
  return request;
}

}  // namespace

absl::Status Generate(Decoder* decoder, const data::Tokenizer* tokenizer, const std::vector<Prompt>& prompts,
                      const GenerateOptions& options, const GenerateCalls& calls) {
  std::vector<std::unique_ptr<Growing>> growing;
  std::vector<Request> requests;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const std::span<const std::int32_t> before =
        prompts[i].is_silent ? std::span<const std::int32_t>() : prompts[i].ids;
    ASSIGN_OR_RETURN(TextStream stream, TextStream::Begin(tokenizer, before, options.stops));
    growing.push_back(std::make_unique<Growing>(Growing{.stream = std::move(stream)}));
    requests.push_back(RequestOf(prompts[i], i, options, calls, growing.back().get()));
  }
  Batch batch(decoder, prompts.size());
  RETURN_IF_ERROR(batch.Submit(std::move(requests)).status());
  while (batch.Advance()) {
    for (const std::unique_ptr<Growing>& one : growing) RETURN_IF_ERROR(one->status);
    if (calls.should_stop()) batch.CancelAll();
  }
  for (const std::unique_ptr<Growing>& one : growing) RETURN_IF_ERROR(one->status);
  return absl::OkStatus();
}

absl::Status WriteLogits(Decoder* decoder, const std::vector<std::int32_t>& tokens, const std::string& path) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (tokens.empty()) return InvalidArgument("the prompt has no tokens, which logits could follow");
  if (count > decoder->context()) {
    return InvalidArgument("the prompt has {} tokens, but the model's window is {} (data.sequence_length)",
                           count, decoder->context());
  }
  std::vector<float> logits;
  RETURN_IF_ERROR(decoder->PrefillAndRead(0, tokens, count, &logits));
  return WriteArray(path, logits, decoder->vocabulary());
}

std::string_view NameOf(Finish finish) {
  switch (finish) {
    case Finish::kEndToken:
    case Finish::kEnough:
      return "stop";
    case Finish::kLength:
      return "length";
    case Finish::kCancelled:
      return "cancelled";
    case Finish::kTimedOut:
      return "timeout";
    case Finish::kFailed:
      break;
  }
  return "error";
}

}  // namespace engine::generate
