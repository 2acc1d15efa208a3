#include "engine/data/dataset_build.h"

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/base/version.h"
#include "engine/base/write_file.h"
#include "engine/data/file_stream.h"
#include "engine/data/indexed_format.h"
#include "engine/data/ordered_workers.h"
#include "engine/data/unfinished_build.h"

namespace engine::data {
namespace {

// What a worker makes documents of, or, without a part, word that an input has ended.
struct Work {
  std::optional<InputPart> part;
  std::optional<FinishedInput> ended;
};
struct Encoded {
  EncodedPart part;
  std::int64_t text_bytes = 0;
  InputPosition end;
  std::optional<FinishedInput> ended;
};

// Reads the inputs behind what a build has of them.
class Reader {
 public:
  Reader(const BuildOptions& options, const BuildKind& kind, std::span<const std::string> files,
         UnfinishedBuild* build)
      : options_(options),
        kind_(kind),
        files_(files),
        build_(*build),
        workers_(options.workers, [this](const Work& work) { return Encode(work); }) {}

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

  Encoded Encode(const Work& work) const {
    Encoded encoded;
    encoded.ended = work.ended;
    if (!work.part.has_value()) return encoded;
    encoded.text_bytes = work.part->text_bytes;
    encoded.end = work.part->end;
    encoded.part = kind_.encode(*work.part);
    return encoded;
  }

  absl::Status ReadInput(const std::string& path, const InputPosition& begin) {
    InputOptions how = kind_.input;
    how.part_bytes = options_.part_bytes;
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
    RETURN_IF_ERROR(encoded.part.status);
    if (encoded.ended.has_value()) {
      RETURN_IF_ERROR(build_.EndInput(*encoded.ended));
      finished_bytes_ += encoded.ended->stamp.bytes;
    } else {
      RETURN_IF_ERROR(build_.Add(encoded.part.of_datasets, encoded.part.hashes, encoded.end));
    }
    const auto now = std::chrono::steady_clock::now();
    if (now - committed_ >= std::chrono::duration<double>(options_.commit_seconds)) {
      RETURN_IF_ERROR(build_.CommitBeside());
      committed_ = now;
    }
    progress_.finished_inputs = build_.state().finished.size();
    progress_.read_bytes = finished_bytes_ + encoded.end.file_bytes;
    progress_.text_bytes += encoded.text_bytes;
    progress_.documents += static_cast<std::int64_t>(encoded.part.hashes.size());
    progress_.tokens += encoded.part.tokens;
    if (options_.progress) options_.progress(progress_);
    return options_.stopped && options_.stopped() ? absl::CancelledError("stopped") : absl::OkStatus();
  }

  const BuildOptions& options_;
  const BuildKind& kind_;
  const std::span<const std::string> files_;
  UnfinishedBuild& build_;
  InputPosition begin_;
  std::int64_t finished_bytes_ = 0;
  std::chrono::steady_clock::time_point committed_ = std::chrono::steady_clock::now();
  BuildProgress progress_;
  OrderedWorkers<Work, Encoded> workers_;  // the last member: its threads use the others
};

nlohmann::ordered_json DescribeTokenizer(const recipe::Tokenizer& files) {
  nlohmann::ordered_json tokenizer = {{"kind", files.kind}};
  for (const auto& [name, path] : {std::pair{"path", files.path}, std::pair{"vocab_file", files.vocab_file},
                                   std::pair{"merges_file", files.merges_file}})
    if (!path.empty()) tokenizer[name] = path;
  return tokenizer;
}

// All that the data sets' bytes are made of, but what the inputs hold.
absl::StatusOr<nlohmann::ordered_json> DescribeBuild(const BuildOptions& options, const BuildKind& kind,
                                                     const std::vector<std::string>& files) {
  nlohmann::ordered_json tokenizer = DescribeTokenizer(options.tokenizer);
  tokenizer["end_of_document"] = options.tokenizer.end_of_document;
  // Builds that were begun before there was this option go on without it.
  if (const std::string& token = options.tokenizer.beginning_of_document; !token.empty())
    tokenizer["beginning_of_document"] = token;
  for (const std::string& path : FilesOf(options.tokenizer)) {
    if (!std::filesystem::exists(path)) continue;
    ASSIGN_OR_RETURN(const std::string fingerprint, FingerprintOfInput(path));
    tokenizer["content"].push_back(fingerprint);
  }
  nlohmann::ordered_json what = {{"version", kVersion}, {"inputs", files}};
  what.update(kind.what);
  what.update({{"prepend-bos", options.prepend_bos},
               {"append-eod", options.append_eod},
               {"drop-duplicates", options.drop_duplicates},
               {"token type", Name(kind.datasets.front().type)},
               {"tokenizer", tokenizer}});
  return what;
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

absl::Status WriteManifest(const BuildOptions& options, const BuildKind& kind, const BuildResult& result) {
  nlohmann::ordered_json inputs = nlohmann::ordered_json::array();
  for (const ReadInput& input : result.inputs) {
    inputs.push_back({{"path", input.path},
                      {"content", input.fingerprint},
                      {"documents", input.documents},
                      {"duplicates", input.duplicates}});
  }
  nlohmann::ordered_json datasets = nlohmann::ordered_json::array();
  for (const MadeDataset& made : result.datasets) {
    datasets.push_back({{"prefix", made.prefix},
                        {"documents", made.documents},
                        {"sequences", made.sequences},
                        {"tokens", made.tokens}});
  }
  nlohmann::ordered_json manifest = {{"format", 1},
                                     {"tokenizer", DescribeTokenizer(options.tokenizer)},
                                     {"token_type", Name(result.type)},
                                     {"prepend_bos", options.prepend_bos},
                                     {"append_eod", options.append_eod},
                                     {"drop_duplicates", options.drop_duplicates},
                                     {"datasets", datasets},
                                     {"inputs", inputs}};
  RETURN_IF_ERROR(kind.complete_manifest(result, &manifest));
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
absl::Status ReadAll(const BuildOptions& options, const BuildKind& kind, std::span<const std::string> files,
                     UnfinishedBuild* build) {
  absl::Status status = CheckFinished(*build, files);
  if (status.ok()) status = Reader(options, kind, files, build).Read();
  const bool any = build->state().sizes.front().documents > 0;
  if (status.ok() && any) return status;
  if (absl::IsFailedPrecondition(status)) {
    return FailedPrecondition(
        "{} since an unfinished build has read it; --restart throws away what that has made",
        Message(status));
  }
  RETURN_IF_ERROR(any ? build->Commit() : build->Discard());
  RETURN_IF_ERROR(status);
  return InvalidArgument("no documents in {} files, the first of which is {}", files.size(),
                         files.empty() ? "missing" : files.front());
}

}  // namespace

std::string ManifestPath(const std::string& output_prefix) { return output_prefix + ".json"; }

absl::StatusOr<std::optional<std::int32_t>> BeginningOf(const BuildOptions& options,
                                                        const Tokenizer& tokenizer) {
  if (!options.prepend_bos) return std::nullopt;
  const std::optional<std::int32_t> token = tokenizer.beginning_of_document();
  if (token.has_value() && options.append_eod && *token == tokenizer.end_of_document())
    return InvalidArgument(
        "--prepend-bos and --append-eod write one token, {}, between two documents twice, since it both "
        "begins and ends one: leave "
        "one of them out",
        *token);
  if (token.has_value()) return token;
  if (const std::string why = tokenizer.why_no_beginning(); !why.empty()) return InvalidArgument("{}", why);
  if (options.tokenizer.kind != "file")
    return InvalidArgument("the tokenizer \"{}\" has no token that begins a document, for --prepend-bos",
                           options.tokenizer.kind);
  return InvalidArgument(
      "{}: error: which token begins a document, for --prepend-bos, is not known; bos_token of a "
      "tokenizer_config.json beside it names one, and so does --beginning-of-document",
      ShownPath(options.tokenizer.path));
}

absl::StatusOr<BuildResult> BuildDatasets(const BuildOptions& options, const BuildKind& kind) {
  BuildResult result;
  ASSIGN_OR_RETURN(std::vector<std::string> listed, ListInputs(options.inputs, &result.passed_over));
  const std::vector<std::string> files = WithoutUnfinished(std::move(listed), options.output_prefix);
  result.type = kind.datasets.front().type;
  std::vector<TokenType> types;
  std::vector<std::string> prefixes;
  for (const BuildKind::Dataset& dataset : kind.datasets) {
    types.push_back(dataset.type);
    prefixes.push_back(dataset.prefix);
  }
  ASSIGN_OR_RETURN(const nlohmann::ordered_json what, DescribeBuild(options, kind, files));
  ASSIGN_OR_RETURN(const std::unique_ptr<UnfinishedBuild> build,
                   UnfinishedBuild::Open(options.output_prefix, what, types, options.restart));
  result.resumed_documents = build->state().sizes.front().documents;
  RETURN_IF_ERROR(ReadAll(options, kind, files, build.get()));
  ASSIGN_OR_RETURN(const MadeData made, build->Complete(options.drop_duplicates));
  std::error_code ignored;
  for (std::size_t i = 0; i < types.size(); ++i) {
    result.datasets.push_back({.prefix = prefixes[i],
                               .documents = made.sizes[i].documents,
                               .sequences = made.sizes[i].sequences,
                               .tokens = made.sizes[i].token_bytes / SizeOf(types[i]),
                               .replaces = std::filesystem::exists(IdxPath(prefixes[i]), ignored)});
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
  RETURN_IF_ERROR(WriteManifest(options, kind, result));
  RETURN_IF_ERROR(build->Remove());
  return result;
}

}  // namespace engine::data
