// Text files to a tokenised data set, as Megatron's tools/preprocess_data.py makes it.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

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
  std::int64_t tokens = 0;  // of all data sets
};

struct PreprocessOptions {
  std::vector<std::string> inputs;  // files and directories (text_inputs.h)
  std::string output_prefix;
  InputFormat format = InputFormat::kJsonLines;
  std::vector<std::string> json_keys = {"text"};  // each makes a data set of its own (text_inputs.h)
  std::string document_separator;  // text: a line between documents; empty: a file is a document
  bool append_eod = false;         // an end-of-document token after each document that has tokens
  bool drop_duplicates = false;    // documents that stood before, text by text: the first one stays
  recipe::Tokenizer tokenizer;     // for the manifest
  int workers = 1;                 // threads that tokenise; the data set is the same with any number of them
  std::size_t part_bytes = std::size_t{1} << 20;  // of text, that a worker takes at a time
  bool restart = false;  // what a build of the same prefix has left unfinished is thrown away
  double commit_seconds =
      5;  // how often, about, what is done is made safe from a crash; 0: as often as possible
  std::function<void(const BuildProgress&)> progress;  // after each part; may be none
  std::function<bool()> stopped;                       // asks, between parts, whether to stop; may be none
};

struct MadeDataset {
  std::string prefix;  // <output_prefix>_<json_key>_document, for [data] paths
  std::int64_t documents = 0;
  std::int64_t sequences = 0;
  std::int64_t tokens = 0;
};

struct ReadInput {
  std::string path;
  std::int64_t bytes = 0;   // as they are on disk
  std::string fingerprint;  // of all of them (fingerprint.h)
  std::int64_t documents = 0;
  std::int64_t duplicates =
      0;  // of documents before, in this file or in others; documents without text are none
};

struct PreprocessResult {
  TokenType type = TokenType::kU16;
  std::vector<ReadInput> inputs;
  PassedOver passed_over;
  std::vector<MadeDataset> datasets;   // of each key
  std::int64_t resumed_documents = 0;  // of which an earlier process had made tokens
};

// <output_prefix>.json: what was read and made, with checksums and counts of each input.
std::string ManifestPath(const std::string& output_prefix);

// Files may be compressed (text_parts.h). Texts that make no tokens become no sequence; a document of none stays, as one of zero
// sequences, and gets no end token. No data set has its name unless everything succeeds; inputs without any document are an error.
//
// A process that is killed, or told to stop (Cancelled), or that fails, leaves OUTPUT_PREFIX.unfinished (unfinished_build.h) if any
// part was done; the next call with equal options and files goes on from there, with the same bytes in the end. Workers, part_bytes
// and commit_seconds may differ, and inputs may have changed where they were not read yet. Other options, or an input that has
// changed where it was read, are FailedPrecondition. Of a compressed input the text before is decompressed once more.
//
// Memory grows with no text but the longest document, and with their number by a bit each; what finds documents that stood before
// has up to 700 MB (duplicates.h).
absl::StatusOr<PreprocessResult> Preprocess(const PreprocessOptions& options, const Tokenizer& tokenizer);

}  // namespace engine::data
