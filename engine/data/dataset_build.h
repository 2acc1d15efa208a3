// Data sets made of the documents of input files: the part of every build that does not depend on what a document is.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/hash.h"
#include "engine/data/indexed_dataset.h"
#include "engine/data/input_parts.h"
#include "engine/data/text_inputs.h"
#include "engine/data/tokenizer.h"

namespace engine::data {

// How far a build that is under way has come.
struct BuildProgress {
  std::size_t inputs = 0;
  std::size_t finished_inputs = 0;
  std::int64_t input_bytes = 0;    // of all inputs, on disk
  std::int64_t read_bytes = 0;     // of these, behind which nothing is left to do
  std::int64_t resumed_bytes = 0;  // of these, by an earlier process
  std::int64_t text_bytes = 0;     // by this process, as are those below
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
};

struct BuildOptions {
  std::vector<std::string> inputs;  // files and directories (text_inputs.h)
  std::string output_prefix;
  bool prepend_bos = false;  // the tokenizer's beginning of a document before each document that has tokens
  bool append_eod = false;   // an end-of-document token after each document that has tokens
  bool drop_duplicates = false;  // documents that stood before: the first one stays
  recipe::Tokenizer tokenizer;   // for the manifest
  int workers = 1;               // threads that tokenise; the data set is the same with any number of them
  std::size_t part_bytes = std::size_t{1} << 20;  // of text, that a worker takes at a time
  bool restart = false;  // what a build of the same prefix has left unfinished is thrown away
  double commit_seconds =
      5;  // how often, about, what is done is made safe from a crash; 0: as often as possible
  std::function<void(const BuildProgress&)> progress;  // after each part; may be none
  std::function<bool()> stopped;                       // asks, between parts, whether to stop; may be none
};

struct MadeDataset {
  std::string prefix;  // for [data] paths
  std::int64_t documents = 0;
  std::int64_t sequences = 0;
  std::int64_t tokens = 0;
  bool replaces = false;  // a data set that had the same prefix
};

struct ReadInput {
  std::string path;
  std::int64_t bytes = 0;   // as they are on disk
  std::string fingerprint;  // of all of them (fingerprint.h)
  std::int64_t documents = 0;
  std::int64_t duplicates =
      0;  // of documents before, in this file or in others; documents without text are none
};

struct BuildResult {
  TokenType type = TokenType::kU16;  // of the first data set
  std::vector<ReadInput> inputs;
  PassedOver passed_over;
  std::vector<MadeDataset> datasets;
  std::int64_t resumed_documents = 0;  // of which an earlier process had made tokens
};

// What is made of a part of an input.
struct EncodedPart {
  absl::Status status;  // located
  std::vector<EncodedDocuments> of_datasets;
  std::vector<Hash128>
      hashes;               // of each document, by which duplicates are told; kNoText (duplicates.h) is none
  std::int64_t tokens = 0;  // for the progress
};

// What a build makes: of text (preprocess.h) or of conversations (chat_build.h).
struct BuildKind {
  struct Dataset {
    std::string prefix;
    TokenType type = TokenType::kU16;
  };

  InputOptions input;             // but for part_bytes, which the options say
  std::vector<Dataset> datasets;  // of as many documents each; a data set has its name after those behind it
  std::function<EncodedPart(const InputPart&)> encode;  // called on many threads at once
  nlohmann::ordered_json what;  // all else that the data sets' bytes follow from, but inputs and tokenizer
  // Adds to the manifest what only this build knows. The data sets have their names by then.
  std::function<absl::Status(const BuildResult&, nlohmann::ordered_json* manifest)> complete_manifest;
};

// <output_prefix>.json: what was read and made, with checksums and counts of each input.
std::string ManifestPath(const std::string& output_prefix);

// The token of prepend_bos, where that is asked for. A tokenizer that has none is an error.
absl::StatusOr<std::optional<std::int32_t>> BeginningOf(const BuildOptions& options,
                                                        const Tokenizer& tokenizer);

// Makes the data sets of that kind of all documents of the inputs. Files may be compressed (text_parts.h). No data set has its name
// unless everything succeeds; inputs without any document are an error.
//
// A process that is killed, or told to stop (Cancelled), or that fails, leaves OUTPUT_PREFIX.unfinished (unfinished_build.h) if any
// part was done; the next call with equal options, kind and files goes on from there, with the same bytes in the end. Workers, part_bytes
// and commit_seconds may differ, and inputs may have changed where they were not read yet. Another kind, or an input that has
// changed where it was read, is FailedPrecondition. Of a compressed input the text before is decompressed once more.
//
// Memory grows with no text but the longest document, and with their number by a bit each; what finds documents that stood before
// has up to 700 MB (duplicates.h).
absl::StatusOr<BuildResult> BuildDatasets(const BuildOptions& options, const BuildKind& kind);

}  // namespace engine::data
