#include "engine/train/bucket_objects.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <optional>
#include <string_view>
#include <system_error>

#include "engine/base/status.h"
#include "engine/checkpoint/layout.h"
#include "engine/state/shard_exchange.h"
#include "engine/storage/storage.h"

namespace engine::train {
namespace {

// A file is sent over three connections at once (storage/s3_writer.cpp), so four files over twelve; about as many fill a network card of 10 Gb/s, as S3 gives
// one of 85 to 90 MB/s each (docs.aws.amazon.com, "Performance design patterns for Amazon S3": 15). Each file takes 64 MiB of memory or more.
constexpr std::size_t kFilesAtOnce = 4;

}  // namespace

std::string ManifestIn(const std::string& folder) {
  return checkpoint::JoinPath(folder, checkpoint::kManifestName);
}

absl::StatusOr<InBucketByIteration> ListObjects(const std::string& prefix) {
  const std::string folder = checkpoint::JoinPath(prefix, "");
  ASSIGN_OR_RETURN(const std::vector<storage::Entry> entries, storage::List(folder));
  InBucketByIteration found;
  for (const storage::Entry& entry : entries) {
    const std::string_view within = std::string_view(entry.name).substr(folder.size());
    const std::optional<std::int64_t> iteration =
        checkpoint::ParseIterationName(within.substr(0, within.find('/')));
    if (!iteration || within.find('/') == std::string_view::npos) continue;
    if (entry.name == ManifestIn(checkpoint::IterationPath(prefix, *iteration))) {
      found[*iteration].has_manifest = true;
    } else {
      found[*iteration].names.push_back(entry.name);
    }
  }
  return found;
}

std::vector<std::int64_t> WholeOf(const InBucketByIteration& found) {
  std::vector<std::int64_t> iterations;
  for (const auto& [iteration, objects] : found) {
    if (objects.has_manifest) iterations.push_back(iteration);
  }
  return iterations;
}

absl::Status DeleteObjects(const std::string& prefix, std::int64_t iteration, const InBucket& objects) {
  if (objects.has_manifest)
    RETURN_IF_ERROR(storage::Remove(ManifestIn(checkpoint::IterationPath(prefix, iteration))));
  for (const std::string& name : objects.names) RETURN_IF_ERROR(storage::Remove(name));
  return absl::OkStatus();
}

absl::Status ForEachFile(std::size_t count, const std::function<absl::Status(std::size_t)>& one) {
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> failed = false;
  const auto work = [&] {
    for (std::size_t i = next++; i < count && !failed; i = next++) {
      absl::Status status = state::InMemory([&] { return one(i); });
      if (status.ok()) continue;
      failed = true;
      return status;
    }
    return absl::OkStatus();
  };
  std::vector<std::future<absl::Status>> others;
  try {
    for (std::size_t i = 1; i < std::min(count, kFilesAtOnce); ++i)
      others.push_back(std::async(std::launch::async, work));
  } catch (const std::system_error&) {  // the system gives no more threads: fewer will do
  }
  absl::Status status = work();
  for (std::future<absl::Status>& other : others) status.Update(other.get());
  return status;
}

}  // namespace engine::train
