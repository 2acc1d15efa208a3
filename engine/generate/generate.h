// Texts that a model goes on with: several prompts over the slots of one decoder.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/tokenizer.h"
#include "engine/generate/batch.h"

namespace engine::generate {

struct Prompt {
  std::string text;               // what is shown before the answer
  std::vector<std::int32_t> ids;  // what the model sees: at least one
  bool is_silent = false;         // the ids stand for no text: an answer begins a document
};

struct GenerateOptions {
  SamplingOptions sampling = {.temperature = 0.8, .top_k = 40, .seed = 1234};
  std::int64_t tokens = 200;  // new ones, at most
  std::vector<std::string> stops;
  std::vector<std::int32_t> end_tokens;
  std::optional<std::int64_t> top;  // log-probabilities, and those of so many likeliest tokens
};

struct Answer {
  std::string text;                 // up to a stop string
  std::vector<ScoredToken> tokens;  // all that were drawn, an end token too
  Finish finish = Finish::kCancelled;
};

// By the number of the prompt, from 0.
struct GenerateCalls {
  std::function<void(std::size_t, std::string_view)> on_text;  // text of an answer, as it comes
  std::function<void(std::size_t, const Answer&)> on_answer;   // the whole of it, once
  std::function<bool()> should_stop;  // asked between tokens: true, and answers end with what they have
};

// Answers all prompts. Prompts and answers may be longer than the decoder's context: then older tokens fall out of it. `tokenizer`: null
// where text is ids (text_stream.h). The first error of an answer ends all.
absl::Status Generate(Decoder* decoder, const data::Tokenizer* tokenizer, const std::vector<Prompt>& prompts,
                      const GenerateOptions& options, const GenerateCalls& calls);

// Writes the logits that follow each of the tokens: a file in NumPy's form, float32 [tokens, vocabulary]. They must fit in the context.
absl::Status WriteLogits(Decoder* decoder, const std::vector<std::int32_t>& tokens, const std::string& path);

// "stop", "length", …: as the completions of OpenAI's interface call it.
std::string_view NameOf(Finish finish);

}  // namespace engine::generate
