#include "engine/data/preprocess.h"

#include <absl/container/flat_hash_set.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "engine/base/hash.h"
#include "engine/base/status.h"
#include "engine/base/write_file.h"
#include "engine/data/ordered_workers.h"
#include "engine/data/text_parts.h"

namespace engine::data {
namespace {

// Of a file, which ends where a document does.
struct Part {
  std::size_t input;  // of PreprocessResult::inputs
  std::string path;
  TextPart text;
};
struct EncodedPart {
  std::size_t input = 0;
  absl::Status status;
  std::vector<EncodedDocuments> of_keys;
  std::vector<std::optional<Hash128>> documents;  // of all texts of each; nullopt: there is none
};

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
  std::optional<Hash128> Finish() {
    const std::string_view bytes(reinterpret_cast<const char*>(hashes_.data()),
                                 hashes_.size() * sizeof(Hash128));
    const std::optional<Hash128> hash = any_ ? std::optional(HashOf(bytes)) : std::nullopt;
    hashes_.clear();
    any_ = false;
    return hash;
  }

 private:
  std::vector<Hash128> hashes_;
  bool any_ = false;
};

class Encoder {
 public:
  Encoder(const PreprocessOptions& options, const Tokenizer& tokenizer, TokenType type)
      : options_(options), tokenizer_(tokenizer), type_(type) {}

  EncodedPart Encode(const Part& part) const {
    EncodedPart encoded;
    encoded.input = part.input;
    encoded.of_keys.resize(options_.json_keys.size());
    TextHasher hasher;
    const auto add = [&](std::size_t key, std::span<const std::string_view> texts) {
      hasher.Add(texts);
      if (key + 1 == encoded.of_keys.size()) encoded.documents.push_back(hasher.Finish());
      return AddDocument(texts, &encoded.of_keys[key]);
    };
    if (options_.format == InputFormat::kJsonLines) {
      encoded.status =
          VisitJsonLines({part.path, part.text.first_line}, part.text.text, options_.json_keys, add);
    } else {
      encoded.status = VisitPlainText(part.text.text, options_.document_separator,
                                      [&](std::span<const std::string_view> texts) { return add(0, texts); });
      if (!encoded.status.ok()) encoded.status = WithContext(encoded.status, part.path);
    }
    return encoded;
  }

 private:
  absl::Status AddDocument(std::span<const std::string_view> texts, EncodedDocuments* documents) const {
    std::vector<std::vector<std::int32_t>> sequences;
    for (const std::string_view text : texts) {
      std::vector<std::int32_t> ids;
      RETURN_IF_ERROR(tokenizer_.EncodeTo(text, &ids));
      if (!ids.empty()) sequences.push_back(std::move(ids));
    }
    if (options_.append_eod && !sequences.empty()) sequences.back().push_back(tokenizer_.end_of_document());
    return EncodeDocument(type_, sequences, documents);
  }

  const PreprocessOptions& options_;
  const Tokenizer& tokenizer_;
  const TokenType type_;
};

// Where plain text may be cut: behind a separator's line. Without a separator a file is one document.
CutText CutOf(const PreprocessOptions& options) {
  if (options.format == InputFormat::kJsonLines) return BehindLastLine;
  return [separator = options.document_separator](std::string_view text) -> std::size_t {
    if (separator.empty()) return 0;
    for (std::size_t end = BehindLastLine(text); end > 0;) {
      const std::size_t begin = BehindLastLine(text.substr(0, end - 1));
      std::string_view line = text.substr(begin, end - 1 - begin);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (line == separator) return end;
      end = begin;
    }
    return 0;
  };
}

using Writers = std::vector<std::unique_ptr<IndexedDatasetWriter>>;

// Writes parts in their order, and knows which documents have been there.
class Output {
 public:
  Output(const PreprocessOptions& options, TokenType type, Writers writers, PreprocessResult* result)
      : options_(options),
        token_bytes_(static_cast<std::size_t>(SizeOf(type))),
        writers_(std::move(writers)),
        result_(*result) {}
  const Writers& writers() const { return writers_; }

  absl::Status Write(const EncodedPart& part) {
    RETURN_IF_ERROR(part.status);
    ReadInput& input = result_.inputs[part.input];
    std::vector<bool> kept;
    bool all = true;
    for (const std::optional<Hash128>& document : part.documents) {
      const bool again = document.has_value() && !seen_.insert(*document).second;
      ++input.documents;
      if (again) ++input.duplicates;
      kept.push_back(!again || !options_.drop_duplicates);
      all = all && kept.back();
    }
    for (std::size_t i = 0; i < writers_.size(); ++i)
      RETURN_IF_ERROR(writers_[i]->Add(all ? part.of_keys[i] : Those(part.of_keys[i], kept)));
    return absl::OkStatus();
  }

 private:
  EncodedDocuments Those(const EncodedDocuments& from, const std::vector<bool>& kept) const {
    EncodedDocuments some;
    auto token = from.tokens.begin();
    auto length = from.lengths.begin();
    for (std::size_t document = 0; document < kept.size(); ++document) {
      const auto last = length + from.sequences[document];
      const std::int64_t tokens = std::accumulate(length, last, std::int64_t{0});
      const auto end = token + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(tokens) * token_bytes_);
      if (kept[document]) {
        some.tokens.insert(some.tokens.end(), token, end);
        some.lengths.insert(some.lengths.end(), length, last);
        some.sequences.push_back(from.sequences[document]);
      }
      token = end;
      length = last;
    }
    return some;
  }

  const PreprocessOptions& options_;
  const std::size_t token_bytes_;
  const Writers writers_;
  PreprocessResult& result_;
  absl::flat_hash_set<Hash128> seen_;
};

absl::Status WriteManifest(const PreprocessOptions& options, const PreprocessResult& result) {
  const recipe::Tokenizer& files = options.tokenizer;
  nlohmann::ordered_json tokenizer = {{"kind", files.kind}};
  for (const auto& [name, path] : {std::pair{"path", files.path}, std::pair{"vocab_file", files.vocab_file},
                                   std::pair{"merges_file", files.merges_file}})
    if (!path.empty()) tokenizer[name] = path;
  nlohmann::ordered_json inputs = nlohmann::ordered_json::array();
  for (const ReadInput& input : result.inputs) {
    inputs.push_back({{"path", input.path},
                      {"content", input.fingerprint},
                      {"documents", input.documents},
                      {"duplicates", input.duplicates}});
  }
  nlohmann::ordered_json datasets = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < result.datasets.size(); ++i) {
    const MadeDataset& made = result.datasets[i];
    datasets.push_back({{"prefix", made.prefix},
                        {"key", options.json_keys[i]},
                        {"documents", made.documents},
                        {"sequences", made.sequences},
                        {"tokens", made.tokens}});
  }
  const nlohmann::ordered_json manifest = {{"format", 1},
                                           {"tokenizer", tokenizer},
                                           {"token_type", Name(result.type)},
                                           {"append_eod", options.append_eod},
                                           {"drop_duplicates", options.drop_duplicates},
                                           {"datasets", datasets},
                                           {"inputs", inputs}};
  // Names of files may be no UTF-8.
  return WriteFile(ManifestPath(options.output_prefix),
                   manifest.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

absl::Status CheckOptions(const PreprocessOptions& options) {
  const std::set<std::string> keys(options.json_keys.begin(), options.json_keys.end());
  if (keys.size() < options.json_keys.size()) return InvalidArgument("a key of JSON is named twice");
  if (options.format == InputFormat::kJsonLines || keys.size() == 1) return absl::OkStatus();
  return InvalidArgument("plain text makes one data set, and {} are named", keys.size());
}

}  // namespace

std::string ManifestPath(const std::string& output_prefix) { return output_prefix + ".json"; }

absl::StatusOr<PreprocessResult> Preprocess(const PreprocessOptions& options, const Tokenizer& tokenizer) {
  RETURN_IF_ERROR(CheckOptions(options));
  PreprocessResult result;
  ASSIGN_OR_RETURN(const std::vector<std::string> files, ListInputs(options.inputs, &result.passed_over));
  result.type = ChooseTokenType(tokenizer.vocab_size());
  Writers writers;
  for (const std::string& key : options.json_keys) {
    result.datasets.push_back({.prefix = fmt::format("{}_{}_document", options.output_prefix, key)});
    ASSIGN_OR_RETURN(writers.emplace_back(),
                     IndexedDatasetWriter::Create(result.datasets.back().prefix, result.type));
  }
  Output output(options, result.type, std::move(writers), &result);
  const Encoder encoder(options, tokenizer, result.type);
  const CutText cut = CutOf(options);
  const std::size_t most_waiting = 2 * static_cast<std::size_t>(options.workers) + 2;
  OrderedWorkers<Part, EncodedPart> workers(options.workers,
                                            [&](const Part& part) { return encoder.Encode(part); });
  for (const std::string& path : files) {
    ASSIGN_OR_RETURN(TextParts parts, TextParts::Open(path));
    result.inputs.push_back({.path = path, .bytes = parts.file_bytes(), .fingerprint = parts.Fingerprint()});
    while (true) {
      absl::StatusOr<TextPart> part = parts.Next(options.part_bytes, cut);
      if (part.ok() && part->text.empty()) break;
      // The first mistake of the text is told, whoever finds it.
      while (workers.size() > 0 && (!part.ok() || workers.size() >= most_waiting))
        RETURN_IF_ERROR(output.Write(workers.Pop()));
      RETURN_IF_ERROR(part.status());
      workers.Push({result.inputs.size() - 1, path, *std::move(part)});
    }
  }
  while (workers.size() > 0) RETURN_IF_ERROR(output.Write(workers.Pop()));
  if (output.writers().front()->documents() == 0) {
    return InvalidArgument("no documents in {} files, the first of which is {}", files.size(),
                           files.empty() ? "missing" : files.front());
  }
  for (std::size_t i = 0; i < result.datasets.size(); ++i) {
    IndexedDatasetWriter& writer = *output.writers()[i];
    RETURN_IF_ERROR(writer.Finish());
    result.datasets[i].documents = writer.documents();
    result.datasets[i].sequences = writer.sequences();
    result.datasets[i].tokens = writer.tokens();
  }
  RETURN_IF_ERROR(WriteManifest(options, result));
  return result;
}

}  // namespace engine::data
