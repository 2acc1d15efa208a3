// What a build of data sets has made so far, on disk, so that another process goes on where one was killed.
//
// PREFIX.unfinished/ has for each data set k its documents (dataset_spool.h: k.bin, k.lengths, k.documents), in `hashes` the
// XXH3-128 by which each document is known again (EncodedPart::hashes), 16 bytes each, and in `journal` (journal.h)
//   {"format": 1, "build": …}                       what is built of what: another build cannot go on with it
//   {"finished": […], "position": …, "sizes": …}    how far it has come, appended now and then: what the files have up to these
//                                                   sizes is on the disk by then, and what stands behind is not looked at
//   {"made": …}                                     all is there, also k.idx: what remains is to give files their names.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/file_io.h"
#include "engine/base/hash.h"
#include "engine/data/dataset_spool.h"
#include "engine/data/file_stream.h"
#include "engine/data/input_parts.h"
#include "engine/data/journal.h"

namespace engine::data {

std::string UnfinishedPath(const std::string& output_prefix);  // PREFIX.unfinished

struct FinishedInput {
  FileStamp stamp;          // as it was when reading began
  std::string fingerprint;  // of all bytes (fingerprint.h)
  std::int64_t documents = 0;
};

// How far a build has come.
struct BuildState {
  std::vector<FinishedInput> finished;  // inputs read whole, in their order
  InputPosition position;               // in the one behind these
  std::int64_t documents = 0;           // of that one, before the position
  std::vector<DatasetSpool::Sizes> sizes;
};

// What a build that has read everything has made.
struct MadeData {
  std::vector<DatasetSpool::Sizes> sizes;
  std::vector<std::int64_t> duplicates;  // of each input
};

class UnfinishedBuild {
 public:
  // Begins a build of data sets of these types, of as many documents each, or goes on with the one that was begun here: `what` has to be equal then. `restart` throws
  // it away first. Another process that builds the same is FailedPrecondition.
  static absl::StatusOr<std::unique_ptr<UnfinishedBuild>> Open(const std::string& output_prefix,
                                                               const nlohmann::ordered_json& what,
                                                               std::vector<TokenType> types, bool restart);
  ~UnfinishedBuild();

  const BuildState& state() const { return state_; }

  // Documents of a part: of each data set, and their hashes. `end`: where in the input.
  absl::Status Add(std::span<const EncodedDocuments> of_datasets, std::span<const Hash128> hashes,
                   const InputPosition& end);
  absl::Status EndInput(const FinishedInput& input);

  // Puts on the disk what was added; the second on a thread of its own, unless one is at that already. An error, also of that
  // thread, is every later call's: the journal has no gaps.
  absl::Status Commit();
  absl::Status CommitBeside();

  // All inputs are read: finds documents that stood before, leaves them out where `drop_duplicates`, and makes indices.
  absl::StatusOr<MadeData> Complete(bool drop_duplicates);
  // Gives the data sets their names, the last one first; before that none of these names has an older one's index.
  absl::Status Publish(std::span<const std::string> prefixes);
  absl::Status Remove();
  // The same, of a build that has made nothing: the folders above it that Open made go, too, as far as they are empty.
  absl::Status Discard();

 private:
  UnfinishedBuild(std::string folder, std::vector<TokenType> types, File lock, Journal journal)
      : folder_(std::move(folder)),
        types_(std::move(types)),
        lock_(std::move(lock)),
        journal_(std::move(journal)) {}
  std::string PathOf(std::size_t dataset, bool kept) const;
  absl::Status Load(const nlohmann::ordered_json& what);
  absl::Status OpenFiles();
  absl::Status WaitForCommit();
  absl::Status Write(const nlohmann::ordered_json& record);
  nlohmann::ordered_json TakeRecord();

  std::string folder_;
  std::vector<std::string> made_parents_;  // folders that Open made for it, the innermost first
  std::vector<TokenType> types_;           // of data sets
  File lock_;
  Journal journal_;
  BuildState state_;
  std::size_t written_ = 0;  // of state_.finished, in the journal
  std::optional<MadeData> made_;
  bool kept_ = false;  // documents that stood before are left out: other files have the rest
  std::vector<DatasetSpool> spools_;
  std::optional<GrowingFile> hashes_;
  std::future<absl::Status> committing_;
  absl::Status failed_;  // of commits
};

}  // namespace engine::data
