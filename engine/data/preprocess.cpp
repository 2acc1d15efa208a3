#include "engine/data/preprocess.h"

#include <optional>
#include <set>
#include <span>
#include <utility>

#include "engine/base/hash.h"
#include "engine/base/status.h"
#include "engine/data/duplicates.h"

namespace engine::data {
namespace {

// Of a document's texts, key by key.
class TextHasher {
 public:
  void Add(std::span<const std::string_view> texts) {
    hashes_.push_back({0, texts.size()});
    for (const std::string_view text : texts) {
      any_ = any_ || !text.empty();
      hashes_.push_back(HashOf(text));
    }
  }
  Hash128 Finish() {
    const std::string_view bytes(reinterpret_cast<const char*>(hashes_.data()),
                                 hashes_.size() * sizeof(Hash128));
    const Hash128 hash = any_ ? HashOf(bytes) : kNoText;
    hashes_.clear();
    any_ = false;
    return hash;
  }

 private:
  std::vector<Hash128> hashes_;
  bool any_ = false;
};

class TextEncoder {
 public:
  TextEncoder(const PreprocessOptions& options, const Tokenizer& tokenizer, TokenType type,
              std::optional<std::int32_t> beginning)
      : options_(options), tokenizer_(tokenizer), type_(type), beginning_(beginning) {}

  EncodedPart Encode(const InputPart& part) const {
    EncodedPart encoded;
    encoded.of_datasets.resize(options_.json_keys.size());
    // Most texts have a token in four bytes or fewer: what is copied as this grows is not much.
    const auto tokens = static_cast<std::size_t>(part.text_bytes) / 4 / encoded.of_datasets.size();
    for (EncodedDocuments& documents : encoded.of_datasets)
      documents.tokens.reserve(tokens * static_cast<std::size_t>(SizeOf(type_)));
    std::vector<std::int32_t> ids;
    TextHasher hasher;
    encoded.status = part.visit([&](std::size_t key, std::span<const std::string_view> texts) {
      hasher.Add(texts);
      if (key + 1 == encoded.of_datasets.size()) encoded.hashes.push_back(hasher.Finish());
      return AddDocument(texts, &ids, &encoded.of_datasets[key]);
    });
    for (const EncodedDocuments& documents : encoded.of_datasets)
      encoded.tokens += static_cast<std::int64_t>(documents.tokens.size()) / SizeOf(type_);
    return encoded;
  }

 private:
  // `ids`: to be used again, whatever is in it.
  absl::Status AddDocument(std::span<const std::string_view> texts, std::vector<std::int32_t>* ids,
                           EncodedDocuments* documents) const {
    std::int32_t sequences = 0;
    const auto finish = [&] {
      ++sequences;
      return AppendSequence(type_, *ids, documents);
    };
    ids->clear();
    if (beginning_.has_value()) ids->push_back(*beginning_);
    const std::size_t front = ids->size();
    std::vector<std::int32_t> next;
    for (const std::string_view text : texts) {
      const bool is_first = sequences == 0 && ids->size() == front;
      next.clear();
      RETURN_IF_ERROR(tokenizer_.EncodeTo(text, is_first ? ids : &next));
      if (next.empty()) continue;
      RETURN_IF_ERROR(finish());
      std::swap(*ids, next);
    }
    if (sequences > 0 || ids->size() > front) {
      if (options_.append_eod) ids->push_back(tokenizer_.end_of_document());
      RETURN_IF_ERROR(finish());
    }
    documents->sequences.push_back(sequences);
    return absl::OkStatus();
  }

  const PreprocessOptions& options_;
  const Tokenizer& tokenizer_;
  const TokenType type_;
  const std::optional<std::int32_t> beginning_;
};

std::string_view NameOf(InputFormat format) {
  return format == InputFormat::kText ? "text" : format == InputFormat::kParquet ? "parquet" : "jsonl";
}

// An unfinished build tells the separator of blank lines from none, which has always been "".
std::string Recorded(const std::optional<std::string>& separator) {
  return separator == "" ? "\n" : separator.value_or("");
}

absl::Status CheckOptions(const PreprocessOptions& options) {
  const std::set<std::string> keys(options.json_keys.begin(), options.json_keys.end());
  if (keys.size() < options.json_keys.size()) return InvalidArgument("a key of JSON is named twice");
  if (options.format != InputFormat::kText || keys.size() == 1) return absl::OkStatus();
  return InvalidArgument("plain text makes one data set, and {} are named", keys.size());
}

}  // namespace

absl::StatusOr<BuildResult> Preprocess(const PreprocessOptions& options, const Tokenizer& tokenizer) {
  RETURN_IF_ERROR(CheckOptions(options));
  const TokenType type = ChooseTokenType(tokenizer.vocab_size());
  ASSIGN_OR_RETURN(const std::optional<std::int32_t> beginning, BeginningOf(options, tokenizer));
  const TextEncoder encoder(options, tokenizer, type, beginning);
  BuildKind kind = {.input = {.format = options.format,
                              .keys = options.json_keys,
                              .null_members = {},
                              .document_separator = options.document_separator},
                    .datasets = {},
                    .encode = [&](const InputPart& part) { return encoder.Encode(part); },
                    .what = {{"format", NameOf(options.format)},
                             {"keys", options.json_keys},
                             {"document separator", Recorded(options.document_separator)}},
                    .complete_manifest =
                        [&](const BuildResult&, nlohmann::ordered_json* manifest) {
                          for (std::size_t i = 0; i < options.json_keys.size(); ++i)
                            (*manifest)["datasets"][i]["key"] = options.json_keys[i];
                          return absl::OkStatus();
                        }};
  for (const std::string& key : options.json_keys)
    kind.datasets.push_back({fmt::format("{}_{}_document", options.output_prefix, key), type});
  return BuildDatasets(options, kind);
}

}  // namespace engine::data
