// engine checkpoint info DIR: what a checkpoint holds, or which checkpoints a run or a folder has.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "engine/base/print.h"
#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/base/units.h"
#include "engine/checkpoint/layout.h"
#include "engine/checkpoint/read.h"
#include "engine/checkpoint/store.h"
#include "engine/cli/commands.h"
#include "engine/storage/location.h"
#include "engine/train/bucket.h"
#include "engine/train/bucket_copy.h"
#include "engine/train/run.h"

namespace engine::cli {
namespace {

using Json = nlohmann::json;

struct InfoOptions {
  std::string folder;
  std::string format = "text";
  bool tensors = false;
  bool verify = false;
};

// What there is to say of a checkpoint, wherever it is.
struct Found {
  std::string folder;
  checkpoint::Manifest manifest;

  std::int64_t bytes() const {
    std::int64_t sum = 0;
    for (const checkpoint::FileInfo& file : manifest.files) sum += file.bytes;
    return sum;
  }
};

absl::StatusOr<Found> OpenChecked(const std::string& folder, bool verify) {
  ASSIGN_OR_RETURN(const checkpoint::Reader reader, checkpoint::Reader::Open(folder));
  if (verify) RETURN_IF_ERROR(reader.Verify());
  return Found{folder, reader.manifest()};
}

// The files of one in a bucket come to this machine only where their checksums are asked for.
absl::StatusOr<Found> OpenInBucket(const std::string& prefix, std::int64_t iteration, bool verify) {
  const std::string folder = checkpoint::IterationPath(prefix, iteration);
  ASSIGN_OR_RETURN(checkpoint::Manifest manifest, train::ReadManifestInBucket(prefix, iteration));
  if (verify) RETURN_IF_ERROR(train::VerifyInBucket(prefix, iteration));
  return Found{folder, std::move(manifest)};
}

Json Describe(const Found& found, bool with_tensors) {
  const checkpoint::Metadata& metadata = found.manifest.metadata;
  Json json = {{"folder", found.folder},
               {"whole", true},
               {"iteration", metadata.iteration},
               {"consumed_samples", metadata.consumed_samples},
               {"adam_step", metadata.optimizer_steps},
               {"seed", metadata.seed},
               {"mesh", metadata.mesh},
               {"plan_hash", metadata.plan_hash},
               {"engine_version", metadata.engine_version},
               {"fingerprints", metadata.fingerprints},
               {"bytes", found.bytes()},
               {"files", found.manifest.files.size()},
               {"tensor_count", found.manifest.tensors.size()}};
  if (!with_tensors) return json;
  json["tensors"] = Json::array();
  for (std::size_t i = 0; i < found.manifest.tensors.size(); ++i) {
    const checkpoint::TensorInfo& tensor = found.manifest.tensors[i];
    json["tensors"].push_back({{"name", tensor.name},
                               {"shape", std::vector<std::int64_t>(tensor.shape.begin(), tensor.shape.end())},
                               {"dtype", Name(tensor.dtype)},
                               {"pieces", found.manifest.pieces[i].size()}});
  }
  return json;
}

void PrintText(const Found& found, const InfoOptions& options) {
  const checkpoint::Metadata& metadata = found.manifest.metadata;
  std::string mesh;
  for (const auto& [axis, size] : metadata.mesh) mesh += fmt::format(" {}{}", axis, size);
  Print(stdout, "checkpoint        {}\n", found.folder);
  Print(stdout, "iteration         {}\n", metadata.iteration);
  Print(stdout, "consumed samples  {}\n", WithThousands(metadata.consumed_samples));
  Print(stdout, "optimizer steps   {}\n", metadata.optimizer_steps);
  Print(stdout, "seed              {}\n", metadata.seed);
  Print(stdout, "mesh             {}\n", mesh);
  Print(stdout, "plan              {}\n", metadata.plan_hash);
  Print(stdout, "engine            {}\n", metadata.engine_version);
  constexpr std::size_t kMostFingerprint = 200;  // bytes that are printed
  for (const auto& [name, fingerprint] : metadata.fingerprints) {
    Print(stdout, "read              {}: {}\n", ShownPath(name), Shown(fingerprint, kMostFingerprint));
  }
  Print(stdout, "size              {} in {} files\n", FormatBytes(found.bytes()),
        found.manifest.files.size());
  Print(stdout, "tensors           {}\n", found.manifest.tensors.size());
  Print(stdout, "state             whole ({})\n", options.verify ? "checksums match" : "sizes match");
  if (!options.tensors) return;
  for (std::size_t i = 0; i < found.manifest.tensors.size(); ++i) {
    const checkpoint::TensorInfo& tensor = found.manifest.tensors[i];
    Print(stdout, "  {:<4} {:<20} {:>4} pieces  {}\n", Name(tensor.dtype), tensor.shape.ToString(),
          found.manifest.pieces[i].size(), tensor.name);
  }
}

void Show(const Found& found, const InfoOptions& options) {
  if (options.format == "json") {
    Print(stdout, "{}\n", Describe(found, options.tensors).dump(1));
  } else {
    PrintText(found, options);
  }
}

using Opener = std::function<absl::StatusOr<Found>(std::int64_t iteration)>;

// The checkpoints below a root. False if one of them is damaged.
absl::StatusOr<bool> ShowRoot(const std::string& root, const std::vector<std::int64_t>& iterations,
                              const Opener& open, const InfoOptions& options) {
  bool all_whole = true;
  Json list = Json::array();
  for (std::int64_t iteration : iterations) {
    const std::string folder = checkpoint::IterationPath(root, iteration);
    const absl::StatusOr<Found> found = open(iteration);
    all_whole = all_whole && found.ok();
    const std::string reason = found.ok() ? "" : Message(found.status());
    if (options.format == "json") {
      list.push_back(found.ok() ? Describe(*found, options.tensors)
                                : Json{{"folder", folder}, {"whole", false}, {"reason", reason}});
    } else if (found.ok()) {
      Print(stdout, "{:>10}  {:>12}  whole\n", iteration, FormatBytes(found->bytes()));
    } else {
      Print(stdout, "{:>10}  {:>12}  damaged: {}\n", iteration, "", reason);
    }
  }
  if (options.format == "json") {
    Print(stdout, "{}\n", list.dump(1, ' ', false, Json::error_handler_t::replace));
  }
  return all_whole;
}

absl::StatusOr<bool> ShowBucket(const InfoOptions& options) {
  ASSIGN_OR_RETURN(const train::InBucketName named, train::ParseBucketName(options.folder));
  const Opener open = [&](std::int64_t iteration) {
    return OpenInBucket(named.prefix, iteration, options.verify);
  };
  if (named.iteration >= 0) {
    ASSIGN_OR_RETURN(const Found found, open(named.iteration));
    Show(found, options);
    return true;
  }
  ASSIGN_OR_RETURN(const std::vector<std::int64_t> iterations, train::ListBucket(named.prefix));
  if (iterations.empty()) return NotFound("{} holds no checkpoint", options.folder);
  return ShowRoot(named.prefix, iterations, open, options);
}

absl::StatusOr<bool> ShowFolder(const InfoOptions& options) {
  std::error_code error;
  const std::string name = std::filesystem::path(options.folder).lexically_normal().filename();
  const bool is_checkpoint =
      checkpoint::ParseIterationName(name).has_value() ||
      std::filesystem::exists(checkpoint::JoinPath(options.folder, checkpoint::kManifestName), error);
  if (is_checkpoint) {
    ASSIGN_OR_RETURN(const Found found, OpenChecked(options.folder, options.verify));
    Show(found, options);
    return true;
  }
  const std::string root = train::CheckpointRootIn(options.folder);
  ASSIGN_OR_RETURN(const std::vector<std::int64_t> iterations, checkpoint::ListIterations(root));
  if (iterations.empty()) {
    return NotFound("{} is neither a checkpoint nor a folder of checkpoints, nor a run's with any",
                    options.folder);
  }
  const Opener open = [&](std::int64_t iteration) {
    return OpenChecked(checkpoint::IterationPath(root, iteration), options.verify);
  };
  return ShowRoot(root, iterations, open, options);
}

absl::StatusOr<bool> ShowInfo(const InfoOptions& options) {
  return storage::IsUrl(options.folder) ? ShowBucket(options) : ShowFolder(options);
}

}  // namespace

void AddCheckpointCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("checkpoint", "Look into checkpoints");
  command->require_subcommand(1);
  CLI::App* info = command->add_subcommand("info", "Describe a checkpoint, or list those of a run");
  auto options = std::make_shared<InfoOptions>();
  info->add_option("folder", options->folder,
                   "a checkpoint, a run's folder, a folder of checkpoints, or s3://BUCKET/KEY")
      ->required()
      ->type_name("DIR");
  info->add_flag("--tensors", options->tensors, "list every tensor of a checkpoint");
  info->add_flag("--verify", options->verify, "compare every file's checksum");
  info->add_option("--format", options->format, "text or json")->check(CLI::IsMember({"text", "json"}));
  info->footer("Exit codes: 0 whole; 1 damaged, or no checkpoint; 2 wrong options");
  info->callback([options, exit_code] {
    const absl::StatusOr<bool> whole = ShowInfo(*options);
    if (!whole.ok()) Print(stderr, "error: {}\n", Message(whole.status()));
    *exit_code = whole.ok() && *whole ? 0 : 1;
  });
}

}  // namespace engine::cli
