#include "engine/data/tokenizer/read_json.h"

#include <absl/container/flat_hash_set.h>
#include <absl/strings/escaping.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/shown.h"
#include "engine/base/utf8.h"
#include "engine/data/tokenizer/compiled_model.h"
#include "engine/data/tokenizer/file_view.h"
#include "engine/data/tokenizer/json_place.h"
#include "engine/data/tokenizer/read_model.h"

namespace engine::tokenizer {
namespace {

constexpr std::int64_t kMostCharacters = 1 << 20;

bool IsOneCharacter(std::string_view text) {
  char32_t c = 0;
  return !text.empty() && DecodeUtf8(text, &c) == text.size();
}

// What stands at the list `name` of a Sequence, or the part itself, in order.
template <typename Part>
void ReadParts(const JsonPlace& place, const char* list,
               void (*read)(const JsonPlace&, const std::string&, std::vector<Part>*),
               std::vector<Part>* parts) {
  if (place.is_null() || place.failed()) return;
  const std::string type = place["type"].String();
  if (type != "Sequence") return read(place, type, parts);
  place.Only({"type", list});
  for (const JsonPlace& item : place[list].Items()) ReadParts(item, list, read, parts);
}

Pattern ReadPattern(const JsonPlace& place) {
  // The library also takes a string by itself for a string to find.
  if (place.is_string()) return {place.String(), false};
  place.Only({"String", "Regex"});
  const bool is_regex = !place["Regex"].is_missing();
  if (is_regex && !place["String"].is_missing()) place.Fail("is either a String or a Regex");
  return {place[is_regex ? "Regex" : "String"].String(), is_regex};
}

void ReadNormalizer(const JsonPlace& place, const std::string& type, std::vector<Normalizer>* parts) {
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    place.Only({"type"});
    parts->push_back(ToNormalForm{type == "NFC"    ? NormalForm::kNfc
                                  : type == "NFD"  ? NormalForm::kNfd
                                  : type == "NFKC" ? NormalForm::kNfkc
                                                   : NormalForm::kNfkd});
  } else if (type == "Lowercase") {
    place.Only({"type"});
    parts->push_back(ToLowercase{});
  } else if (type == "StripAccents") {
    place.Only({"type"});
    parts->push_back(StripAccents{});
  } else if (type == "Nmt") {
    place.Only({"type"});
    parts->push_back(CleanNmt{});
  } else if (type == "Strip") {
    place.Only({"type", "strip_left", "strip_right"});
    parts->push_back(StripEnds{place["strip_left"].Bool(), place["strip_right"].Bool()});
  } else if (type == "Prepend") {
    place.Only({"type", "prepend"});
    parts->push_back(Prepend{place["prepend"].String()});
  } else if (type == "Replace") {
    place.Only({"type", "pattern", "content"});
    parts->push_back(Replace{ReadPattern(place["pattern"]), place["content"].String()});
  } else if (type == "BertNormalizer") {
    place.Only({"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
    BertNormalize bert;
    bert.clean_text = place["clean_text"].Bool();
    bert.handle_chinese_chars = place["handle_chinese_chars"].Bool();
    bert.lowercase = place["lowercase"].Bool();
    bert.strip_accents = place["strip_accents"].Bool(bert.lowercase);
    parts->push_back(bert);
  } else if (type == "Precompiled") {
    place.Only({"type", "precompiled_charsmap"});
    std::string charsmap;
    if (!absl::Base64Unescape(place["precompiled_charsmap"].String(), &charsmap)) {
      place["precompiled_charsmap"].Fail("is not base64");
    }
    parts->push_back(MapCharacters{std::move(charsmap)});
  } else if (type == "ByteLevel") {
    place.Only({"type"});
    parts->push_back(ShowBytes{});
  } else {
    place["type"].Fail(
        "the normalizer \"{}\" is unknown; there are NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Nmt, "
        "Strip, "
        "Prepend, Replace, BertNormalizer, Precompiled, ByteLevel and Sequence",
        Shown(type));
  }
}

Behavior ReadBehavior(const JsonPlace& place) {
  constexpr std::pair<std::string_view, Behavior> kNames[] = {
      {"Removed", Behavior::kRemoved},
      {"Isolated", Behavior::kIsolated},
      {"MergedWithPrevious", Behavior::kMergedWithPrevious},
      {"MergedWithNext", Behavior::kMergedWithNext},
      {"Contiguous", Behavior::kContiguous}};
  const std::string name = place.String();
  for (const auto& [known, behavior] : kNames) {
    if (name == known) return behavior;
  }
  place.Fail(
      "\"{}\" is unknown; there are Removed, Isolated, MergedWithPrevious, MergedWithNext and Contiguous",
      Shown(name));
  return Behavior::kIsolated;
}

std::string ReadCharacter(const JsonPlace& place, std::string_view otherwise) {
  std::string character = place.String(otherwise);
  if (!IsOneCharacter(character)) place.Fail("must be one character, and is \"{}\"", Shown(character));
  return character;
}

// Newer files have prepend_scheme; older ones add_prefix_space, which may contradict it.
PrependScheme ReadScheme(const JsonPlace& place) {
  const std::string scheme = place["prepend_scheme"].String("always");
  const bool prefix = place["add_prefix_space"].Bool(true);
  if (scheme == "never" || (place["prepend_scheme"].is_null() && !prefix)) return PrependScheme::kNever;
  if (!prefix) place["add_prefix_space"].Fail("false contradicts prepend_scheme \"{}\"", Shown(scheme));
  if (scheme != "always" && scheme != "first") {
    place["prepend_scheme"].Fail("\"{}\" is unknown; there are always, first and never", Shown(scheme));
  }
  return scheme == "first" ? PrependScheme::kFirst : PrependScheme::kAlways;
}

void ReadPreTokenizer(const JsonPlace& place, const std::string& type, std::vector<PreTokenizer>* parts) {
  if (type == "ByteLevel") {
    place.Only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    parts->push_back(SplitBytes{place["add_prefix_space"].Bool(), place["use_regex"].Bool(true)});
  } else if (type == "Metaspace") {
    place.Only({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
    parts->push_back(Metaspace{ReadCharacter(place["replacement"], "\u2581"), ReadScheme(place),
                               place["split"].Bool(true)});
  } else if (type == "Split") {
    place.Only({"type", "pattern", "behavior", "invert"});
    parts->push_back(
        Split{ReadPattern(place["pattern"]), ReadBehavior(place["behavior"]), place["invert"].Bool()});
  } else if (type == "Digits") {
    place.Only({"type", "individual_digits"});
    parts->push_back(SplitDigits{place["individual_digits"].Bool()});
  } else if (type == "Punctuation") {
    place.Only({"type", "behavior"});
    parts->push_back(SplitPunctuation{place["behavior"].is_null() ? Behavior::kIsolated
                                                                  : ReadBehavior(place["behavior"])});
  } else if (type == "BertPreTokenizer") {
    place.Only({"type"});
    parts->push_back(SplitBert{});
  } else if (type == "Whitespace") {
    place.Only({"type"});
    parts->push_back(SplitWords{});
  } else if (type == "WhitespaceSplit") {
    place.Only({"type"});
    parts->push_back(SplitWhitespace{});
  } else if (type == "CharDelimiterSplit") {
    place.Only({"type", "delimiter"});
    parts->push_back(SplitDelimiter{ReadCharacter(place["delimiter"], "")});
  } else if (type == "FixedLength") {
    place.Only({"type", "length"});
    parts->push_back(SplitLength{place["length"].Integer(1, kMostCharacters, 5)});
  } else if (type == "UnicodeScripts") {
    place.Only({"type"});
    parts->push_back(SplitScripts{});
  } else {
    place["type"].Fail(
        "the pre-tokenizer \"{}\" is unknown; there are ByteLevel, Metaspace, Split, Digits, Punctuation, "
        "BertPreTokenizer, Whitespace, WhitespaceSplit, CharDelimiterSplit, UnicodeScripts, FixedLength and "
        "Sequence",
        Shown(type));
  }
}

void ReadDecoder(const JsonPlace& place, const std::string& type, std::vector<Decoder>* parts) {
  if (type == "ByteLevel") {
    place.Only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    parts->push_back(JoinBytes{});
  } else if (type == "Metaspace") {
    place.Only({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
    parts->push_back(JoinMetaspace{ReadCharacter(place["replacement"], "\u2581"),
                                   ReadScheme(place) != PrependScheme::kNever});
  } else if (type == "WordPiece") {
    place.Only({"type", "prefix", "cleanup"});
    parts->push_back(JoinWordPieces{place["prefix"].String("##"), place["cleanup"].Bool(true)});
  } else if (type == "ByteFallback") {
    place.Only({"type"});
    parts->push_back(JoinByteTokens{});
  } else if (type == "Fuse") {
    place.Only({"type"});
    parts->push_back(Fuse{});
  } else if (type == "Strip") {
    place.Only({"type", "content", "start", "stop"});
    parts->push_back(StripCharacters{ReadCharacter(place["content"], ""),
                                     place["start"].Integer(0, kMostCharacters),
                                     place["stop"].Integer(0, kMostCharacters)});
  } else if (type == "Replace") {
    place.Only({"type", "pattern", "content"});
    parts->push_back(Replace{ReadPattern(place["pattern"]), place["content"].String()});
  } else if (type == "BPEDecoder") {
    place.Only({"type", "suffix"});
    parts->push_back(JoinSuffixed{place["suffix"].String("</w>")});
  } else if (type == "CTC") {
    place.Only({"type", "pad_token", "word_delimiter_token", "cleanup"});
    parts->push_back(JoinCtc{place["pad_token"].String("<pad>"), place["word_delimiter_token"].String("|"),
                             place["cleanup"].Bool(true)});
  } else {
    place["type"].Fail(
        "the decoder \"{}\" is unknown; there are ByteLevel, Metaspace, WordPiece, ByteFallback, Fuse, "
        "Strip, "
        "Replace, BPEDecoder, CTC and Sequence",
        Shown(type));
  }
}

// ------------------------------------------------------------------------------------------------------------ models
void ReadVocabulary(const JsonPlace& place, Vocabulary* vocabulary) {
  simdjson::dom::object object;
  if (place.is_missing() || place.value().get(object) != simdjson::SUCCESS) {
    return place.Fail("must be an object from token to id");
  }
  std::size_t bytes = 0;
  for (const simdjson::dom::key_value_pair field : object) bytes += field.key.size();
  std::size_t count = 0;
  for ([[maybe_unused]] const simdjson::dom::key_value_pair field : object) ++count;
  vocabulary->Reserve(count, bytes);
  for (const simdjson::dom::key_value_pair field : object) {
    std::int64_t id = 0;
    if (field.value.get(id) != simdjson::SUCCESS || id < 0 || id > kMostTokenId) {
      return place.Fail("the id of \"{}\" must be a whole number from 0 to {}, and is {}", Shown(field.key),
                        kMostTokenId, Shown(simdjson::minify(field.value), 40));
    }
    if (vocabulary->Add(field.key, static_cast<std::int32_t>(id))) continue;
    const bool is_taken = vocabulary->Has(static_cast<std::int32_t>(id));
    return is_taken ? place.Fail("the id {} of \"{}\" is also that of \"{}\"", id, Shown(field.key),
                                 Shown(vocabulary->Token(static_cast<std::int32_t>(id))))
                    : place.Fail("the token \"{}\" stands twice", Shown(field.key));
  }
}

std::int32_t ReadUnknown(const JsonPlace& place, const Vocabulary& vocabulary, std::string_view otherwise) {
  const std::string token = place.String(otherwise);
  if (token.empty() || place.failed()) return kNoToken;
  const std::int32_t id = vocabulary.Find(token);
  if (id == kNoToken && !place.is_null()) place.Fail("\"{}\" is no token of the vocabulary", Shown(token));
  return id;
}

void ReadMerges(const JsonPlace& place, BpeModel* model) {
  simdjson::dom::array list;
  if (place.is_missing() || place.value().get(list) != simdjson::SUCCESS) return place.Fail("must be a list");
  MergeBuilder builder(model);
  model->merges.Reserve(list.size());
  std::size_t index = 0;
  const auto fail = [&](const std::string& what) { place.Fail("[{}]: {}", index, what); };
  for (const simdjson::dom::element item : list) {
    std::string_view left;
    std::string_view right;
    simdjson::dom::array pair;
    if (item.get(left) == simdjson::SUCCESS) {
      if (left.starts_with("#version")) continue;
      const std::size_t blank = left.find(' ');
      if (blank == std::string_view::npos || left.find(' ', blank + 1) != std::string_view::npos) {
        return fail(fmt::format("\"{}\" must be two tokens with one blank between them", Shown(left)));
      }
      right = left.substr(blank + 1);
      left = left.substr(0, blank);
    } else if (item.get(pair) != simdjson::SUCCESS || pair.size() != 2 ||
               pair.at(0).get(left) != simdjson::SUCCESS || pair.at(1).get(right) != simdjson::SUCCESS) {
      return fail("must be two tokens: a string or a list");
    }
    if (const absl::Status status = builder.Add(left, right); !status.ok()) return fail(Message(status));
    ++index;
  }
}

// `compiled`: the vocabulary and the merges, where the file has them not.
BpeModel ReadBpe(const JsonPlace& place, CompiledModel* compiled) {
  place.Only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
              "byte_fallback", "ignore_merges", "vocab", "merges"});
  BpeModel model;
  if (const JsonPlace dropout = place["dropout"]; !dropout.is_null()) {
    double share = 0;
    if (dropout.value().get(share) != simdjson::SUCCESS || share != 0) {
      dropout.Fail("BPE dropout is not supported here: ids would be random; null is none");
    }
  }
  if (compiled != nullptr) {
    model.vocabulary = std::move(compiled->vocabulary);
    model.merges = std::move(compiled->merges);
  } else {
    ReadVocabulary(place["vocab"], &model.vocabulary);
  }
  model.unknown = ReadUnknown(place["unk_token"], model.vocabulary, "");
  model.continuing_prefix = place["continuing_subword_prefix"].String("");
  model.end_suffix = place["end_of_word_suffix"].String("");
  model.fuse_unknown = place["fuse_unk"].Bool(false);
  model.byte_fallback = place["byte_fallback"].Bool(false);
  model.ignore_merges = place["ignore_merges"].Bool(false);
  if (!place.failed() && compiled == nullptr) ReadMerges(place["merges"], &model);
  return model;
}

UnigramModel ReadUnigram(const JsonPlace& place) {
  place.Only({"type", "unk_id", "vocab", "byte_fallback"});
  UnigramModel model;
  const JsonPlace vocab = place["vocab"];
  simdjson::dom::array list;
  if (vocab.is_missing() || vocab.value().get(list) != simdjson::SUCCESS || list.size() == 0) {
    vocab.Fail("must be a list of tokens and scores");
    return model;
  }
  model.scores.reserve(list.size());
  model.vocabulary.Reserve(list.size(), 16 * list.size());
  for (const simdjson::dom::element item : list) {
    const auto id = static_cast<std::int32_t>(model.scores.size());
    simdjson::dom::array pair;
    std::string_view token;
    double score = 0;
    if (item.get(pair) != simdjson::SUCCESS || pair.size() != 2 ||
        pair.at(0).get(token) != simdjson::SUCCESS || pair.at(1).get(score) != simdjson::SUCCESS) {
      vocab.Fail("[{}] must be a token and its score", id);
      return model;
    }
    if (id > kMostTokenId || !model.vocabulary.Add(token, id)) {
      vocab.Fail("[{}]: the token \"{}\" stands twice", id, Shown(token));
      return model;
    }
    model.scores.push_back(score);
  }
  if (!place["unk_id"].is_null()) {
    model.unknown = static_cast<std::int32_t>(place["unk_id"].Integer(0, model.vocabulary.size() - 1));
  }
  constexpr double kUnknownPenalty = 10;  // that of the reference library
  model.unknown_score = *std::min_element(model.scores.begin(), model.scores.end()) - kUnknownPenalty;
  model.byte_fallback = place["byte_fallback"].Bool(false);
  return model;
}

Model ReadModel(const JsonPlace& place, CompiledModel* compiled) {
  if (compiled != nullptr) return ReadBpe(place, compiled);
  std::string type = place["type"].String("");
  if (type.empty()) {  // as the library tries them
    type = !place["merges"].is_missing()                     ? "BPE"
           : !place["max_input_chars_per_word"].is_missing() ? "WordPiece"
           : place["vocab"].is_array()                       ? "Unigram"
                                                             : "WordLevel";
  }
  if (type == "BPE") return ReadBpe(place, nullptr);
  if (type == "Unigram") return ReadUnigram(place);
  if (type == "WordPiece") {
    place.Only({"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"});
    WordPieceModel model;
    ReadVocabulary(place["vocab"], &model.vocabulary);
    model.unknown = ReadUnknown(place["unk_token"], model.vocabulary, "[UNK]");
    model.continuing_prefix = place["continuing_subword_prefix"].String("##");
    model.max_characters = place["max_input_chars_per_word"].Integer(1, kMostCharacters, 100);
    return model;
  }
  if (type == "WordLevel") {
    place.Only({"type", "unk_token", "vocab"});
    WordLevelModel model;
    ReadVocabulary(place["vocab"], &model.vocabulary);
    model.unknown = ReadUnknown(place["unk_token"], model.vocabulary, "<unk>");
    return model;
  }
  place["type"].Fail("the model \"{}\" is unknown; there are BPE, Unigram, WordPiece and WordLevel",
                     Shown(type));
  return WordLevelModel{};
}

// ------------------------------------------------------------------------------------------------------- added tokens
// Ids are the vocabulary's for what is in it; others follow behind the largest, in the order of the file.
void ReadAddedTokens(const JsonPlace& place, Description* description) {
  if (place.is_null()) return;
  const Vocabulary& vocabulary = VocabularyOf(description->model);
  absl::flat_hash_set<std::string> contents;
  absl::flat_hash_set<std::int32_t> ids;
  const std::vector<JsonPlace> items = place.Items();
  contents.reserve(items.size());
  ids.reserve(items.size());
  description->added_tokens.reserve(items.size());
  for (const JsonPlace& item : items) {
    item.Only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    token.id = static_cast<std::int32_t>(item["id"].Integer(0, kMostTokenId));
    token.content = item["content"].String();
    token.single_word = item["single_word"].Bool();
    token.lstrip = item["lstrip"].Bool();
    token.rstrip = item["rstrip"].Bool();
    token.normalized = item["normalized"].Bool();
    token.special = item["special"].Bool();
    if (item.failed()) return;
    if (token.content.empty()) return item["content"].Fail("is empty");
    const bool is_its_own =
        vocabulary.Token(token.id) == token.content;  // which asks for less memory than Find
    const std::int32_t own = is_its_own ? token.id : vocabulary.Find(token.content);
    if (own != kNoToken && own != token.id) {
      return item["id"].Fail("is {}, but the model's vocabulary gives \"{}\" the id {}", token.id,
                             Shown(token.content), own);
    }
    if (own == kNoToken && vocabulary.Has(token.id)) {
      return item["id"].Fail("{} of \"{}\" is that of \"{}\" in the model's vocabulary", token.id,
                             Shown(token.content), Shown(vocabulary.Token(token.id)));
    }
    if (!contents.insert(token.content).second) {
      return item["content"].Fail("\"{}\" stands twice", Shown(token.content));
    }
    if (!ids.insert(token.id).second) {
      return item["id"].Fail("{} of \"{}\" is another added token's too", token.id, Shown(token.content));
    }
    description->added_tokens.push_back(std::move(token));
  }
}

// ---------------------------------------------------------------------------------------------------- post-processors
void ReadTemplate(const JsonPlace& place, Description* description) {
  place.Only({"type", "single", "pair", "special_tokens"});
  bool is_behind = false;
  const JsonPlace specials = place["special_tokens"];
  for (const JsonPlace& item : place["single"].Items()) {
    item.Only({"SpecialToken", "Sequence"});
    if (const JsonPlace sequence = item["Sequence"]; !sequence.is_missing()) {
      sequence.Only({"id", "type_id"});
      if (sequence["id"].String() != "A" || is_behind)
        return sequence.Fail("a template of one text has one sequence, A");
      is_behind = true;
      continue;
    }
    const JsonPlace special = item["SpecialToken"];
    special.Only({"id", "type_id"});
    const JsonPlace named = specials[special["id"].String()];
    if (named.is_missing()) return special["id"].Fail("is none of special_tokens");
    named.Only({"id", "ids", "tokens"});
    for (const JsonPlace& id : named["ids"].Items()) {
      (is_behind ? description->behind : description->before)
          .push_back(static_cast<std::int32_t>(id.Integer(0, kMostTokenId)));
    }
  }
  if (!is_behind) place["single"].Fail("has no sequence A");
}

void ReadPostProcessor(const JsonPlace& place, Description* description) {
  if (place.is_null() || place.failed()) return;
  const std::string type = place["type"].String();
  if (type == "ByteLevel")
    return place.Only({"type", "add_prefix_space", "trim_offsets", "use_regex"});  // offsets alone
  if (type == "Sequence") {
    place.Only({"type", "processors"});
    for (const JsonPlace& item : place["processors"].Items()) ReadPostProcessor(item, description);
    return;
  }
  if (description->has_template)
    return place.Fail("is a second template of special tokens, which is not supported here");
  description->has_template = true;
  if (type == "TemplateProcessing") return ReadTemplate(place, description);
  if (type != "BertProcessing" && type != "RobertaProcessing") {
    return place["type"].Fail(
        "the post-processor \"{}\" is unknown; there are TemplateProcessing, BertProcessing, "
        "RobertaProcessing, ByteLevel and Sequence",
        Shown(type));
  }
  place.Only({"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
  const auto id_of = [&](const char* name) {
    const std::vector<JsonPlace> pair = place[name].Items();
    if (pair.size() != 2) {
      place[name].Fail("must be a token and its id");
      return std::int32_t{0};
    }
    return static_cast<std::int32_t>(pair[1].Integer(0, kMostTokenId));
  };
  description->before = {id_of("cls")};
  description->behind = {id_of("sep")};
}

void CheckTemplate(const JsonPlace& place, const Description& description) {
  for (const auto& ids : {description.before, description.behind}) {
    for (const std::int32_t id : ids) {
      const auto is_it = [id](const AddedToken& token) { return token.id == id; };
      const auto& added = description.added_tokens;
      if (VocabularyOf(description.model).Has(id) || std::any_of(added.begin(), added.end(), is_it)) continue;
      place.Fail("the id {} of a special token is no token's", id);
    }
  }
}

absl::StatusOr<Description> ReadRoot(JsonFile* file, const std::string& path, CompiledModel* compiled) {
  const JsonPlace root = file->Root();
  root.Only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
             "post_processor", "decoder", "model"});
  if (const std::string version = root["version"].String("1.0"); version != "1.0") {
    root["version"].Fail("\"{}\" is unknown; there is 1.0", Shown(version));
  }
  Description description;
  if (!root.failed()) description.model = ReadModel(root["model"], compiled);
  compiled != nullptr ? void(description.added_tokens = std::move(compiled->added_tokens))
                      : ReadAddedTokens(root["added_tokens"], &description);
  ReadParts<Normalizer>(root["normalizer"], "normalizers", ReadNormalizer, &description.normalizers);
  ReadParts<PreTokenizer>(root["pre_tokenizer"], "pretokenizers", ReadPreTokenizer,
                          &description.pre_tokenizers);
  ReadPostProcessor(root["post_processor"], &description);
  CheckTemplate(root["post_processor"], description);
  ReadParts<Decoder>(root["decoder"], "decoders", ReadDecoder, &description.decoders);
  description.has_decoder = !root["decoder"].is_null();
  RETURN_IF_ERROR(file->status());
  description.source = fmt::format("{} (tokenizer.json)", ShownPath(path));
  return description;
}

// The file's JSON without added tokens and the model's vocabulary and merges. Its keys are known by then, and need no escapes.
std::string WithoutTables(const JsonPlace& root) {
  const auto object = [](const JsonPlace& place, auto value_of) {
    std::string text = "{";
    simdjson::dom::object members;
    if (place.value().get(members) != simdjson::SUCCESS) return text + "}";
    for (const simdjson::dom::key_value_pair member : members) {
      const std::string value = value_of(member);
      if (value.empty()) continue;
      text += fmt::format("{}\"{}\":{}", text.size() > 1 ? "," : "", member.key, value);
    }
    return text + "}";
  };
  const std::string model = object(root["model"], [](const simdjson::dom::key_value_pair& member) {
    const bool is_table = member.key == "vocab" || member.key == "merges";
    return is_table ? std::string() : std::string(simdjson::minify(member.value));
  });
  return object(root, [&model](const simdjson::dom::key_value_pair& member) {
    if (member.key == "added_tokens") return std::string();
    return member.key == "model" ? model : std::string(simdjson::minify(member.value));
  });
}

}  // namespace

absl::StatusOr<Description> ReadTokenizerJson(const std::string& path, const std::string& cache) {
  ASSIGN_OR_RETURN(const FileView view, FileView::Open(path));
  if (cache.empty()) {
    ASSIGN_OR_RETURN(const std::unique_ptr<JsonFile> file, JsonFile::Parse(path, view.bytes()));
    return ReadRoot(file.get(), path, nullptr);
  }
  const Contents contents(view.bytes());
  const std::string compiled_file = CompiledFile(cache, contents);
  if (std::optional<CompiledModel> compiled = ReadCompiled(compiled_file, contents)) {
    ASSIGN_OR_RETURN(const std::unique_ptr<JsonFile> file, JsonFile::Parse(path, compiled->rest));
    return ReadRoot(file.get(), path, &*compiled);
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<JsonFile> file, JsonFile::Parse(path, view.bytes()));
  ASSIGN_OR_RETURN(Description description, ReadRoot(file.get(), path, nullptr));
  if (const auto* bpe = std::get_if<BpeModel>(&description.model))
    WriteCompiled(compiled_file, contents, WithoutTables(file->Root()), *bpe, description.added_tokens);
  return description;
}

}  // namespace engine::tokenizer
