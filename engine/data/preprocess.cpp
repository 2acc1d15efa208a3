#include "engine/data/preprocess.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "engine/base/status.h"
#include "engine/data/ordered_workers.h"
#include "engine/data/text_parts.h"

namespace engine::data {
namespace {

// Of a file, which ends where a document does.
struct Part {
  std::string path;
  TextPart text;
};
struct EncodedPart {
  absl::Status status;
  std::vector<EncodedDocuments> of_keys;
};

class Encoder {
 public:
  Encoder(const PreprocessOptions& options, const Tokenizer& tokenizer, TokenType type)
      : options_(options), tokenizer_(tokenizer), type_(type) {}

  EncodedPart Encode(const Part& part) const {
    EncodedPart encoded;
    encoded.of_keys.resize(options_.json_keys.size());
    const auto add = [&](std::size_t key, std::span<const std::string_view> texts) {
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

absl::Status Write(const EncodedPart& part, const Writers& writers) {
  RETURN_IF_ERROR(part.status);
  for (std::size_t i = 0; i < writers.size(); ++i) RETURN_IF_ERROR(writers[i]->Add(part.of_keys[i]));
  return absl::OkStatus();
}

absl::Status CheckOptions(const PreprocessOptions& options) {
  const std::set<std::string> keys(options.json_keys.begin(), options.json_keys.end());
  if (keys.size() < options.json_keys.size()) return InvalidArgument("a key of JSON is named twice");
  if (options.format == InputFormat::kJsonLines || keys.size() == 1) return absl::OkStatus();
  return InvalidArgument("plain text makes one data set, and {} are named", keys.size());
}

}  // namespace

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
  const Encoder encoder(options, tokenizer, result.type);
  const CutText cut = CutOf(options);
  const auto most_waiting = static_cast<std::size_t>(2 * options.workers + 2);
  OrderedWorkers<Part, EncodedPart> workers(options.workers,
                                            [&](const Part& part) { return encoder.Encode(part); });
  for (const std::string& path : files) {
    ASSIGN_OR_RETURN(TextParts parts, TextParts::Open(path));
    result.input_bytes += parts.file_bytes();
    while (true) {
      absl::StatusOr<TextPart> part = parts.Next(options.part_bytes, cut);
      if (part.ok() && part->text.empty()) break;
      // The first mistake of the text is told, whoever finds it.
      while (workers.size() > 0 && (!part.ok() || workers.size() >= most_waiting))
        RETURN_IF_ERROR(Write(workers.Pop(), writers));
      RETURN_IF_ERROR(part.status());
      workers.Push({path, *std::move(part)});
    }
  }
  while (workers.size() > 0) RETURN_IF_ERROR(Write(workers.Pop(), writers));
  if (writers.front()->documents() == 0) {
    return InvalidArgument("no documents in {} files, the first of which is {}", files.size(),
                           files.empty() ? "missing" : files.front());
  }
  for (std::size_t i = 0; i < writers.size(); ++i) {
    RETURN_IF_ERROR(writers[i]->Finish());
    result.datasets[i].documents = writers[i]->documents();
    result.datasets[i].sequences = writers[i]->sequences();
    result.datasets[i].tokens = writers[i]->tokens();
  }
  result.files = static_cast<std::int64_t>(files.size());
  return result;
}

}  // namespace engine::data
