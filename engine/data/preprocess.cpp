#include "engine/data/preprocess.h"

#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "engine/base/hash.h"
#include "engine/base/status.h"
#include "engine/base/version.h"
#include "engine/base/write_file.h"
#include "engine/data/duplicates.h"
#include "engine/data/file_stream.h"
#include "engine/data/ordered_workers.h"
#include "engine/data/tokenizer/read_files.h"
#include "engine/data/unfinished_build.h"

namespace engine::data {
namespace {

// What a worker makes documents of, or, without a part, word that an input has ended.
struct Work {
  std::optional<InputPart> part;
  std::optional<FinishedInput> ended;
};
struct Encoded {
  absl::Status status;
  std::vector<EncodedDocuments> of_keys;
  std::vector<Hash128> hashes;  // of all texts of each document (duplicates.h)
  std::int64_t text_bytes = 0;
  InputPosition end;
  std::optional<FinishedInput> ended;
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

class Encoder {
 public:
  Encoder(const PreprocessOptions& options, const Tokenizer& tokenizer, TokenType type)
      : options_(options), tokenizer_(tokenizer), type_(type) {}

  Encoded Encode(const Work& work) const {
    Encoded encoded;
    encoded.ended = work.ended;
    if (!work.part.has_value()) return encoded;
    encoded.text_bytes = work.part->text_bytes;
    encoded.end = work.part->end;
    encoded.of_keys.resize(options_.json_keys.size());
    // Most texts have a token in four bytes or fewer: what is copied as this grows is not much.
    const auto tokens = static_cast<std::size_t>(encoded.text_bytes) / 4 / encoded.of_keys.size();
    for (EncodedDocuments& documents : encoded.of_keys)
      documents.tokens.reserve(tokens * static_cast<std::size_t>(SizeOf(type_)));
    std::vector<std::int32_t> ids;
    TextHasher hasher;
    encoded.status = work.part->visit([&](std::size_t key, std::span<const std::string_view> texts) {
      hasher.Add(texts);
      if (key + 1 == encoded.of_keys.size()) encoded.hashes.push_back(hasher.Finish());
      return AddDocument(texts, &ids, &encoded.of_keys[key]);
    });
    return encoded;
  }

 private:
  // `ids`: to be used again, whatever is in it.
  absl::Status AddDocument(std::span<const std::string_view> texts, std::vector<std::int32_t>* ids,
                           EncodedDocuments* documents) const {
    std::int32_t sequences = 0;
    ids->clear();
    const auto finish = [&] {  // the sequence before
      if (ids->empty()) return absl::OkStatus();
      ++sequences;
      return AppendSequence(type_, *ids, documents);
    };
    std::vector<std::int32_t> next;
    for (const std::string_view text : texts) {
      next.clear();
      RETURN_IF_ERROR(tokenizer_.EncodeTo(text, ids->empty() ? ids : &next));
      if (next.empty()) continue;
      RETURN_IF_ERROR(finish());
      std::swap(*ids, next);
    }
    if (options_.append_eod && !ids->empty()) ids->push_back(tokenizer_.end_of_document());
    RETURN_IF_ERROR(finish());
    documents->sequences.push_back(sequences);
    return absl::OkStatus();
  }

  const PreprocessOptions& options_;
  const Tokenizer& tokenizer_;
  const TokenType type_;
};

// Reads the inputs behind what a build has of them.
class Reader {
 public:
  Reader(const PreprocessOptions& options, const Tokenizer& tokenizer, TokenType type,
         std::span<const std::string> files, UnfinishedBuild* build)
      : options_(options),
        encoder_(options, tokenizer, type),
        files_(files),
        token_bytes_(SizeOf(type)),
        build_(*build),
        workers_(options.workers, [this](const Work& work) { return encoder_.Encode(work); }) {}

  absl::Status Read() {
    RETURN_IF_ERROR(MeasureInputs());
    const std::size_t first = build_.state().finished.size();
    for (std::size_t i = first; i < files_.size(); ++i)
      RETURN_IF_ERROR(ReadInput(files_[i], i == first ? begin_ : InputPosition()));
    return WriteWaiting(0);
  }

 private:
  absl::Status MeasureInputs() {
    progress_.inputs = files_.size();
    for (const std::string& path : files_) {
      ASSIGN_OR_RETURN(const FileStamp stamp, StampOf(path));
      progress_.input_bytes += stamp.bytes;
    }
    for (const FinishedInput& input : build_.state().finished) finished_bytes_ += input.stamp.bytes;
    begin_ = build_.state().position;
    progress_.resumed_bytes = finished_bytes_ + begin_.file_bytes;
    return absl::OkStatus();
  }

  absl::Status ReadInput(const std::string& path, const InputPosition& begin) {
    const InputOptions how = {.format = options_.format,
                              .keys = options_.json_keys,
                              .document_separator = options_.document_separator,
                              .part_bytes = options_.part_bytes};
    ASSIGN_OR_RETURN(const FileStamp stamp, StampOf(path));
    ASSIGN_OR_RETURN(const std::unique_ptr<InputParts> parts, InputParts::Open(path, how));
    if (begin.at > 0) RETURN_IF_ERROR(parts->SkipTo(begin));
    const std::size_t most_waiting = 2 * static_cast<std::size_t>(options_.workers) + 2;
    while (true) {
      absl::StatusOr<std::optional<InputPart>> part = parts->Next();
      // The first mistake of the text is told, whoever finds it.
      RETURN_IF_ERROR(WriteWaiting(part.ok() ? most_waiting - 1 : 0));
      RETURN_IF_ERROR(part.status());
      if (!part->has_value()) break;
      workers_.Push({.part = *std::move(part), .ended = std::nullopt});
    }
    workers_.Push(
        {.part = std::nullopt, .ended = FinishedInput{.stamp = stamp, .fingerprint = parts->Fingerprint()}});
    return absl::OkStatus();
  }

  // Until no more than so many are waiting.
  absl::Status WriteWaiting(std::size_t most) {
    while (workers_.size() > most) RETURN_IF_ERROR(Write(workers_.Pop()));
    return absl::OkStatus();
  }

  absl::Status Write(const Encoded& encoded) {
    RETURN_IF_ERROR(encoded.status);
    if (encoded.ended.has_value()) {
      RETURN_IF_ERROR(build_.EndInput(*encoded.ended));
      finished_bytes_ += encoded.ended->stamp.bytes;
    } else {
      RETURN_IF_ERROR(build_.Add(encoded.of_keys, encoded.hashes, encoded.end));
    }
    const auto now = std::chrono::steady_clock::now();
    if (now - committed_ >= std::chrono::duration<double>(options_.commit_seconds)) {
      RETURN_IF_ERROR(build_.CommitBeside());
      committed_ = now;
    }
    progress_.finished_inputs = build_.state().finished.size();
    progress_.read_bytes = finished_bytes_ + encoded.end.file_bytes;
    progress_.text_bytes += encoded.text_bytes;
    progress_.documents += static_cast<std::int64_t>(encoded.hashes.size());
    for (const EncodedDocuments& documents : encoded.of_keys)
      progress_.tokens += static_cast<std::int64_t>(documents.tokens.size()) / token_bytes_;
    if (options_.progress) options_.progress(progress_);
    return options_.stopped && options_.stopped() ? absl::CancelledError("stopped") : absl::OkStatus();
  }

  const PreprocessOptions& options_;
  const Encoder encoder_;
  const std::span<const std::string> files_;
  const std::int64_t token_bytes_;
  UnfinishedBuild& build_;
  InputPosition begin_;
  std::int64_t finished_bytes_ = 0;
  std::chrono::steady_clock::time_point committed_ = std::chrono::steady_clock::now();
  BuildProgress progress_;
  OrderedWorkers<Work, Encoded> workers_;  // the last member: its threads use the others
};

std::string_view NameOf(InputFormat format) {
  return format == InputFormat::kText ? "text" : format == InputFormat::kParquet ? "parquet" : "jsonl";
}

nlohmann::ordered_json DescribeTokenizer(const recipe::Tokenizer& files) {
  nlohmann::ordered_json tokenizer = {{"kind", files.kind}};
  for (const auto& [name, path] : {std::pair{"path", files.path}, std::pair{"vocab_file", files.vocab_file},
                                   std::pair{"merges_file", files.merges_file}})
    if (!path.empty()) tokenizer[name] = path;
  return tokenizer;
}

// All that the data sets' bytes are made of, but what the inputs hold.
absl::StatusOr<nlohmann::ordered_json> DescribeBuild(const PreprocessOptions& options, TokenType type,
                                                     const std::vector<std::string>& files) {
  std::vector<std::string> paths = {options.tokenizer.vocab_file, options.tokenizer.merges_file};
  if (!options.tokenizer.path.empty()) {
    const std::vector<std::string> more = tokenizer::TokenizerFiles(options.tokenizer.path);
    paths.insert(paths.end(), more.begin(), more.end());
  }
  nlohmann::ordered_json tokenizer = DescribeTokenizer(options.tokenizer);
  tokenizer["end_of_document"] = options.tokenizer.end_of_document;
  for (const std::string& path : paths) {
    if (path.empty() || !std::filesystem::exists(path)) continue;
    ASSIGN_OR_RETURN(const std::string fingerprint, FingerprintOfInput(path));
    tokenizer["content"].push_back(fingerprint);
  }
  return nlohmann::ordered_json{{"version", kVersion},
                                {"inputs", files},
                                {"format", NameOf(options.format)},
                                {"keys", options.json_keys},
                                {"document separator", options.document_separator},
                                {"append-eod", options.append_eod},
                                {"drop-duplicates", options.drop_duplicates},
                                {"token type", Name(type)},
                                {"tokenizer", tokenizer}};
}

// What is read whole must be what it was.
absl::Status CheckFinished(const UnfinishedBuild& build, std::span<const std::string> files) {
  const std::vector<FinishedInput>& finished = build.state().finished;
  for (std::size_t i = 0; i < finished.size(); ++i) {
    ASSIGN_OR_RETURN(const FileStamp stamp, StampOf(files[i]));
    if (stamp == finished[i].stamp) continue;
    ASSIGN_OR_RETURN(const std::string fingerprint, FingerprintOfInput(files[i]));
    if (fingerprint != finished[i].fingerprint) return FailedPrecondition("{} has changed", files[i]);
  }
  return absl::OkStatus();
}

absl::Status WriteManifest(const PreprocessOptions& options, const PreprocessResult& result) {
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
                                           {"tokenizer", DescribeTokenizer(options.tokenizer)},
                                           {"token_type", Name(result.type)},
                                           {"append_eod", options.append_eod},
                                           {"drop_duplicates", options.drop_duplicates},
                                           {"datasets", datasets},
                                           {"inputs", inputs}};
  // Names of files may be no UTF-8.
  return WriteFile(ManifestPath(options.output_prefix),
                   manifest.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

// Data sets may be made in a folder that is an input: what is unfinished of them is none.
std::vector<std::string> WithoutUnfinished(std::vector<std::string> files, const std::string& output_prefix) {
  const std::string unfinished = UnfinishedPath(output_prefix);
  std::error_code ignored;
  if (!std::filesystem::exists(unfinished, ignored)) return files;
  const std::filesystem::path folder = std::filesystem::canonical(unfinished, ignored);
  std::erase_if(files, [&](const std::string& file) {
    const std::filesystem::path parent = std::filesystem::path(file).parent_path();
    return parent.filename() == folder.filename() && std::filesystem::canonical(parent, ignored) == folder;
  });
  return files;
}

// Reads all that is not read yet. What is done stays on the disk where that fails, if it is anything.
absl::Status ReadAll(const PreprocessOptions& options, const Tokenizer& tokenizer, TokenType type,
                     std::span<const std::string> files, UnfinishedBuild* build) {
  absl::Status status = CheckFinished(*build, files);
  if (status.ok()) status = Reader(options, tokenizer, type, files, build).Read();
  const bool any = build->state().sizes.front().documents > 0;
  if (status.ok() && any) return status;
  if (absl::IsFailedPrecondition(status)) {
    return FailedPrecondition(
        "{} since an unfinished build has read it; --restart throws away what that has made",
        Message(status));
  }
  RETURN_IF_ERROR(any ? build->Commit() : build->Remove());
  RETURN_IF_ERROR(status);
  return InvalidArgument("no documents in {} files, the first of which is {}", files.size(),
                         files.empty() ? "missing" : files.front());
}

absl::Status CheckOptions(const PreprocessOptions& options) {
  const std::set<std::string> keys(options.json_keys.begin(), options.json_keys.end());
  if (keys.size() < options.json_keys.size()) return InvalidArgument("a key of JSON is named twice");
  if (options.format != InputFormat::kText || keys.size() == 1) return absl::OkStatus();
  return InvalidArgument("plain text makes one data set, and {} are named", keys.size());
}

}  // namespace

std::string ManifestPath(const std::string& output_prefix) { return output_prefix + ".json"; }

absl::StatusOr<PreprocessResult> Preprocess(const PreprocessOptions& options, const Tokenizer& tokenizer) {
  RETURN_IF_ERROR(CheckOptions(options));
  PreprocessResult result;
  ASSIGN_OR_RETURN(std::vector<std::string> listed, ListInputs(options.inputs, &result.passed_over));
  const std::vector<std::string> files = WithoutUnfinished(std::move(listed), options.output_prefix);
  result.type = ChooseTokenType(tokenizer.vocab_size());
  ASSIGN_OR_RETURN(const nlohmann::ordered_json what, DescribeBuild(options, result.type, files));
  ASSIGN_OR_RETURN(const std::unique_ptr<UnfinishedBuild> build,
                   UnfinishedBuild::Open(options.output_prefix, what, result.type, options.json_keys.size(),
                                         options.restart));
  result.resumed_documents = build->state().sizes.front().documents;
  RETURN_IF_ERROR(ReadAll(options, tokenizer, result.type, files, build.get()));
  ASSIGN_OR_RETURN(const MadeData made, build->Complete(options.drop_duplicates));
  std::vector<std::string> prefixes;
  for (std::size_t i = 0; i < options.json_keys.size(); ++i) {
    prefixes.push_back(fmt::format("{}_{}_document", options.output_prefix, options.json_keys[i]));
    result.datasets.push_back({.prefix = prefixes.back(),
                               .documents = made.sizes[i].documents,
                               .sequences = made.sizes[i].sequences,
                               .tokens = made.sizes[i].token_bytes / SizeOf(result.type)});
  }
  for (std::size_t i = 0; i < files.size(); ++i) {
    const FinishedInput& input = build->state().finished[i];
    result.inputs.push_back({.path = files[i],
                             .bytes = input.stamp.bytes,
                             .fingerprint = input.fingerprint,
                             .documents = input.documents,
                             .duplicates = made.duplicates[i]});
  }
  RETURN_IF_ERROR(build->Publish(prefixes));
  RETURN_IF_ERROR(WriteManifest(options, result));
  RETURN_IF_ERROR(build->Remove());
  return result;
}

}  // namespace engine::data
