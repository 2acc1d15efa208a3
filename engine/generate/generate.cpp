#include "engine/generate/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/philox.h"
#include "engine/base/write_file.h"
#include "engine/checkpoint/read.h"
#include "engine/data/token_ids.h"
#include "engine/data/tokenizer.h"
#include "engine/driver/compile_recipe.h"
#include "engine/model/build.h"
#include "engine/model/load.h"
#include "engine/state/state.h"

namespace engine::generate {
namespace {

// The checkpoint's recipe, for one sample on one rank.
absl::StatusOr<recipe::Recipe> OneRankRecipe(const checkpoint::Reader& reader) {
  recipe::LoadResult loaded = model::LoadText(reader.metadata().recipe_toml, reader.folder() + " (recipe)");
  if (!loaded.ok()) return DataLoss("{}: the recipe in the checkpoint cannot be read", reader.folder());
  recipe::Recipe recipe = std::move(loaded.recipe);
  recipe.parallelism = {};
  recipe.cluster = {};
  recipe.precision.compute =
      "fp32";  // the CPU's; checkpoints hold fp32 weights whatever they were trained in
  recipe.training.global_batch = 1;
  recipe.training.rampup = {};
  recipe.training.micro_batch = 1;
  recipe.data.documents = "across";  // a prompt is one document
  return recipe;
}

// Index drawn from softmax(logits / temperature) over the top_k likeliest; `uniform` in [0, 1).
std::int32_t Draw(const std::vector<float>& logits, const GenerateOptions& options, double uniform) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](std::int32_t a, std::int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  };
  std::sort(order.begin(), order.end(), likelier);
  if (options.temperature <= 0) return order[0];
  if (options.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(options.top_k)));
  std::vector<double> weights;
  weights.reserve(order.size());
  const double highest = logits[static_cast<size_t>(order[0])];
  for (std::int32_t token : order) {
    weights.push_back(std::exp((logits[static_cast<size_t>(token)] - highest) / options.temperature));
  }
  double left = uniform * std::accumulate(weights.begin(), weights.end(), 0.0);
  for (size_t i = 0; i < order.size(); ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  return order.back();
}

class Generator {
 public:
  Generator(const plan::Plan& plan, executor::RankExecutor& executor) : plan_(plan), executor_(executor) {}

  // Logits that follow the last of these tokens.
  absl::StatusOr<std::vector<float>> Next(const std::vector<std::int32_t>& tokens) {
    const std::int64_t count =
        std::min<std::int64_t>(plan_.sequence, static_cast<std::int64_t>(tokens.size()));
    return AfterLast(tokens, count, 1);
  }
  // Those that follow each, [tokens, vocabulary].
  absl::StatusOr<std::vector<float>> All(const std::vector<std::int32_t>& tokens) {
    const auto count = static_cast<std::int64_t>(tokens.size());
    if (count > plan_.sequence) {
      return InvalidArgument("the prompt has {} tokens, but the model's window is {} (data.sequence_length)",
                             count, plan_.sequence);
    }
    return AfterLast(tokens, count, count);
  }

 private:
  // Of a window of the last `count` tokens, the logits that follow each of its last `rows`.
  absl::StatusOr<std::vector<float>> AfterLast(const std::vector<std::int32_t>& tokens, std::int64_t count,
                                               std::int64_t rows) {
    const auto window = tokens.end() - count;
    const executor::FeedFunction feed = [&](const std::string& input, std::int64_t,
                                            const backend::TensorView& host) -> absl::Status {
      for (std::int64_t s = 0; s < plan_.sequence; ++s) {
        // Causal attention keeps what stands after the last token out of its logits.
        const std::int32_t token = s < count ? *(window + s) : 0;
        host.as<std::int32_t>()[s] = input == model::kPositions ? static_cast<std::int32_t>(s) : token;
      }
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(executor_.Evaluate(feed).status());
    std::vector<float> logits(static_cast<size_t>(rows * plan_.vocab));
    for (std::int64_t r = 0; r < rows; ++r) {  // without the padded classes
      const std::byte* row = static_cast<const std::byte*>(executor_.Logits().data) +
                             (count - rows + r) * plan_.vocab_rows * SizeOf(DType::kF32);
      RETURN_IF_ERROR(executor_.backend().Download(logits.data() + r * plan_.vocab, row,
                                                   plan_.vocab * static_cast<std::int64_t>(sizeof(float))));
    }
    return logits;
  }

  const plan::Plan& plan_;
  executor::RankExecutor& executor_;
};

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

// Null where ids come in and go out.
absl::StatusOr<std::unique_ptr<data::Tokenizer>> OpenTokenizer(const recipe::Data& data,
                                                               const GenerateOptions& options) {
  if (options.prompt_ids && (options.ids_out || !options.logits_file.empty())) return nullptr;
  recipe::Tokenizer description = data.tokenizer;
  if (!options.vocab_file.empty()) {
    if (description.kind != "gpt2" && !data.is_random()) {
      return InvalidArgument("--vocab and --merges are files of the gpt2 tokenizer, but the run's is \"{}\"",
                             description.kind);
    }
    description = {.kind = "gpt2", .vocab_file = options.vocab_file, .merges_file = options.merges_file};
  }
  absl::StatusOr<std::unique_ptr<data::Tokenizer>> tokenizer = data::MakeTokenizer(description);
  if (tokenizer.ok()) return tokenizer;
  return absl::Status(
      tokenizer.status().code(),
      Message(tokenizer.status()) +
          "\n    hint: --vocab and --merges say where the tokenizer's files are; with --tokens-in "
          "and --tokens-out there is no need of any");
}

absl::StatusOr<std::vector<std::int32_t>> PromptIds(const data::Tokenizer* tokenizer, std::int64_t vocab,
                                                    const GenerateOptions& options) {
  std::vector<std::int32_t> ids;
  if (options.prompt_ids) {
    ASSIGN_OR_RETURN(ids, data::ParseTokenIds(options.prompt_ids->name, options.prompt_ids->text, vocab));
    if (ids.empty() && tokenizer == nullptr)
      return InvalidArgument("{}: there is no id", options.prompt_ids->name);
    return ids;
  }
  RETURN_IF_ERROR(tokenizer->EncodeTo(options.prompt, &ids));
  return ids;
}

absl::Status CheckIds(const std::vector<std::int32_t>& ids, std::int64_t vocab) {
  for (const std::int32_t id : ids) {
    if (id < vocab) continue;
    return InvalidArgument(
        "the tokenizer gives id {}, but the model's vocabulary is 0 to {}: it is another one's", id,
        vocab - 1);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Generate(const std::string& folder, const GenerateOptions& options, const state::Device& device,
                      const std::function<void(std::string_view)>& emit) {
  if (!std::isfinite(options.temperature))
    return InvalidArgument("temperature {} is not a number", options.temperature);
  ASSIGN_OR_RETURN(const checkpoint::Reader reader, checkpoint::Reader::Open(folder));
  ASSIGN_OR_RETURN(const recipe::Recipe recipe, OneRankRecipe(reader));
  ASSIGN_OR_RETURN(const std::unique_ptr<data::Tokenizer> tokenizer, OpenTokenizer(recipe.data, options));
  ASSIGN_OR_RETURN(std::vector<std::int32_t> tokens, PromptIds(tokenizer.get(), recipe.model.vocab, options));
  ASSIGN_OR_RETURN(
      const plan::Plan plan,
      driver::CompileRecipe(recipe, {.profile = device.profile, .training = false, .keep_logits = true}));
  ASSIGN_OR_RETURN(const std::unique_ptr<state::Ranks> ranks, state::Ranks::Create(plan, device, 0));
  executor::RankExecutor& executor = *ranks->executors()[0];
  RETURN_IF_ERROR(state::LoadCheckpoint(plan, reader, /*with_optimizer=*/false, executor));

  const auto show = [&](const std::vector<std::int32_t>& ids, bool first) {
    if (!ids.empty()) emit(fmt::format("{}{}", first ? "" : " ", fmt::join(ids, " ")));
  };
  // The text of all tokens so far, of which what was not there yet is emitted: a token's text may depend on those before
  // it. A character of which bytes are missing stays back until it is whole, or the last token is there.
  std::size_t shown = 0;
  const auto show_text = [&](bool last) -> absl::Status {
    if (options.ids_out) return absl::OkStatus();
    ASSIGN_OR_RETURN(const std::string whole, tokenizer->Decode(tokens));
    std::string_view text = whole;
    while (!last && text.ends_with(data::kReplacementCharacter))
      text.remove_suffix(data::kReplacementCharacter.size());
    if (text.size() <= shown) return absl::OkStatus();
    emit(text.substr(shown));
    shown = text.size();
    return absl::OkStatus();
  };
  if (!options.logits_file.empty()) {
    if (tokens.empty()) return InvalidArgument("the prompt has no tokens, which logits could follow");
    RETURN_IF_ERROR(CheckIds(tokens, recipe.model.vocab));
    ASSIGN_OR_RETURN(const std::vector<float> logits, Generator(plan, executor).All(tokens));
    return WriteArray(options.logits_file, logits, plan.vocab);
  }
  if (options.ids_out) {
    show(tokens, /*first=*/true);
  } else if (options.prompt_ids) {
    RETURN_IF_ERROR(show_text(/*last=*/false));
  } else {
    emit(options.prompt);
    ASSIGN_OR_RETURN(const std::string text, tokenizer->Decode(tokens));
    shown = text.size();
  }
  const bool silent = tokens.empty();
  if (silent) tokens.push_back(tokenizer->end_of_document());
  RETURN_IF_ERROR(CheckIds(tokens, recipe.model.vocab));
  const std::int64_t end =
      options.end_token >= 0 || tokenizer == nullptr ? options.end_token : tokenizer->end_of_document();
  Generator generator(plan, executor);
  const PhiloxKey key = MakePhiloxKey(static_cast<std::uint64_t>(options.seed), "generate");
  for (std::int64_t n = 0; n < options.tokens; ++n) {
    ASSIGN_OR_RETURN(const std::vector<float> logits, generator.Next(tokens));
    const std::int32_t token =
        Draw(logits, options, UniformFromWord(PhiloxWord(key, static_cast<std::uint64_t>(n))));
    if (token == end) break;
    tokens.push_back(token);
    if (options.ids_out) show({token}, silent && n == 0);
    RETURN_IF_ERROR(show_text(/*last=*/false));
  }
  return show_text(/*last=*/true);
}

}  // namespace engine::generate
