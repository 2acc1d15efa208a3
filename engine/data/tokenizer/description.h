// What a tokenizer is, as data: what its file says, checked, before anything is made fast. The parts and their names
// are those of Hugging Face's tokenizer.json; readers of other files (SentencePiece, tiktoken, GPT-2) make the same
// parts. A text becomes ids in this order: added tokens that are not `normalized` are cut out; what is between them
// is normalized, piece by piece; `normalized` added tokens are cut out; what is between them is cut into words by the
// pre-tokenizers; the model makes ids of each word; the template puts special ids around them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/data/tokenizer/merge_table.h"
#include "engine/data/tokenizer/normal_form.h"
#include "engine/data/tokenizer/vocabulary.h"

namespace engine::tokenizer {

inline constexpr std::string_view kBlankSymbol = "\u2581";  // U+2581, which SentencePiece has for a space

// A string to find, or a regular expression of Oniguruma's syntax.
struct Pattern {
  std::string text;
  bool is_regex = false;
};

// ---------------------------------------------------------------------------------------------------- normalizers
struct ToNormalForm {
  NormalForm form = NormalForm::kNfc;
};
struct ToLowercase {};   // each character's full lower case
struct StripAccents {};  // combining marks vanish
struct CleanNmt {};      // SentencePiece's rules "nmt": control characters vanish, others become blanks
struct StripEnds {
  bool left = true;
  bool right = true;
};
struct Prepend {
  std::string text;  // in front of every piece that is not empty
};
struct Replace {
  Pattern pattern;
  std::string content;
};
struct BertNormalize {
  bool clean_text = true;
  bool handle_chinese_chars = true;
  bool strip_accents = true;
  bool lowercase = true;
};
struct MapCharacters {
  std::string charsmap;  // SentencePiece's precompiled table (chars_map.h), applied by grapheme cluster
};
struct ShowBytes {};  // each byte becomes GPT-2's printable character for it
// What SentencePiece does to a text: its table of characters, blanks to "▁", doubled ones and those at the ends gone.
struct SentencePieceNormalize {
  std::string charsmap;  // may be empty
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  bool whitespace_is_suffix = false;
  std::vector<std::string> user_defined;  // pieces that no rule touches
};
using Normalizer = std::variant<ToNormalForm, ToLowercase, StripAccents, CleanNmt, StripEnds, Prepend,
                                Replace, BertNormalize, MapCharacters, ShowBytes, SentencePieceNormalize>;

// ------------------------------------------------------------------------------------------------- pre-tokenizers
// What becomes of the places where a pattern matches: they vanish; are words of their own; join the word before or
// behind; or neighbours of one kind are one word.
enum class Behavior : std::uint8_t { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct SplitBytes {  // tokenizer.json's ByteLevel
  bool add_prefix_space = false;
  bool use_regex = true;  // GPT-2's words
};
enum class PrependScheme : std::uint8_t { kAlways, kFirst, kNever };
struct Metaspace {
  std::string replacement = "\u2581";
  PrependScheme scheme = PrependScheme::kAlways;
  bool split = true;
};
struct Split {
  Pattern pattern;
  Behavior behavior = Behavior::kIsolated;
  bool invert = false;
};
struct SplitDigits {
  bool individual = false;
};
struct SplitPunctuation {
  Behavior behavior = Behavior::kIsolated;
};
struct SplitBert {};        // at white space, which vanishes, and around punctuation
struct SplitWords {};       // \w+|[^\w\s]+
struct SplitWhitespace {};  // at white space, which vanishes
struct SplitDelimiter {
  std::string delimiter;  // one character, which vanishes
};
struct SplitScripts {
};  // before a character of another script; what is of any script joins the word before it
struct SplitLength {
  std::int64_t characters = 5;
};
using PreTokenizer = std::variant<SplitBytes, Metaspace, Split, SplitDigits, SplitPunctuation, SplitBert,
                                  SplitWords, SplitWhitespace, SplitDelimiter, SplitScripts, SplitLength>;

// --------------------------------------------------------------------------------------------------------- models
struct BpeModel {
  Vocabulary vocabulary;
  MergeTable merges;
  std::int32_t unknown = kNoToken;
  std::string continuing_prefix;  // of all characters of a word but the first
  std::string end_suffix;         // of the last one
  bool fuse_unknown = false;
  bool byte_fallback = false;
  bool ignore_merges = false;  // a word that is a token is that token
  // GPT-2's own program merges all occurrences of a pair before it looks for the next; others look after each merge. The
  // two differ where a merge makes a pair of lower rank, which training never does.
  bool in_rounds = false;
  // By id: tokens that merges make on the way to others and that no text becomes; one that is left at the end is cut again
  // into the two that it was made of. Which they are does not depend on the text around it. Empty: none.
  std::vector<bool> unused;
};
struct UnigramModel {
  Vocabulary vocabulary;
  std::vector<double> scores;  // logarithms of probabilities, by id
  std::int32_t unknown = kNoToken;
  double unknown_score = 0;
  bool byte_fallback = false;
  std::vector<bool> never;        // ids that text cannot become: control and unused pieces; empty: none
  bool single_precision = false;  // sums are rounded to float, as SentencePiece does
};
struct WordPieceModel {
  Vocabulary vocabulary;
  std::int32_t unknown = kNoToken;
  std::string continuing_prefix = "##";
  std::int64_t max_characters = 100;  // a longer word is unknown
};
struct WordLevelModel {
  Vocabulary vocabulary;
  std::int32_t unknown = kNoToken;
  // SentencePiece's models of words: what the model is given is cut before each blank symbol, unknown neighbours are one or
  // become bytes, and some tokens are never found.
  bool cuts_at_blanks = false;
  bool byte_fallback = false;
  std::vector<bool> never;  // by id; empty: none
};
using Model = std::variant<BpeModel, UnigramModel, WordPieceModel, WordLevelModel>;

inline const Vocabulary& VocabularyOf(const Model& model) {
  return std::visit([](const auto& m) -> const Vocabulary& { return m.vocabulary; }, model);
}

// ------------------------------------------------------------------------------------------------------- decoders
struct JoinBytes {};  // GPT-2's characters become bytes
struct JoinMetaspace {
  std::string replacement = "\u2581";
  bool drops_first = true;
};
struct JoinWordPieces {
  std::string prefix = "##";
  bool cleanup = true;
};
struct JoinByteTokens {};  // runs of <0xHH> become bytes
struct Fuse {};            // all strings become one
struct StripCharacters {
  std::string content;  // one character
  std::int64_t start = 0;
  std::int64_t stop = 0;
};
struct JoinSuffixed {
  std::string suffix = "</w>";
};
struct JoinCtc {
  std::string pad = "<pad>";
  std::string word_delimiter = "|";
  bool cleanup = true;
};
using Decoder = std::variant<JoinBytes, JoinMetaspace, JoinWordPieces, JoinByteTokens, Fuse, StripCharacters,
                             Replace, JoinSuffixed, JoinCtc>;

// ---------------------------------------------------------------------------------------------------------- whole
struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  // not beside a character of a word
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // and behind it
  bool normalized = false;   // is found in normalized text
  bool special = false;
};

struct Description {
  std::string source;  // what was read: "PATH (tokenizer.json)"
  std::vector<AddedToken> added_tokens;
  std::vector<Normalizer> normalizers;
  std::vector<PreTokenizer> pre_tokenizers;
  Model model;
  bool has_template = false;
  std::vector<std::int32_t> before;  // special ids of the template around the ids of one text
  std::vector<std::int32_t> behind;
  bool has_decoder = false;  // without one, tokens are joined by blanks
  std::vector<Decoder> decoders;
  std::optional<std::int32_t> beginning_of_document;
  std::string
      beginning_of_document_from;  // as below; without the token, why the file that would name it does not
  std::optional<std::int32_t> end_of_document;
  std::string end_of_document_from;         // how it is known, for `engine tokenizer info`
  std::optional<std::int32_t> end_of_turn;  // eos_token of the files beside, which chats end a turn with
};

// The id of an added token or one of the model's, or kNoToken.
std::int32_t FindToken(const Description& description, std::string_view content);

}  // namespace engine::tokenizer
