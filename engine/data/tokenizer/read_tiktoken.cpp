#include <absl/strings/escaping.h>

#include <charconv>

#include "engine/base/file.h"
#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/data/tokenizer/byte_characters.h"
#include "engine/data/tokenizer/read_files.h"
#include "engine/data/tokenizer/read_model.h"
#include "engine/data/tokenizer/scanners.h"

namespace engine::tokenizer {
namespace {

constexpr std::int64_t kMostRanksBytes = std::int64_t{1} << 28;

struct PublishedVocabulary {
  std::int64_t ranks;
  std::string_view name;
  Scanner scanner;
  std::vector<std::pair<std::string_view, std::int32_t>> special;
  NormalForm form = NormalForm::kNfd;  // kNfc: text is normalized
};

// tiktoken_ext/openai_public.py; Llama 3's and Qwen's tokenizers, which come as such files.
const std::vector<PublishedVocabulary>& PublishedVocabularies() {
  static const auto& all = *new std::vector<PublishedVocabulary>{
      {50256, "r50k", Scanner::kGpt2, {{"<|endoftext|>", 50256}}},
      {50280, "p50k", Scanner::kGpt2, {{"<|endoftext|>", 50256}}},
      {100256,
       "cl100k",
       Scanner::kLlama3,
       {{"<|endoftext|>", 100257},
        {"<|fim_prefix|>", 100258},
        {"<|fim_middle|>", 100259},
        {"<|fim_suffix|>", 100260},
        {"<|endofprompt|>", 100276}}},
      {199998, "o200k", Scanner::kO200k, {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}}},
      {128000,
       "Llama 3",
       Scanner::kLlama3,
       {{"<|begin_of_text|>", 128000}, {"<|end_of_text|>", 128001}, {"<|eot_id|>", 128009}}},
      {151643,
       "Qwen",
       Scanner::kQwen,
       {{"<|endoftext|>", 151643}, {"<|im_start|>", 151644}, {"<|im_end|>", 151645}},
       NormalForm::kNfc},
  };
  return all;
}

absl::StatusOr<std::int32_t> AddRankLine(std::string_view line, Vocabulary* vocabulary) {
  const std::size_t blank = line.find(' ');
  std::string bytes;
  std::int32_t rank = -1;
  if (blank == std::string_view::npos ||
      !absl::Base64Unescape(absl::string_view(line.data(), blank), &bytes) || bytes.empty()) {
    return InvalidArgument("\"{}\" must be a token in base64, a blank and its rank", Shown(line));
  }
  const char* const end = line.data() + line.size();
  const auto [rest, error] = std::from_chars(line.data() + blank + 1, end, rank);
  if (error != std::errc() || rest != end || rank < 0 || rank > kMostTokenId) {
    return InvalidArgument("the rank \"{}\" must be a whole number from 0 to {}",
                           Shown(line.substr(blank + 1)), kMostTokenId);
  }
  std::string shown;
  for (const char byte : bytes) AppendByteCharacter(static_cast<unsigned char>(byte), &shown);
  if (vocabulary->Add(shown, rank)) return rank;
  return InvalidArgument("the token or its rank {} stands twice", rank);
}

}  // namespace

absl::StatusOr<Description> ReadTiktoken(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string file, ReadRegular(path, kMostRanksBytes));
  BpeModel model;
  std::string_view text = file;
  for (int line_number = 1; !text.empty(); ++line_number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.empty()) continue;
    if (const auto rank = AddRankLine(line, &model.vocabulary); !rank.ok()) {
      return InvalidArgument("{}:{}: error: {}", ShownPath(path), line_number, Message(rank.status()));
    }
  }
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    AppendByteCharacter(static_cast<unsigned char>(byte), &token);
    if (model.vocabulary.Find(token) == kNoToken) {
      return InvalidArgument("{}: error: has no token for byte {}; all 256 bytes need one", ShownPath(path),
                             byte);
    }
  }
  const PublishedVocabulary* published = nullptr;
  for (const PublishedVocabulary& candidate : PublishedVocabularies()) {
    if (candidate.ranks == model.vocabulary.tokens()) published = &candidate;
  }
  if (published == nullptr) {
    return Unimplemented(
        "{}: error: {} ranks are no published vocabulary's, so the pattern and the special tokens, which are "
        "in no such file, are unknown; a tokenizer.json has them",
        ShownPath(path), model.vocabulary.tokens());
  }
  std::vector<std::int32_t> rank_of(static_cast<std::size_t>(model.vocabulary.size()));
  for (std::size_t id = 0; id < rank_of.size(); ++id) rank_of[id] = static_cast<std::int32_t>(id);
  AddAllMerges(rank_of, &model);
  model.ignore_merges = true;

  Description description;
  description.source = fmt::format("{} (tiktoken's ranks of {})", ShownPath(path), published->name);
  for (const auto& [content, id] : published->special) {
    if (model.vocabulary.Has(id)) {
      return InvalidArgument("{}: error: the rank {} is that of \"{}\"", ShownPath(path), id, content);
    }
    description.added_tokens.push_back({.id = id, .content = std::string(content), .special = true});
  }
  if (published->form == NormalForm::kNfc) description.normalizers = {ToNormalForm{NormalForm::kNfc}};
  description.pre_tokenizers = {
      Split{{std::string(PatternsOf(published->scanner)[0]), true}, Behavior::kIsolated, false},
      SplitBytes{.add_prefix_space = false, .use_regex = false}};
  description.has_decoder = true;
  description.decoders = {JoinBytes{}};
  description.model = std::move(model);
  return description;
}

}  // namespace engine::tokenizer
