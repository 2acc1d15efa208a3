// BERT's vocabulary as a text file, and what transformers' BertTokenizer makes of it and of the JSON files beside it.
#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/base/utf8.h"
#include "engine/data/tokenizer/config_file.h"
#include "engine/data/tokenizer/read_files.h"

namespace engine::tokenizer {
namespace {

constexpr std::int64_t kMostVocabularyBytes = std::int64_t{1} << 28;

// Classes of transformers that take a vocab.txt as BertTokenizer does (SLOW_TO_FAST_CONVERTERS: BertConverter).
constexpr std::array<std::string_view, 14> kBertClasses = {
    "BertTokenizer",       "ConvBertTokenizer",   "DistilBertTokenizer",         "DPRContextEncoderTokenizer",
    "DPRReaderTokenizer",  "ElectraTokenizer",    "DPRQuestionEncoderTokenizer", "LayoutLMTokenizer",
    "LayoutLMv2Tokenizer", "LxmertTokenizer",     "MobileBertTokenizer",         "RealmTokenizer",
    "RetriBertTokenizer",  "SqueezeBertTokenizer"};

// Special tokens that have a part, and what they are unless a file says else; "": there is none.
struct NamedToken {
  const char* key;
  const char* content;
};
constexpr std::array<NamedToken, 7> kNamedTokens = {{{"bos_token", ""},
                                                     {"eos_token", ""},
                                                     {"unk_token", "[UNK]"},
                                                     {"sep_token", "[SEP]"},
                                                     {"pad_token", "[PAD]"},
                                                     {"cls_token", "[CLS]"},
                                                     {"mask_token", "[MASK]"}}};
constexpr std::size_t kUnk = 2, kSep = 3, kCls = 5;  // of kNamedTokens

// Python's lines: \n, \r\n and \r end one.
std::vector<std::string_view> LinesOf(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of("\r\n"), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end);
    text.remove_prefix(text.starts_with("\r\n") ? 2 : std::min<std::size_t>(1, text.size()));
  }
  return lines;
}

// A line is a token, and its number from 0 the token's id. Of lines that are equal the last one counts.
absl::StatusOr<Vocabulary> ReadTokenLines(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string file, ReadRegular(path, kMostVocabularyBytes));
  const std::vector<std::string_view> lines = LinesOf(file);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (ValidUtf8Prefix(lines[i]) == lines[i].size()) continue;
    return InvalidArgument("{}:{}: error: is not UTF-8", ShownPath(path), i + 1);
  }
  if (lines.size() > std::size_t{kMostTokenId} + 1) {
    return InvalidArgument("{}: error: has {} lines; at most {} tokens are supported", ShownPath(path),
                           lines.size(), kMostTokenId + 1);
  }
  Vocabulary vocabulary;
  vocabulary.Reserve(lines.size(), file.size());
  for (std::size_t id = lines.size(); id-- > 0;) vocabulary.Add(lines[id], static_cast<std::int32_t>(id));
  return vocabulary;
}

// Whether the words are what BertTokenizer makes, and its two kinds (slow, fast) agree on them.
absl::Status CheckConfig(const ConfigFile& config) {
  ASSIGN_OR_RETURN(const std::string named, config.String("tokenizer_class"));
  std::string_view name = named;
  if (name.ends_with("Fast")) name.remove_suffix(4);
  if (!name.empty() && std::find(kBertClasses.begin(), kBertClasses.end(), name) == kBertClasses.end()) {
    return config.Fail(fmt::format(
        "tokenizer_class is {}, and what that makes of a vocab.txt is not known here; BertTokenizer's is",
        Shown(named)));
  }
  ASSIGN_OR_RETURN(const std::optional<bool> has_words, config.Bool("do_basic_tokenize"));
  if (!has_words.value_or(true)) return config.Fail("do_basic_tokenize false is not supported");
  const nlohmann::json* const never = config.Find("never_split");
  return never == nullptr || never->empty() ? absl::OkStatus() : config.Fail("never_split is not supported");
}

absl::StatusOr<BertNormalize> NormalizerOf(const ConfigFile& config) {
  ASSIGN_OR_RETURN(const std::optional<bool> lowercase, config.Bool("do_lower_case"));
  ASSIGN_OR_RETURN(const std::optional<bool> accents, config.Bool("strip_accents"));
  ASSIGN_OR_RETURN(const std::optional<bool> chinese, config.Bool("tokenize_chinese_chars"));
  const bool lower = lowercase.value_or(true);
  return BertNormalize{.clean_text = true,
                       .handle_chinese_chars = chinese.value_or(true),
                       .strip_accents = accents.value_or(lower),
                       .lowercase = lower};
}

// Those of kNamedTokens, in their order, then the additional ones. What `overrides` has counts more than `config`.
absl::StatusOr<std::vector<AddedToken>> SpecialTokensOf(const ConfigFile& config,
                                                        const ConfigFile& overrides) {
  std::vector<AddedToken> tokens;
  for (const NamedToken& named : kNamedTokens) {
    const ConfigFile& file = overrides.Find(named.key) != nullptr ? overrides : config;
    ASSIGN_OR_RETURN(AddedToken token, file.Token(named.key, /*special=*/true));
    if (!file.root().contains(named.key)) token.content = named.content;
    token.special = true;
    tokens.push_back(std::move(token));
  }
  for (const ConfigFile* file : {&config, &overrides}) {
    const nlohmann::json* const list = file->Find("additional_special_tokens");
    if (list == nullptr) continue;
    if (!list->is_array())
      return file->Fail(fmt::format("additional_special_tokens must be a list, and is {}", TypeOf(*list)));
    for (std::size_t i = 0; i < list->size(); ++i) {
      const std::string place = fmt::format("additional_special_tokens[{}]", i);
      ASSIGN_OR_RETURN(AddedToken token, file->TokenOf((*list)[i], place, /*special=*/true));
      tokens.push_back(std::move(token));
    }
  }
  return tokens;
}

absl::Status BadId(const ConfigFile& file, std::string_view token) {
  return file.Fail(
      fmt::format("the id of \"{}\" must be a whole number from 0 to {}", Shown(token), kMostTokenId));
}

// added_tokens_decoder of tokenizer_config.json: an object from id to token.
absl::StatusOr<std::vector<AddedToken>> AddedByConfig(const ConfigFile& config,
                                                      const nlohmann::json& tokens) {
  std::vector<AddedToken> added;
  if (!tokens.is_object())
    return config.Fail(fmt::format("added_tokens_decoder must be an object, and is {}", TypeOf(tokens)));
  for (const auto& [id, value] : tokens.items()) {
    ASSIGN_OR_RETURN(AddedToken token, config.TokenOf(value, fmt::format("added_tokens_decoder.{}", id),
                                                      /*special=*/false));
    const char* const end = id.data() + id.size();
    const auto [rest, error] = std::from_chars(id.data(), end, token.id);
    if (error != std::errc() || rest != end || token.id < 0 || token.id > kMostTokenId)
      return BadId(config, token.content);
    added.push_back(std::move(token));
  }
  return added;
}

// added_tokens.json, which transformers wrote before there was added_tokens_decoder: an object from token to id.
absl::StatusOr<std::vector<AddedToken>> AddedByFile(const ConfigFile& file,
                                                    const std::vector<AddedToken>& special) {
  std::vector<AddedToken> added;
  for (const auto& [content, id] : file.root().items()) {
    if (!id.is_number_integer() || id < 0 || id > kMostTokenId) return BadId(file, content);
    const bool is_special =
        std::any_of(special.begin(), special.end(),
                    [&name = content](const AddedToken& token) { return token.content == name; });
    added.push_back(
        {.id = id.get<std::int32_t>(), .content = content, .normalized = !is_special, .special = is_special});
  }
  return added;
}

// Gives tokens their ids: those of the vocabulary; for others the next free ones, which files that name an id must name too.
class TokenAdder {
 public:
  TokenAdder(const Vocabulary* vocabulary, std::string path)
      : vocabulary_(vocabulary), path_(std::move(path)), next_(vocabulary->size()) {}

  absl::Status Add(AddedToken token, std::optional<std::int32_t> id) {
    const auto is_it = [&token](const AddedToken& other) { return other.content == token.content; };
    if (std::any_of(tokens_.begin(), tokens_.end(), is_it)) return absl::OkStatus();
    token.id = vocabulary_->Find(token.content);
    if (token.id == kNoToken) {
      // The reference counts tokens, not lines, and would give the id of another one.
      if (vocabulary_->tokens() != vocabulary_->size())
        return Fail("has equal lines, so that the id of the added token \"{}\" is not certain",
                    Shown(token.content));
      token.id = next_++;
    }
    if (id.has_value() && *id != token.id) {
      return Fail("gives the added token \"{}\" the id {}, but its id is said to be {}", Shown(token.content),
                  token.id, *id);
    }
    tokens_.push_back(std::move(token));
    return absl::OkStatus();
  }

  std::vector<AddedToken> Take() { return std::move(tokens_); }

 private:
  template <typename... Args>
  absl::Status Fail(fmt::format_string<Args...> format, Args&&... args) const {
    return InvalidArgument("{}: error: {}", ShownPath(path_),
                           fmt::format(format, std::forward<Args>(args)...));
  }
  const Vocabulary* vocabulary_;
  std::string path_;
  std::int32_t next_;
  std::vector<AddedToken> tokens_;
};

}  // namespace

absl::StatusOr<Description> ReadBertVocabulary(const std::string& path) {
  const auto beside = [&path](const char* name) {
    return (std::filesystem::path(path).parent_path() / name).string();
  };
  WordPieceModel model;
  ASSIGN_OR_RETURN(model.vocabulary, ReadTokenLines(path));
  ASSIGN_OR_RETURN(const ConfigFile config, ConfigFile::Open(beside("tokenizer_config.json")));
  RETURN_IF_ERROR(CheckConfig(config));
  ASSIGN_OR_RETURN(const BertNormalize normalizer, NormalizerOf(config));
  const nlohmann::json* const decoder = config.Find("added_tokens_decoder");
  // The older files count only where there is no added_tokens_decoder.
  const auto older = [&](const char* name) {
    return ConfigFile::Open(decoder == nullptr ? beside(name) : "");
  };
  ASSIGN_OR_RETURN(const ConfigFile names, older("special_tokens_map.json"));
  ASSIGN_OR_RETURN(const ConfigFile ids, older("added_tokens.json"));
  ASSIGN_OR_RETURN(const std::vector<AddedToken> special, SpecialTokensOf(config, names));
  for (const std::size_t part : {kUnk, kSep, kCls}) {
    if (special[part].content.empty())
      return config.Fail(fmt::format("{} must name a token", kNamedTokens[part].key));
  }
  model.unknown = model.vocabulary.Find(special[kUnk].content);
  if (model.unknown == kNoToken) {
    return InvalidArgument(
        "{}: error: has no line \"{}\" for what is unknown; is it BERT's? unk_token of a "
        "tokenizer_config.json "
        "beside it names another",
        ShownPath(path), Shown(special[kUnk].content));
  }
  std::vector<AddedToken> added;
  if (decoder != nullptr) {
    ASSIGN_OR_RETURN(added, AddedByConfig(config, *decoder));
  } else {
    ASSIGN_OR_RETURN(added, AddedByFile(ids, special));
  }
  std::sort(added.begin(), added.end(), [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  TokenAdder adder(&model.vocabulary, path);
  for (const AddedToken& token : added) RETURN_IF_ERROR(adder.Add(token, token.id));
  for (const AddedToken& token : special) {
    if (!token.content.empty()) RETURN_IF_ERROR(adder.Add(token, std::nullopt));
  }

  Description description;
  description.source = fmt::format("{} (BERT's vocabulary)", ShownPath(path));
  description.model = std::move(model);
  description.added_tokens = adder.Take();
  description.normalizers = {normalizer};
  description.pre_tokenizers = {SplitBert{}};
  description.has_template = true;
  description.before = {FindToken(description, special[kCls].content)};
  description.behind = {FindToken(description, special[kSep].content)};
  description.has_decoder = true;
  description.decoders = {JoinWordPieces{}};
  return description;
}

}  // namespace engine::tokenizer
