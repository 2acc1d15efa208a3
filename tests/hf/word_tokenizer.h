// A tokenizer.json for models whose tokens mean nothing.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace engine::hf::testing {

// Of words w0, w1, …, of which the last token, </s>, ends a document.
inline std::string WordTokenizer(std::int64_t tokens) {
  nlohmann::json vocab;
  for (std::int64_t w = 0; w + 1 < tokens; ++w) vocab["w" + std::to_string(w)] = w;
  vocab["</s>"] = tokens - 1;
  return nlohmann::json{{"version", "1.0"},
                        {"added_tokens",
                         {{{"id", tokens - 1},
                           {"content", "</s>"},
                           {"special", true},
                           {"single_word", false},
                           {"lstrip", false},
                           {"rstrip", false},
                           {"normalized", false}}}},
                        {"normalizer", nullptr},
                        {"pre_tokenizer", {{"type", "Whitespace"}}},
                        {"post_processor", nullptr},
                        {"decoder", nullptr},
                        {"model", {{"type", "WordLevel"}, {"vocab", vocab}, {"unk_token", "w0"}}}}
      .dump();
}

}  // namespace engine::hf::testing
