#include "engine/data/tokenizer/pipeline.h"

#include <simdjson.h>

#include <algorithm>

#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/base/utf8.h"
#include "engine/data/tokenizer/byte_characters.h"

namespace engine::tokenizer {
namespace {

constexpr std::size_t kMostTextBytes = std::size_t{1} << 31;
constexpr std::string_view kNoCharacter = "\uFFFD";

// Bytes at the beginning of `text`, which is not empty, that begin no well-formed character.
std::size_t InvalidPrefix(std::string_view text) {
  std::size_t at = 0;
  char32_t c = 0;
  while (at < text.size() && DecodeUtf8(text.substr(at), &c) == 0) ++at;
  return at;
}

}  // namespace

struct Pipeline::Workspace {
  std::vector<Segment> segments;
  std::vector<Segment> pieces;
  std::string normalized;
  std::string word;  // normalized
  CutterWorkspace cutter;
  std::vector<std::string_view> words;
  std::vector<std::uint32_t> ends;  // of a word's parts
  std::vector<std::uint32_t> raw_begins;
  std::vector<std::uint32_t> raw_ends;
  WordWorkspace encoder;
};

// One of the idle workspaces, or a new one, for the time of one call.
struct Pipeline::WorkspaceLease {
  explicit WorkspaceLease(const Pipeline* pipeline) : pipeline_(pipeline) {
    {
      const std::lock_guard lock(pipeline->mutex_);
      auto& idle = pipeline->idle_;
      if (!idle.empty()) {
        work = std::move(idle.back());
        idle.pop_back();
      }
    }
    if (work == nullptr) work = std::make_unique<Workspace>();
  }
  ~WorkspaceLease() {
    const std::lock_guard lock(pipeline_->mutex_);
    pipeline_->idle_.push_back(std::move(work));
  }
  const Pipeline* pipeline_;
  std::unique_ptr<Workspace> work;
};

Pipeline::Pipeline(Description description) : description_(std::move(description)) {}
Pipeline::~Pipeline() = default;

absl::StatusOr<std::unique_ptr<Pipeline>> Pipeline::Make(Description description) {
  std::unique_ptr<Pipeline> pipeline(new Pipeline(std::move(description)));
  if (const absl::Status status = pipeline->Prepare(); !status.ok()) {
    return WithContext(status, pipeline->description_.source);
  }
  return pipeline;
}

absl::Status Pipeline::Prepare() {
  const auto& cutters = description_.pre_tokenizers;
  of_bytes_ = std::holds_alternative<BpeModel>(description_.model) && !cutters.empty() &&
              std::holds_alternative<SplitBytes>(cutters.back());
  ASSIGN_OR_RETURN(normalizer_, NormalizerChain::Make(description_.normalizers));
  ASSIGN_OR_RETURN(cutter_, WordCutter::Make(cutters, of_bytes_));
  scanner_ = cutter_->scanner();
  if (!of_bytes_) {
    blanks_ = BlanksOf(description_);
    borders_ = WordBorders::Of(description_.model, /*spaces_are_blanks=*/blanks_.has_value());
    if (!borders_.has_value()) blanks_.reset();
    if (!blanks_.has_value()) {
      ASSIGN_OR_RETURN(raw_parts_, RawParts::Of(description_, *normalizer_));
    }
  }
  ASSIGN_OR_RETURN(encoder_, MakeWordEncoder(description_.model, of_bytes_));
  ASSIGN_OR_RETURN(decoder_, DecoderChain::Make(description_.decoders, description_.has_decoder));
  vocab_size_ = VocabularyOf(description_.model).size();
  for (const AddedToken& token : description_.added_tokens)
    vocab_size_ = std::max(vocab_size_, std::int64_t{token.id} + 1);
  return MakeFinders();
}

std::optional<Pipeline::Blanks> Pipeline::BlanksOf(const Description& description) {
  if (std::any_of(description.added_tokens.begin(), description.added_tokens.end(),
                  [](const AddedToken& token) { return token.normalized; }))
    return std::nullopt;
  Blanks blanks;
  bool has_spaces = true;  // that are no blank symbols
  for (const Normalizer& normalizer : description.normalizers) {
    if (const auto* prepend = std::get_if<Prepend>(&normalizer)) {
      if (prepend->text != kBlankSymbol || blanks.prepends != PrependScheme::kNever) return std::nullopt;
      blanks.prepends = PrependScheme::kAlways;
    } else if (const auto* replace = std::get_if<Replace>(&normalizer)) {
      if (replace->pattern.is_regex || replace->pattern.text != " " || replace->content != kBlankSymbol)
        return std::nullopt;
      has_spaces = false;
    } else if (const auto* pieces = std::get_if<SentencePieceNormalize>(&normalizer)) {
      if (!pieces->charsmap.empty() || pieces->remove_extra_whitespaces || !pieces->escape_whitespaces ||
          pieces->whitespace_is_suffix || !pieces->user_defined.empty() ||
          description.normalizers.size() != 1)
        return std::nullopt;
      if (pieces->add_dummy_prefix) blanks.prepends = PrependScheme::kAlways;
      has_spaces = false;
    } else {
      return std::nullopt;
    }
  }
  for (const PreTokenizer& cutter : description.pre_tokenizers) {
    if (const auto* metaspace = std::get_if<Metaspace>(&cutter)) {
      if (metaspace->replacement != kBlankSymbol || metaspace->split || !description.normalizers.empty() ||
          description.pre_tokenizers.size() != 1)
        return std::nullopt;
      blanks = {metaspace->scheme, /*unless_there=*/true};
      has_spaces = false;
    } else if (const auto* split = std::get_if<Split>(&cutter)) {
      // Nothing is cut where there are no spaces.
      if (has_spaces || split->pattern.is_regex || split->pattern.text != " " || split->invert)
        return std::nullopt;
    } else {
      return std::nullopt;
    }
  }
  if (has_spaces) return std::nullopt;
  return blanks;
}

absl::Status Pipeline::MakeFinders() {
  const auto& normalizers = description_.normalizers;
  const bool is_sentencepiece =
      normalizers.size() == 1 && std::holds_alternative<SentencePieceNormalize>(normalizers[0]);
  std::vector<std::pair<std::string, AddedToken>> raw;
  std::vector<std::pair<std::string, AddedToken>> normalized;
  for (const AddedToken& token : description_.added_tokens) {
    if (!token.normalized) {
      raw.emplace_back(token.content, token);
      continue;
    }
    std::string storage;
    std::string_view text = token.content;
    // SentencePiece leaves its user-defined pieces as they are.
    if (!is_sentencepiece) {
      ASSIGN_OR_RETURN(text, normalizer_->Apply(token.content, &storage));
    }
    if (text.empty()) {
      return InvalidArgument("nothing is left of the added token \"{}\" when it is normalized",
                             Shown(token.content));
    }
    normalized.emplace_back(std::string(text), token);
  }
  raw_tokens_ = AddedTokenFinder(raw);
  normalized_tokens_ = AddedTokenFinder(normalized);
  return absl::OkStatus();
}

const std::vector<Pipeline::Token>& Pipeline::Tokens() const {
  std::call_once(tokens_once_, [this] { MakeTokens(); });
  return token_of_id_;
}

void Pipeline::MakeTokens() const {
  const Vocabulary& vocabulary = VocabularyOf(description_.model);
  token_of_id_.resize(static_cast<std::size_t>(vocab_size_));
  for (std::int32_t id = 0; id < vocabulary.size(); ++id) {
    if (vocabulary.Has(id)) token_of_id_[static_cast<std::size_t>(id)] = {vocabulary.Token(id), true, false};
  }
  for (const AddedToken& token : description_.added_tokens)
    token_of_id_[static_cast<std::size_t>(token.id)] = {token.content, true, token.special};
  if (!decoder_->is_of_bytes()) return;
  std::size_t bytes = 0;
  for (const Token& token : token_of_id_) bytes += token.text.size();
  token_bytes_.reserve(bytes);  // so that it never moves
  std::string shown;
  for (Token& token : token_of_id_) {
    if (!BytesShownBy(token.text, &shown)) continue;
    const std::size_t begin = token_bytes_.size();
    token_bytes_ += shown;
    token.text = std::string_view(token_bytes_).substr(begin);
  }
}

absl::Status Pipeline::Encode(std::string_view text, const EncodeOptions& options,
                              std::vector<std::int32_t>* ids) const {
  if (text.size() >= kMostTextBytes)
    return InvalidArgument("a text of {} bytes; less than {} can be encoded", text.size(), kMostTextBytes);
  const WorkspaceLease lease(this);
  const auto add = [ids](const std::vector<std::int32_t>& some) {
    ids->insert(ids->end(), some.begin(), some.end());
  };
  if (options.add_template) add(description_.before);
  if (simdjson::validate_utf8(text.data(), text.size())) {
    RETURN_IF_ERROR(EncodeValid(text, true, options, lease.work.get(), ids));
  } else if (!of_bytes_) {
    return InvalidArgument("the text is not UTF-8 from byte {} on, which this tokenizer has no tokens for",
                           ValidUtf8Prefix(text));
  } else {
    for (std::string_view rest = text; !rest.empty();) {
      const std::size_t valid = ValidUtf8Prefix(rest);
      RETURN_IF_ERROR(
          EncodeValid(rest.substr(0, valid), rest.size() == text.size(), options, lease.work.get(), ids));
      rest.remove_prefix(valid);
      if (rest.empty()) break;
      const std::size_t invalid = InvalidPrefix(rest);
      RETURN_IF_ERROR(encoder_->Encode(rest.substr(0, invalid), &lease.work->encoder, ids));
      rest.remove_prefix(invalid);
    }
  }
  if (options.add_template) add(description_.behind);
  return absl::OkStatus();
}

absl::Status Pipeline::EncodeValid(std::string_view text, bool is_first, const EncodeOptions& options,
                                   Workspace* work, std::vector<std::int32_t>* ids) const {
  work->segments.clear();
  raw_tokens_.Cut(text, options.special_tokens, &work->segments);
  for (const Segment& segment : work->segments) {
    if (segment.id != kNoToken) {
      ids->push_back(segment.id);
      continue;
    }
    RETURN_IF_ERROR(EncodeBetween(segment.text, is_first && segment.text.data() == text.data(),
                                  text.data() + text.size(), options, work, ids));
  }
  return absl::OkStatus();
}

absl::Status Pipeline::EncodeBetween(std::string_view text, bool is_first, const char* readable,
                                     const EncodeOptions& options, Workspace* work,
                                     std::vector<std::int32_t>* ids) const {
  if (blanks_.has_value()) return EncodeWithSpaces(text, is_first, readable, work, ids);
  if (raw_parts_.has_value()) return EncodeRaw(text, is_first, readable, work, ids);
  ASSIGN_OR_RETURN(const std::string_view normalized, normalizer_->Apply(text, &work->normalized));
  work->pieces.clear();
  normalized_tokens_.Cut(normalized, options.special_tokens, &work->pieces);
  for (const Segment& piece : work->pieces) {
    if (piece.id != kNoToken) {
      ids->push_back(piece.id);
      continue;
    }
    RETURN_IF_ERROR(EncodePiece(piece.text, is_first && piece.text.data() == normalized.data(),
                                normalized.data() + normalized.size(), work, ids));
  }
  return absl::OkStatus();
}

absl::Status Pipeline::EncodeWithSpaces(std::string_view text, bool is_first, const char* readable,
                                        Workspace* work, std::vector<std::int32_t>* ids) const {
  work->ends.clear();
  borders_->Cut(text, &work->ends);
  std::span<const std::uint32_t> ends = work->ends;
  const bool is_there = blanks_->unless_there && (text.starts_with(' ') || text.starts_with(kBlankSymbol));
  const bool prepends =
      blanks_->prepends == PrependScheme::kAlways || (blanks_->prepends == PrependScheme::kFirst && is_first);
  std::uint32_t begin = 0;
  if (prepends && !is_there) {
    work->normalized = " ";
    if (borders_->JoinsBlankBefore(text)) {
      begin = ends[0];
      work->normalized += text.substr(0, begin);
      ends = ends.subspan(1);
    }
    const auto size = static_cast<std::uint32_t>(work->normalized.size());
    RETURN_IF_ERROR(EncodeParts({.words = Words::kWithSpaces, .text = work->normalized, .ends = {&size, 1}},
                                work->normalized.data() + size, work, ids));
  }
  return EncodeParts({.words = Words::kWithSpaces, .text = text, .ends = ends, .begin = begin}, readable,
                     work, ids);
}

absl::Status Pipeline::EncodeRaw(std::string_view text, bool is_first, const char* readable, Workspace* work,
                                 std::vector<std::int32_t>* ids) const {
  std::vector<std::uint32_t>& begins = work->raw_begins;
  std::vector<std::uint32_t>& ends = work->raw_ends;
  begins.clear();
  ends.clear();
  raw_parts_->Cut(text, &begins, &ends);
  Parts parts = {.words = Words::kRaw, .text = text, .ends = ends, .begins = begins.data()};
  if (!raw_parts_->margins_differ()) return EncodeParts(parts, readable, work, ids);
  RETURN_IF_ERROR(EncodeAnew(Words::kRaw, text.substr(0, ends[0]), is_first, work, ids));
  if (ends.size() == 1) return absl::OkStatus();
  const std::uint32_t last = begins.back();
  parts.ends = parts.ends.subspan(1, ends.size() - 2);
  parts.begins += 1;
  RETURN_IF_ERROR(EncodeParts(parts, readable, work, ids));
  return EncodeAnew(Words::kRaw, text.substr(last), /*is_first=*/false, work, ids);
}

absl::Status Pipeline::EncodePiece(std::string_view text, bool is_first, const char* readable,
                                   Workspace* work, std::vector<std::int32_t>* ids) const {
  if (scanner_.has_value()) {
    work->cutter.ends.clear();
    Scan(*scanner_, text, &work->cutter.ends);
    return EncodeParts({.words = Words::kNormalized, .text = text, .ends = work->cutter.ends}, readable, work,
                       ids);
  }
  RETURN_IF_ERROR(cutter_->Cut(text, is_first, &work->cutter, &work->words));
  for (const std::string_view word : work->words) {
    work->ends.clear();
    if (borders_.has_value()) {
      borders_->Cut(word, &work->ends);
    } else {
      work->ends.push_back(static_cast<std::uint32_t>(word.size()));
    }
    RETURN_IF_ERROR(EncodeParts({.words = Words::kNormalized, .text = word, .ends = work->ends},
                                word.data() + word.size(), work, ids));
  }
  return absl::OkStatus();
}

absl::Status Pipeline::EncodeParts(const Parts& parts, const char* readable, Workspace* work,
                                   std::vector<std::int32_t>* ids) const {
  // Some words at a time: their places in the cache are asked for before the first is looked up. Ids of those that are
  // known are put together here, so that the caller's vector grows seldom.
  constexpr std::size_t kTogether = 64;
  WordCache::Key keys[kTogether];
  WordCache::Place places[kTogether];
  std::int32_t known[kTogether * WordCache::kMostIds];
  const std::string_view text = parts.text;
  const std::uint32_t* begins = parts.begins;
  std::uint32_t last = parts.begin;
  for (std::span<const std::uint32_t> ends = parts.ends; !ends.empty();) {
    const std::span<const std::uint32_t> some = ends.first(std::min(kTogether, ends.size()));
    ends = ends.subspan(some.size());
    const auto begin_of = [&](std::size_t i) {
      return begins != nullptr ? begins[i] : i > 0 ? some[i - 1] : last;
    };
    for (std::size_t i = 0; i < some.size(); ++i) {
      const std::uint32_t at = begin_of(i);
      const std::size_t bytes = some[i] - at;
      const bool is_readable =
          readable - (text.data() + at) >= static_cast<std::ptrdiff_t>(sizeof(WordCache::Key));
      if (is_readable && bytes <= WordCache::kMostBytes) {
        keys[i] = WordCache::KeyOfReadable(text.data() + at, bytes);
      } else {
        keys[i] = WordCache::KeyOf(text.substr(at, bytes));
      }
      places[i] = words_.PlaceOf(keys[i]);
      WordCache::Prefetch(places[i]);
    }
    std::size_t count = 0;
    for (std::size_t i = 0; i < some.size(); ++i) {
      const std::size_t found = WordCache::Find(keys[i], places[i], known + count);
      count += found;
      if (found == 0) {
        ids->insert(ids->end(), known, known + count);
        count = 0;
        const std::string_view word = text.substr(begin_of(i), some[i] - begin_of(i));
        RETURN_IF_ERROR(EncodeWord(parts.words, word, keys[i], places[i], work, ids));
      }
    }
    ids->insert(ids->end(), known, known + count);
    last = some.back();
    if (begins != nullptr) begins += some.size();
  }
  return absl::OkStatus();
}

absl::Status Pipeline::EncodeWord(Words words, std::string_view word, const WordCache::Key& key,
                                  WordCache::Place place, Workspace* work,
                                  std::vector<std::int32_t>* ids) const {
  const bool is_long = word.size() > LongWordCache::kMostBytes;
  const std::uint64_t hash = is_long ? 0 : LongWordCache::HashOf(word);
  if (!is_long && long_words_.Find(word, hash, ids)) return absl::OkStatus();
  const std::size_t before = ids->size();
  RETURN_IF_ERROR(EncodeAnew(words, word, /*is_first=*/false, work, ids));
  const std::span<const std::int32_t> made = std::span(*ids).subspan(before);
  if (!WordCache::Put(key, place, made) && !is_long) long_words_.Put(word, hash, made);
  return absl::OkStatus();
}

absl::Status Pipeline::EncodeAnew(Words words, std::string_view word, bool is_first, Workspace* work,
                                  std::vector<std::int32_t>* ids) const {
  if (words == Words::kNormalized) return encoder_->Encode(word, &work->encoder, ids);
  if (words == Words::kWithSpaces) {
    work->word.clear();
    for (const char c : word) c == ' ' ? void(work->word += kBlankSymbol) : work->word.push_back(c);
    return encoder_->Encode(work->word, &work->encoder, ids);
  }
  ASSIGN_OR_RETURN(const std::string_view normalized, normalizer_->Apply(word, &work->normalized));
  if (normalized.empty()) return absl::OkStatus();
  // Raw parts that begin with blanks are no normalized words, so the cache can have both.
  if (raw_parts_->margins_differ())
    return EncodePiece(normalized, is_first, normalized.data() + normalized.size(), work, ids);
  RETURN_IF_ERROR(cutter_->Cut(normalized, is_first, &work->cutter, &work->words));
  for (const std::string_view part : work->words)
    RETURN_IF_ERROR(encoder_->Encode(part, &work->encoder, ids));
  return absl::OkStatus();
}

absl::StatusOr<std::string> Pipeline::Decode(std::span<const std::int32_t> ids, bool skip_special,
                                             std::int32_t skip) const {
  const auto token_of = [this, &all = Tokens()](std::int32_t id) -> const Token* {
    const bool is_used = id >= 0 && id < vocab_size() && all[static_cast<std::size_t>(id)].is_used;
    return is_used ? &all[static_cast<std::size_t>(id)] : nullptr;
  };
  const bool of_bytes = decoder_->is_of_bytes();
  std::string text;
  std::vector<std::string> tokens;
  for (const std::int32_t id : ids) {
    const Token* const token = token_of(id);
    if (id == skip || (token != nullptr && token->is_special && skip_special)) continue;
    const std::string_view part = token == nullptr ? kNoCharacter : token->text;
    of_bytes ? void(text += part) : void(tokens.emplace_back(part));
  }
  if (of_bytes) return text;
  return decoder_->Decode(std::move(tokens));
}

}  // namespace engine::tokenizer
