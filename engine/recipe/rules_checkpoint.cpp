#include <string>

#include "engine/base/status.h"
#include "engine/recipe/rules.h"
#include "engine/storage/location.h"

namespace engine::recipe {
namespace {

void UploadsGoToABucket(const RuleContext& c) {
  const std::string& upload = c.recipe.checkpoint.upload;
  if (upload.empty()) return;
  constexpr const char* kHint = "s3://BUCKET/KEY; a folder is given by --out";
  absl::Status status = storage::CheckPrefix(upload);
  if (status.ok() && storage::Locate(upload)->kind != storage::Kind::kS3)
    status = InvalidArgument("{} is no place for checkpoints", upload);
  if (!status.ok()) c.Error({"checkpoint.upload"}, Message(status), kHint);
}

// The folder has the newest alone then.
void UploadedCheckpointsAreNotGoneBackTo(const RuleContext& c) {
  if (c.recipe.checkpoint.upload.empty() || !c.recipe.guard.rewinds()) return;
  c.Error(
      {"checkpoint.upload", "guard.on_nonfinite", "guard.on_spike", "guard.rerun"},
      "[guard] may go back to earlier checkpoints, which are in the bucket and no more in the run's folder",
      "checkpoint.upload = \"\"; or guard.on_nonfinite = \"stop\" or \"skip\", without guard.on_spike and "
      "guard.rerun");
}

}  // namespace

std::vector<Rule> CheckpointRules() {
  return {
      {{"checkpoint.upload"}, UploadsGoToABucket},
      {{"checkpoint.upload", "guard.on_nonfinite", "guard.on_spike", "guard.rerun"},
       UploadedCheckpointsAreNotGoneBackTo},
  };
}

}  // namespace engine::recipe
