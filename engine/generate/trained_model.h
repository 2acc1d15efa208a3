// A trained model, from where it lies to a decoder of it.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/read.h"
#include "engine/data/tokenizer.h"
#include "engine/driver/model_layout.h"
#include "engine/generate/decoder.h"
#include "engine/recipe/recipe.h"
#include "engine/state/ranks.h"

namespace engine::generate {

// How a model is to be run, where it is not as its folder says.
struct ModelShape {
  std::int64_t context =
      0;  // tokens that a sequence may have; 0: a run's training sequence, or what a Hugging Face model is made
          // for, but no more than 1,024
  driver::ModelLayout layout;
  bool invariant = false;   // generate.invariant, whatever the recipe says of it
  std::string cache_dtype;  // generate.cache_dtype; empty: as the recipe says
};

// What a folder says of its model, before weights are read: one checkpoint of a run, or the folder of a Hugging Face model.
struct ModelSource {
  std::string folder;
  recipe::Recipe recipe = {};  // of one sample a rank, in the layout that was asked for
  std::optional<checkpoint::Reader> checkpoint = std::nullopt;
  std::unique_ptr<checkpoint::TensorSource> weights =
      nullptr;  // where it is no checkpoint: those of all parameters
  // Whether prompts begin with what the tokenizer's template puts before a text: as models of Hugging Face are used. A run's
  // data are without.
  bool adds_template = false;
  // Tokens that end a text beside the tokenizer's end of a document: eos_token_id of generation_config.json, or of config.json.
  std::vector<std::int32_t> end_tokens = {};
  bool has_generation_config = false;  // which names some of them, and so the end of a turn
};

// InvalidArgument: the model has no positions for so many tokens, or cannot be split so. Other errors are those of the folder's files.
absl::StatusOr<ModelSource> OpenModel(const std::string& folder, const ModelShape& shape);

// The tokens that end a text. A chat's end at the tokenizer's eos_token, too, unless a generation_config.json says with which they end.
// `tokenizer` may be null.
std::vector<std::int32_t> EndTokens(const ModelSource& source, const data::Tokenizer* tokenizer,
                                    bool is_chat);

// Where the gpt2 tokenizer's files are, in place of those that the recipe names; both or none.
struct TokenizerFiles {
  std::string vocab_file;
  std::string merges_file;
};
// Errors say, beside what is wrong, how to do without.
absl::StatusOr<std::unique_ptr<data::Tokenizer>> OpenTokenizer(const recipe::Data& data,
                                                               const TokenizerFiles& files);
// Ids of a text as prompts have them: with what the tokenizer's template puts around it, and with special tokens of the text as tokens,
// if so. InvalidArgument: the tokenizer has ids that the model has not.
absl::StatusOr<std::vector<std::int32_t>> EncodePrompt(const data::Tokenizer& tokenizer,
                                                       const tokenizer::EncodeOptions& options,
                                                       std::int64_t vocabulary, std::string_view text);

// The model with its weights on a device.
class LoadedModel {
 public:
  // On the CPU it runs in float32, whatever it was trained in. Keys and values are kept from token to token
  // (cached_decoder.h), unless the model cannot go token by token; then it runs on one rank alone. All ranks are threads of this
  // process.
  static absl::StatusOr<std::unique_ptr<LoadedModel>> Load(const ModelSource& source, state::Device device,
                                                           std::int64_t slots);
  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;

  Decoder& decoder() { return *decoder_; }
  // Why it does not go token by token, and what comes of that; empty: it does.
  const std::string& note() const { return note_; }

 private:
  LoadedModel(state::Device device, plan::Plan plan) : device_(std::move(device)), plan_(std::move(plan)) {}

  state::Device device_;
  plan::Plan plan_;
  std::unique_ptr<state::Ranks> ranks_;
  std::unique_ptr<Decoder> decoder_;
  std::string note_;
};

}  // namespace engine::generate
