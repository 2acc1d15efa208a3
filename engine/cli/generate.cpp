// `engine generate`: text from a checkpoint.
#include "engine/train/generate.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include "engine/checkpoint/layout.h"
#include "engine/checkpoint/store.h"
#include "engine/cli/commands.h"
#include "engine/cli/device.h"
#include "engine/train/run.h"

namespace engine::cli {
namespace {

namespace fs = std::filesystem;

struct GenerateArguments {
  std::string folder;
  int threads = 0;
  train::GenerateOptions options;
};

// One checkpoint: the folder itself, or the newest whole one of a run or of its checkpoints.
absl::StatusOr<std::string> FindCheckpoint(const std::string& folder) {
  std::error_code error;
  if (fs::exists(fs::path(folder) / checkpoint::kManifestName, error)) return folder;
  const std::string of_run = train::CheckpointRoot(folder);
  const std::string root = fs::is_directory(of_run, error) ? of_run : folder;
  std::vector<std::string> reports;
  ASSIGN_OR_RETURN(std::optional<std::string> newest, checkpoint::FindNewestWhole(root, &reports));
  for (const std::string& report : reports) fmt::print(stderr, "note: {}\n", report);
  if (!newest) return NotFound("{} holds no checkpoint", folder);
  return *newest;
}

absl::Status GenerateText(const GenerateArguments& arguments) {
  ASSIGN_OR_RETURN(const std::string folder, FindCheckpoint(arguments.folder));
  ASSIGN_OR_RETURN(const train::Device device, MakeDevice({}, {.kind = "cpu", .threads = arguments.threads}));
  RETURN_IF_ERROR(train::Generate(folder, arguments.options, device, [](std::string_view text) {
    fmt::print("{}", text);
    std::fflush(stdout);
  }));
  fmt::print("\n");
  return absl::OkStatus();
}

}  // namespace

void AddGenerateCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("generate", "Continue a prompt with a trained model");
  const auto arguments = std::make_shared<GenerateArguments>();
  train::GenerateOptions& options = arguments->options;
  command->add_option("folder", arguments->folder, "A run's folder, or one checkpoint")
      ->required()
      ->type_name("DIR");
  command->add_option("--prompt", options.prompt, "Text to continue");
  command->add_option("--tokens", options.tokens, "New tokens at most")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->capture_default_str();
  command->add_option("--temperature", options.temperature, "0: always the likeliest token")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  command->add_option("--top-k", options.top_k, "Draw among the k likeliest tokens; 0: among all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--seed", options.seed, "Of the draws")->capture_default_str();
  command->add_option("--threads", arguments->threads, "Threads (default: all cores)")
      ->check(CLI::Range(1, 4096));
  command->callback([arguments, exit_code] {
    const absl::Status status = GenerateText(*arguments);
    if (!status.ok()) fmt::print(stderr, "engine generate: {}\n", Message(status));
    *exit_code = status.ok() ? 0 : 1;
  });
}

}  // namespace engine::cli
