// `engine data`: make a tokenised data set from text, and look at one.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "engine/base/print.h"
#include "engine/base/status.h"
#include "engine/base/units.h"
#include "engine/cli/commands.h"
#include "engine/data/entropy.h"
#include "engine/data/preprocess.h"
#include "engine/data/temporary_file.h"

namespace engine::cli {
namespace {

struct BuildArguments {
  data::PreprocessOptions options;
  recipe::Tokenizer tokenizer;
  std::string format = "jsonl";
};

int Fail(const absl::Status& status) {
  const std::string message = Message(status);
  const bool is_located = message.find(": error: ") != std::string::npos;
  Print(stderr, "{}{}\n", is_located ? "" : "error: ", message);
  return 1;
}

// ", passed over: 2 hidden, 1 link"; empty where nothing was.
std::string PassedOverText(const data::PassedOver& passed_over) {
  std::string text;
  const auto add = [&text](std::int64_t count, std::string_view what) {
    if (count == 0) return;
    text += fmt::format("{} {} {}", text.empty() ? ", passed over:" : ",", WithThousands(count), what);
  };
  add(passed_over.hidden, "hidden");
  add(passed_over.tables, "*.dat or *.u8");
  add(passed_over.links, passed_over.links == 1 ? "symbolic link" : "symbolic links");
  add(passed_over.others, "no regular file");
  return text;
}

int Build(const BuildArguments& arguments) {
  data::PreprocessOptions options = arguments.options;
  options.format = arguments.format == "text" ? data::InputFormat::kText : data::InputFormat::kJsonLines;
  if (options.format != data::InputFormat::kText && !options.document_separator.empty()) {
    return Fail(InvalidArgument("--document-separator is for --format text; a line of JSON is a document"));
  }
  const recipe::Tokenizer& files = arguments.tokenizer;
  if (files.kind != "gpt2" && !(files.vocab_file.empty() && files.merges_file.empty())) {
    return Fail(InvalidArgument("--vocab-file and --merges-file are for --tokenizer gpt2"));
  }
  if (files.kind != "file" && !(files.path.empty() && files.end_of_document.empty())) {
    return Fail(InvalidArgument("--tokenizer-path and --end-of-document are for --tokenizer file"));
  }
  const absl::StatusOr<std::unique_ptr<data::Tokenizer>> tokenizer = data::MakeTokenizer(arguments.tokenizer);
  if (!tokenizer.ok()) return Fail(tokenizer.status());
  data::RemoveTemporaryFilesOnSignals();
  const absl::StatusOr<data::PreprocessResult> result = data::Preprocess(options, **tokenizer);
  if (!result.ok()) return Fail(result.status());
  for (const data::MadeDataset& made : result->datasets) {
    Print(stdout, "{} documents, {} sequences, {} tokens ({}) from {} in {} files{}\n{}\n",
          WithThousands(made.documents), WithThousands(made.sequences), WithThousands(made.tokens),
          Name(result->type), FormatBytes(result->input_bytes), result->files,
          PassedOverText(result->passed_over), made.prefix);
  }
  return 0;
}

int Info(const std::string& prefix) {
  const absl::StatusOr<data::IndexedDataset> dataset = data::IndexedDataset::Open(prefix);
  if (!dataset.ok()) return Fail(dataset.status());
  const data::TokenScan scan = dataset->Scan();
  const std::optional<double> entropy = data::UnigramEntropy(*dataset, scan);
  Print(stdout, "prefix           {}\n", dataset->prefix());
  Print(stdout, "documents        {}\n", WithThousands(dataset->documents()));
  Print(stdout, "sequences        {}\n", WithThousands(dataset->sequences()));
  Print(stdout, "tokens           {}\n", WithThousands(dataset->tokens()));
  Print(stdout, "token type       {}\n", Name(dataset->type()));
  Print(stdout, "bytes of .bin    {}\n", WithThousands(dataset->bin_bytes()));
  Print(stdout, "smallest token   {}\n", scan.min);
  Print(stdout, "largest token    {}\n", scan.max);
  if (entropy.has_value()) {
    Print(stdout, "unigram entropy  {:.4f} nats per token\n", *entropy);
  } else {
    Print(stdout, "unigram entropy  not counted: token ids are outside 0 to 2^24 - 1\n");
  }
  return 0;
}

void AddBuild(CLI::App* parent, int* exit_code) {
  CLI::App* command =
      parent->add_subcommand("build", "Tokenise text files into PREFIX_KEY_document.bin and .idx");
  const auto arguments = std::make_shared<BuildArguments>();
  data::PreprocessOptions& options = arguments->options;
  command
      ->add_option("--input", options.inputs,
                   "Text files, plain or compressed by gzip or Zstandard, and directories of them")
      ->required()
      ->type_name("FILE");
  command->add_option("--output-prefix", options.output_prefix, "Path and first part of the data set's name")
      ->required()
      ->type_name("PREFIX");
  command->add_option("--format", arguments->format, "jsonl: one JSON object a line; text: plain text")
      ->check(CLI::IsMember({"jsonl", "text"}))
      ->capture_default_str();
  command
      ->add_option(
          "--json-key", options.json_keys,
          "Keys whose values are texts, each for a data set named after it; a.b is b in the object a")
      ->type_name("KEY")
      ->capture_default_str();
  command->add_option("--document-separator", options.document_separator,
                      "Line between the documents of plain text; without it each file is a document");
  command->add_flag("--append-eod", options.append_eod, "End each document with the end-of-document token");
  options.workers = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  command
      ->add_option("--workers", options.workers,
                   "Threads that tokenise; the data set is the same with any number of them")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command
      ->add_option("--tokenizer", arguments->tokenizer.kind,
                   "byte, gpt2, or file: the one of --tokenizer-path")
      ->check(CLI::IsMember({"byte", "gpt2", "file"}))
      ->capture_default_str();
  command->add_option("--vocab-file", arguments->tokenizer.vocab_file, "vocab.json of the gpt2 tokenizer")
      ->type_name("FILE");
  command->add_option("--merges-file", arguments->tokenizer.merges_file, "merges.txt of the gpt2 tokenizer")
      ->type_name("FILE");
  command
      ->add_option("--tokenizer-path", arguments->tokenizer.path,
                   "tokenizer.json, SentencePiece model, file of tiktoken's ranks, or a Hugging Face folder")
      ->type_name("FILE");
  command->add_option("--end-of-document", arguments->tokenizer.end_of_document,
                      "The token of --append-eod, where the tokenizer's files do not tell it");
  command->footer(
      "Exit codes: 0 written; 1 the text, the tokenizer or the disk will not do; 2 wrong options");
  command->callback([arguments, exit_code] { *exit_code = Build(*arguments); });
}

void AddInfo(CLI::App* parent, int* exit_code) {
  CLI::App* command = parent->add_subcommand("info", "Check a data set and print its sizes and entropy");
  const auto prefix = std::make_shared<std::string>();
  command->add_option("prefix", *prefix, "Data set, without .bin or .idx")->required()->type_name("PREFIX");
  command->footer("Exit codes: 0 whole; 1 no data set, or a damaged one; 2 wrong options");
  command->callback([prefix, exit_code] { *exit_code = Info(*prefix); });
}

}  // namespace

void AddDataCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("data", "Make a tokenised data set from text, or look at one");
  command->require_subcommand(1);
  AddBuild(command, exit_code);
  AddInfo(command, exit_code);
}

}  // namespace engine::cli
