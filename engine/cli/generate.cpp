// `engine generate`: text from a checkpoint.
#include "engine/generate/generate.h"
#include "engine/base/print.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

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
  std::string tokens_in;
  bool reads_ids = false;
  int threads = 0;
  generate::GenerateOptions options;
};

// One checkpoint: the folder itself, or the newest whole one of a run or of its checkpoints.
absl::StatusOr<std::string> FindCheckpoint(const std::string& folder) {
  std::error_code error;
  if (fs::exists(fs::path(folder) / checkpoint::kManifestName, error)) return folder;
  const std::string root = train::CheckpointRootIn(folder);
  std::vector<std::string> reports;
  ASSIGN_OR_RETURN(std::optional<std::string> newest, checkpoint::FindNewestWhole(root, &reports));
  for (const std::string& report : reports) Print(stderr, "note: {}\n", report);
  if (!newest) return NotFound("{} holds no checkpoint", folder);
  return *newest;
}

absl::StatusOr<std::string> ReadAll(std::FILE* file, const std::string& name) {
  constexpr std::size_t kMost = 64 << 20;
  std::string text;
  char buffer[1 << 16];
  for (std::size_t got = 0; (got = std::fread(buffer, 1, sizeof(buffer), file)) > 0;) {
    text.append(buffer, got);
    if (text.size() > kMost) return InvalidArgument("{}: more than {} bytes of token ids", name, kMost);
  }
  if (std::ferror(file) != 0) return Unavailable("{}: cannot read: {}", name, std::strerror(errno));
  return text;
}

// What --tokens-in means: ids themselves, standard input, or a file's name.
absl::StatusOr<generate::WrittenIds> ReadIds(const std::string& given) {
  if (given == "-") {
    ASSIGN_OR_RETURN(std::string text, ReadAll(stdin, "standard input"));
    return generate::WrittenIds{"standard input", std::move(text)};
  }
  if (given.find_first_not_of("0123456789[], \t\n") == std::string::npos) {
    return generate::WrittenIds{"--tokens-in", given};
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(given.c_str(), "re"), std::fclose);
  if (file == nullptr) return NotFound("--tokens-in: cannot open {}: {}", given, std::strerror(errno));
  ASSIGN_OR_RETURN(std::string text, ReadAll(file.get(), given));
  return generate::WrittenIds{given, std::move(text)};
}

absl::Status GenerateText(const GenerateArguments& arguments) {
  generate::GenerateOptions options = arguments.options;
  if (arguments.reads_ids) {
    ASSIGN_OR_RETURN(options.prompt_ids, ReadIds(arguments.tokens_in));
  }
  ASSIGN_OR_RETURN(const std::string folder, FindCheckpoint(arguments.folder));
  ASSIGN_OR_RETURN(const state::Device device, MakeDevice({}, {.kind = "cpu", .threads = arguments.threads}));
  RETURN_IF_ERROR(generate::Generate(folder, options, device, [](std::string_view text) {
    Print(stdout, "{}", text);
    std::fflush(stdout);
  }));
  if (options.logits_file.empty()) Print(stdout, "\n");
  return absl::OkStatus();
}

}  // namespace

void AddGenerateCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("generate", "Continue a prompt with a trained model");
  const auto arguments = std::make_shared<GenerateArguments>();
  generate::GenerateOptions& options = arguments->options;
  command->add_option("folder", arguments->folder, "A run's folder, or one checkpoint")
      ->required()
      ->type_name("DIR");
  CLI::Option* prompt = command->add_option("--prompt", options.prompt, "Text to continue");
  CLI::Option* tokens_in =
      command
          ->add_option(
              "--tokens-in", arguments->tokens_in,
              "Token ids to continue instead of a text: \"464 3290\", a file of them, or - for standard "
              "input; separated by blanks, or a JSON list")
          ->type_name("IDS|FILE|-")
          ->excludes(prompt);
  CLI::Option* tokens_out =
      command->add_flag("--tokens-out", options.ids_out,
                        "Print token ids, separated by blanks; with --tokens-in no tokenizer is needed");
  command
      ->add_option("--logits", options.logits_file,
                   "Instead of continuing the prompt, write the logits that follow each of its tokens: a "
                   "file in NumPy's form (.npy), float32 [tokens, vocabulary]")
      ->type_name("FILE")
      ->excludes(tokens_out);
  CLI::Option* vocab =
      command
          ->add_option("--vocab,--vocab-file", options.vocab_file,
                       "vocab.json of the gpt2 tokenizer, where it is elsewhere than the recipe says")
          ->type_name("FILE");
  CLI::Option* merges =
      command->add_option("--merges,--merges-file", options.merges_file, "merges.txt of the same")
          ->type_name("FILE");
  vocab->needs(merges);
  merges->needs(vocab);
  command
      ->add_option(
          "--end-token", options.end_token,
          "Token id that ends the text (default: the tokenizer's end of a document, where one is used)")
      ->check(CLI::NonNegativeNumber)
      ->type_name("ID");
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
  command->footer(
      "Exit codes: 0 continued; 1 no whole checkpoint, or the model could not run; 2 wrong options");
  command->callback([arguments, exit_code, tokens_in] {
    arguments->reads_ids = tokens_in->count() > 0;
    const absl::Status status = GenerateText(*arguments);
    if (!status.ok()) Print(stderr, "engine generate: {}\n", Message(status));
    *exit_code = status.ok() ? 0 : 1;
  });
}

}  // namespace engine::cli
