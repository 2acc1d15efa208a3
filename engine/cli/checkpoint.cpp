// engine checkpoint info DIR: what a checkpoint holds, or which checkpoints a run or a folder has.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
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

absl::StatusOr<checkpoint::Reader> OpenChecked(const std::string& folder, bool verify) {
  ASSIGN_OR_RETURN(checkpoint::Reader reader, checkpoint::Reader::Open(folder));
  if (verify) RETURN_IF_ERROR(reader.Verify());
  return reader;
}

Json Describe(const checkpoint::Reader& reader, bool with_tensors) {
  const checkpoint::Metadata& metadata = reader.metadata();
  Json json = {{"folder", reader.folder()},
               {"whole", true},
               {"iteration", metadata.iteration},
               {"consumed_samples", metadata.consumed_samples},
               {"adam_step", metadata.optimizer_steps},
               {"seed", metadata.seed},
               {"mesh", metadata.mesh},
               {"plan_hash", metadata.plan_hash},
               {"engine_version", metadata.engine_version},
               {"fingerprints", metadata.fingerprints},
               {"bytes", reader.bytes()},
               {"files", reader.manifest().files.size()},
               {"tensor_count", reader.tensors().size()}};
  if (!with_tensors) return json;
  json["tensors"] = Json::array();
  for (std::size_t i = 0; i < reader.tensors().size(); ++i) {
    const checkpoint::TensorInfo& tensor = reader.tensors()[i];
    json["tensors"].push_back({{"name", tensor.name},
                               {"shape", std::vector<std::int64_t>(tensor.shape.begin(), tensor.shape.end())},
                               {"dtype", Name(tensor.dtype)},
                               {"pieces", reader.manifest().pieces[i].size()}});
  }
  return json;
}

void PrintText(const checkpoint::Reader& reader, const InfoOptions& options) {
  const checkpoint::Metadata& metadata = reader.metadata();
  std::string mesh;
  for (const auto& [axis, size] : metadata.mesh) mesh += fmt::format(" {}{}", axis, size);
  Print(stdout, "checkpoint        {}\n", reader.folder());
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
  Print(stdout, "size              {} in {} files\n", FormatBytes(reader.bytes()),
        reader.manifest().files.size());
  Print(stdout, "tensors           {}\n", reader.tensors().size());
  Print(stdout, "state             whole ({})\n", options.verify ? "checksums match" : "sizes match");
  if (!options.tensors) return;
  for (std::size_t i = 0; i < reader.tensors().size(); ++i) {
    const checkpoint::TensorInfo& tensor = reader.tensors()[i];
    Print(stdout, "  {:<4} {:<20} {:>4} pieces  {}\n", Name(tensor.dtype), tensor.shape.ToString(),
          reader.manifest().pieces[i].size(), tensor.name);
  }
}

absl::Status ShowCheckpoint(const InfoOptions& options) {
  ASSIGN_OR_RETURN(const checkpoint::Reader reader, OpenChecked(options.folder, options.verify));
  if (options.format == "json") {
    Print(stdout, "{}\n", Describe(reader, options.tensors).dump(1));
  } else {
    PrintText(reader, options);
  }
  return absl::OkStatus();
}

// False if a checkpoint of the folder is damaged.
absl::StatusOr<bool> ShowRoot(const InfoOptions& options) {
  const std::string root = train::CheckpointRootIn(options.folder);
  ASSIGN_OR_RETURN(const std::vector<std::int64_t> iterations, checkpoint::ListIterations(root));
  if (iterations.empty()) {
    return NotFound("{} is neither a checkpoint nor a folder of checkpoints, nor a run's with any",
                    options.folder);
  }
  bool all_whole = true;
  Json list = Json::array();
  for (std::int64_t iteration : iterations) {
    const std::string folder = checkpoint::IterationPath(root, iteration);
    const absl::StatusOr<checkpoint::Reader> reader = OpenChecked(folder, options.verify);
    all_whole = all_whole && reader.ok();
    const std::string reason = reader.ok() ? "" : Message(reader.status());
    if (options.format == "json") {
      list.push_back(reader.ok() ? Describe(*reader, options.tensors)
                                 : Json{{"folder", folder}, {"whole", false}, {"reason", reason}});
    } else if (reader.ok()) {
      Print(stdout, "{:>10}  {:>12}  whole\n", iteration, FormatBytes(reader->bytes()));
    } else {
      Print(stdout, "{:>10}  {:>12}  damaged: {}\n", iteration, "", reason);
    }
  }
  if (options.format == "json") {
    Print(stdout, "{}\n", list.dump(1, ' ', false, Json::error_handler_t::replace));
  }
  return all_whole;
}

absl::StatusOr<bool> ShowInfo(const InfoOptions& options) {
  std::error_code error;
  const std::string name = std::filesystem::path(options.folder).lexically_normal().filename();
  const bool is_checkpoint =
      checkpoint::ParseIterationName(name).has_value() ||
      std::filesystem::exists(checkpoint::JoinPath(options.folder, checkpoint::kManifestName), error);
  if (!is_checkpoint) return ShowRoot(options);
  RETURN_IF_ERROR(ShowCheckpoint(options));
  return true;
}

}  // namespace

void AddCheckpointCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("checkpoint", "Look into checkpoints");
  command->require_subcommand(1);
  CLI::App* info = command->add_subcommand("info", "Describe a checkpoint, or list those of a run");
  auto options = std::make_shared<InfoOptions>();
  info->add_option("folder", options->folder, "a checkpoint, a run's folder, or a folder of checkpoints")
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
