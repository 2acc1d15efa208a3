// `engine data`: make a tokenised data set from text, and look at one.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/base/core_limit.h"
#include "engine/base/print.h"
#include "engine/base/status.h"
#include "engine/base/units.h"
#include "engine/cli/commands.h"
#include "engine/cli/data_chat.h"
#include "engine/cli/data_show.h"
#include "engine/cli/progress_line.h"
#include "engine/cli/recipe_options.h"
#include "engine/cli/stop_signals.h"
#include "engine/data/chat_build.h"
#include "engine/data/entropy.h"
#include "engine/data/indexed_format.h"
#include "engine/data/preprocess.h"
#include "engine/data/rearrange.h"
#include "engine/data/remote_output.h"
#include "engine/data/temporary_file.h"
#include "engine/data/unfinished_build.h"
#include "engine/storage/location.h"
#include "engine/storage/storage.h"

namespace engine::cli {
namespace {

struct BuildArguments {
  data::PreprocessOptions options;
  recipe::Tokenizer tokenizer;
  std::string format = "jsonl";
  ChatArguments chat;
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

absl::StatusOr<std::unique_ptr<data::Tokenizer>> TokenizerOf(const recipe::Tokenizer& files) {
  if (files.kind != "gpt2" && !(files.vocab_file.empty() && files.merges_file.empty())) {
    return InvalidArgument("--vocab-file and --merges-file are for --tokenizer gpt2");
  }
  if (files.kind != "file" &&
      !(files.path.empty() && files.beginning_of_document.empty() && files.end_of_document.empty())) {
    return InvalidArgument(
        "--tokenizer-path, --beginning-of-document and --end-of-document are for --tokenizer file");
  }
  return data::MakeTokenizer(files);
}

// "1:02:03", "2:03".
std::string Clock(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

// The share is of the inputs' bytes as they are on disk, and so is the time left; MB are of text.
std::string ProgressText(const data::BuildProgress& progress, double seconds) {
  const std::int64_t read = progress.read_bytes - progress.resumed_bytes;
  const std::int64_t left = progress.input_bytes - progress.read_bytes;
  std::string text = fmt::format("{:.1f} %, {:.1f} MB/s",
                                 100 * static_cast<double>(progress.read_bytes) /
                                     static_cast<double>(std::max(progress.input_bytes, std::int64_t{1})),
                                 static_cast<double>(progress.text_bytes) / 1e6 / seconds);
  if (read > 0 && left >= 0)
    text += fmt::format(", {} left", Clock(seconds * static_cast<double>(left) / static_cast<double>(read)));
  return text + fmt::format("; {} documents, {} tokens of {} of text; {} of {} files",
                            WithThousands(progress.documents),
                            FormatCount(static_cast<double>(progress.tokens)),
                            FormatBytes(progress.text_bytes), progress.finished_inputs, progress.inputs);
}

// Shows how far the build has come on `line`, and lets signals stop it.
void Watch(ProgressLine* line, data::BuildOptions* options) {
  const auto begin = std::chrono::steady_clock::now();
  options->progress = [line, begin](const data::BuildProgress& progress) {
    if (!line->IsDue()) return;
    line->Show(ProgressText(progress,
                            std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()));
  };
  options->stopped = [] { return StopSignals::Came() != 0; };
}

// Why a build has failed, or was stopped, and how it goes on.
int FailBuild(const absl::Status& status, const std::string& output_prefix) {
  const int exit_code = absl::IsCancelled(status) ? 128 + StopSignals::Came() : Fail(status);
  const std::string unfinished = data::UnfinishedPath(output_prefix);
  std::error_code ignored;
  if (absl::IsCancelled(status)) Print(stderr, "note: stopped\n");
  if (!absl::IsFailedPrecondition(status) && std::filesystem::exists(unfinished, ignored)) {
    Print(stderr,
          "note: what is done is kept in {}: the same command goes on from there, and begins anew with "
          "--restart\n",
          unfinished);
  }
  return exit_code;
}

absl::Status CheckOptions(const BuildArguments& arguments) {
  const data::PreprocessOptions& options = arguments.options;
  const bool is_chat = arguments.format == "chat";
  if (!is_chat && arguments.chat.any())
    return InvalidArgument("--chat-template, --loss-on, --chat-key and --chat-time are for --format chat");
  if (is_chat && options.json_keys != data::PreprocessOptions().json_keys)
    return InvalidArgument("--json-key is not for --format chat; --chat-key names the keys of conversations");
  if (arguments.format != "text" && options.document_separator.has_value()) {
    return InvalidArgument(
        "--document-separator is for --format text; a line of JSON, or a row of Parquet, is a document");
  }
  return absl::OkStatus();
}

// "36 MiB in 2 files, passed over: 1 hidden"
std::string InputsText(const data::BuildResult& result) {
  std::int64_t bytes = 0;
  for (const data::ReadInput& input : result.inputs) bytes += input.bytes;
  return fmt::format("{} in {} files{}", FormatBytes(bytes), result.inputs.size(),
                     PassedOverText(result.passed_over));
}

void PrintDuplicates(const data::BuildResult& result, bool dropped) {
  std::int64_t duplicates = 0;
  for (const data::ReadInput& input : result.inputs) duplicates += input.duplicates;
  if (duplicates == 0) return;
  Print(stdout, "{} documents stood before{}\n", WithThousands(duplicates),
        dropped ? ", and are left out" : "; --drop-duplicates leaves them out");
}

// A finished build: its result, and the lines that are printed of its data sets.
struct Built {
  data::BuildResult result;
  std::string text;
};

// The end of the line on a data set of that name, where the build replaces one. A data set in a bucket is asked for before it is published;
// a key that may be written and not read leaves that unknown.
std::string ReplacesText(const data::MadeDataset& made, const std::string& name) {
  constexpr const char* kReplaces = "; replaces the data set of this name";
  if (!storage::IsUrl(name)) return made.replaces ? kReplaces : "";
  const absl::Status there = storage::Open(data::IdxPath(name)).status();
  if (there.ok()) return kReplaces;
  if (absl::IsNotFound(there)) return "";
  return fmt::format("; whether it replaces a data set of this name is not known: {}", Message(there));
}

absl::StatusOr<Built> BuildText(const data::PreprocessOptions& options, const data::Tokenizer& tokenizer,
                                const std::string& published) {
  Built built;
  ASSIGN_OR_RETURN(built.result, data::Preprocess(options, tokenizer));
  for (const data::MadeDataset& made : built.result.datasets) {
    const std::string name = data::PublishedName(made.prefix, options.output_prefix, published);
    built.text +=
        fmt::format("{} documents, {} sequences, {} tokens ({}) from {}{}\n{}\n",
                    WithThousands(made.documents), WithThousands(made.sequences), WithThousands(made.tokens),
                    Name(built.result.type), InputsText(built.result), ReplacesText(made, name), name);
  }
  return built;
}

absl::StatusOr<Built> BuildChat(const Chat& chat, const data::Tokenizer& tokenizer,
                                const std::string& published) {
  ASSIGN_OR_RETURN(const data::ChatBuildResult made,
                   data::BuildConversations(chat.options, chat.chat_template, tokenizer));
  Built built = {
      made, fmt::format("{} conversations, {} tokens ({}), {} of them learned, from {}, by {}{}\n",
                        WithThousands(made.datasets[0].documents), WithThousands(made.datasets[0].tokens),
                        Name(made.type), WithThousands(made.learned), InputsText(made),
                        chat.chat_template.source(), ReplacesText(made.datasets[0], published))};
  if (made.nothing_to_learn > 0)
    built.text += fmt::format("{} conversations have nothing to learn: no turn of the assistant\n",
                              WithThousands(made.nothing_to_learn));
  for (const data::MadeDataset& dataset : made.datasets)
    built.text += data::PublishedName(dataset.prefix, chat.options.output_prefix, published) + "\n";
  return built;
}

absl::StatusOr<int> Build(const BuildArguments& arguments) {
  RETURN_IF_ERROR(CheckOptions(arguments));
  data::PreprocessOptions options = arguments.options;
  options.tokenizer = arguments.tokenizer;
  options.format = arguments.format == "text"      ? data::InputFormat::kText
                   : arguments.format == "parquet" ? data::InputFormat::kParquet
                                                   : data::InputFormat::kJsonLines;
  ASSIGN_OR_RETURN(const std::unique_ptr<data::Tokenizer> tokenizer, TokenizerOf(arguments.tokenizer));
  ProgressLine line;
  Watch(&line, &options);
  std::optional<Chat> chat;
  if (arguments.format == "chat") {
    ASSIGN_OR_RETURN(chat, PrepareChat(arguments.chat, options));
  }
  const StopSignals signals;
  const std::string& published = arguments.options.output_prefix;
  Built built;
  const absl::Status status = data::MakeAt(published, [&](const std::string& prefix) {
    options.output_prefix = prefix;
    if (chat.has_value()) chat->options.output_prefix = prefix;
    ASSIGN_OR_RETURN(built, chat.has_value() ? BuildChat(*chat, *tokenizer, published)
                                             : BuildText(options, *tokenizer, published));
    return absl::OkStatus();
  });
  line.Clear();
  if (!status.ok()) return FailBuild(status, options.output_prefix);
  if (built.result.resumed_documents > 0)
    Print(stdout, "{} documents had been read before\n", WithThousands(built.result.resumed_documents));
  Print(stdout, "{}", built.text);
  PrintDuplicates(built.result, options.drop_duplicates);
  return 0;
}

// The text on one line, cut off where it is long.
std::string ShownText(std::string text) {
  constexpr std::size_t kMostBytes = 400;
  std::size_t end = std::min(text.size(), kMostBytes);
  while (end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80) --end;
  std::string shown;
  for (const char c : text.substr(0, end)) shown += c == '\n' ? "⏎" : c == '\t' ? "⇥" : std::string(1, c);
  return shown + (end < text.size() ? " …" : "");
}

// Documents that lie evenly in the data set, with their ids and, by a tokenizer, their text.
absl::Status PrintSample(const data::IndexedDataset& dataset, std::int64_t count,
                         const data::Tokenizer* tokenizer) {
  constexpr std::size_t kMostIds = 16;
  const std::int64_t shown = std::min(count, dataset.documents());
  for (std::int64_t i = 0; i < shown; ++i) {
    const std::int64_t document = i * dataset.documents() / shown;
    const std::int64_t first = dataset.first_sequence(document);
    const std::int64_t last = dataset.first_sequence(document + 1);
    Print(stdout, "\ndocument {}: {} {}\n", document, last - first,
          last - first == 1 ? "sequence" : "sequences");
    for (std::int64_t sequence = first; sequence < last; ++sequence) {
      std::vector<std::int32_t> ids(
          static_cast<std::size_t>(dataset.lengths()[static_cast<std::size_t>(sequence)]));
      RETURN_IF_ERROR(dataset.Read(sequence, 0, ids));
      const std::size_t some = std::min(ids.size(), kMostIds);
      Print(stdout, "  {} tokens: {}{}\n", ids.size(),
            fmt::join(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(some), " "),
            some < ids.size() ? " …" : "");
      if (tokenizer == nullptr) continue;
      ASSIGN_OR_RETURN(const std::string text, tokenizer->Decode(ids));
      Print(stdout, "  {}\n", ShownText(text));
    }
  }
  return absl::OkStatus();
}

struct InfoArguments {
  std::string prefix;
  std::int64_t sample = 0;
  recipe::Tokenizer tokenizer = {.kind = "none"};
};

int Info(const InfoArguments& arguments) {
  const absl::StatusOr<data::IndexedDataset> dataset = data::IndexedDataset::Open(arguments.prefix);
  if (!dataset.ok()) return Fail(dataset.status());
  std::unique_ptr<data::Tokenizer> tokenizer;
  if (arguments.tokenizer.kind != "none") {
    absl::StatusOr<std::unique_ptr<data::Tokenizer>> made = TokenizerOf(arguments.tokenizer);
    if (!made.ok()) return Fail(made.status());
    tokenizer = *std::move(made);
  }
  const absl::StatusOr<data::TokenScan> scan = dataset->Scan();
  if (!scan.ok()) return Fail(scan.status());
  const absl::StatusOr<std::optional<double>> entropy = data::UnigramEntropy(*dataset, *scan);
  if (!entropy.ok()) return Fail(entropy.status());
  Print(stdout, "prefix           {}\n", dataset->prefix());
  Print(stdout, "documents        {}\n", WithThousands(dataset->documents()));
  Print(stdout, "sequences        {}\n", WithThousands(dataset->sequences()));
  Print(stdout, "tokens           {}\n", WithThousands(dataset->tokens()));
  Print(stdout, "token type       {}\n", Name(dataset->type()));
  Print(stdout, "bytes of .bin    {}\n", WithThousands(dataset->bin_bytes()));
  Print(stdout, "smallest token   {}\n", scan->min);
  Print(stdout, "largest token    {}\n", scan->max);
  if (entropy->has_value()) {
    Print(stdout, "unigram entropy  {:.4f} nats per token\n", **entropy);
  } else {
    Print(stdout, "unigram entropy  not counted: token ids are outside 0 to 2^24 - 1\n");
  }
  const absl::Status printed = PrintSample(*dataset, arguments.sample, tokenizer.get());
  return printed.ok() ? 0 : Fail(printed);
}

// One line for each; all are looked at.
int Verify(const std::vector<std::string>& prefixes, std::int64_t vocab) {
  int exit_code = 0;
  for (const std::string& prefix : prefixes) {
    const absl::StatusOr<data::IndexedDataset> dataset = data::IndexedDataset::Open(prefix);
    if (!dataset.ok()) {
      exit_code = Fail(dataset.status());
      continue;
    }
    const absl::StatusOr<data::TokenScan> scan = dataset->Scan();
    if (!scan.ok()) {
      exit_code = Fail(scan.status());
      continue;
    }
    if (dataset->tokens() > 0 && (scan->min < 0 || (vocab > 0 && scan->max >= vocab))) {
      const bool low = scan->min < 0;
      exit_code =
          Fail(InvalidArgument("{}: token {} at position {} is outside {}", prefix,
                               low ? scan->min : scan->max, low ? scan->first_min : scan->first_max,
                               vocab > 0 ? fmt::format("a vocabulary of {}", vocab) : "all vocabularies"));
      continue;
    }
    Print(stdout, "{}: whole, {} documents, {} tokens\n", prefix, WithThousands(dataset->documents()),
          WithThousands(dataset->tokens()));
  }
  return exit_code;
}

using MadeDatasets = absl::StatusOr<std::vector<data::MadeDataset>>;

int PrintMade(const std::string& output, const std::function<MadeDatasets(const std::string& prefix)>& make) {
  MadeDatasets made;
  const absl::Status status = data::MakeAt(output, [&](const std::string& prefix) {
    made = make(prefix);
    if (!made.ok()) return made.status();
    for (data::MadeDataset& dataset : *made)
      dataset.prefix = data::PublishedName(dataset.prefix, prefix, output);
    return absl::OkStatus();
  });
  if (!status.ok()) return Fail(status);
  for (const data::MadeDataset& dataset : *made) {
    Print(stdout, "{} documents, {} sequences, {} tokens\n{}\n", WithThousands(dataset.documents),
          WithThousands(dataset.sequences), WithThousands(dataset.tokens), dataset.prefix);
  }
  return 0;
}

void AddTokenizer(CLI::App* command, recipe::Tokenizer* tokenizer) {
  command->add_option("--tokenizer", tokenizer->kind, "byte, gpt2, or file: the one of --tokenizer-path")
      ->check(CLI::IsMember({"byte", "gpt2", "file"}))
      ->capture_default_str();
  command->add_option("--vocab-file", tokenizer->vocab_file, "vocab.json of the gpt2 tokenizer")
      ->type_name("FILE");
  command->add_option("--merges-file", tokenizer->merges_file, "merges.txt of the gpt2 tokenizer")
      ->type_name("FILE");
  command
      ->add_option("--tokenizer-path", tokenizer->path,
                   "tokenizer.json, SentencePiece model, file of tiktoken's ranks, or a Hugging Face folder")
      ->type_name("FILE");
}

void AddBuild(CLI::App* parent, int* exit_code) {
  CLI::App* command =
      parent->add_subcommand("build", "Tokenise text files into PREFIX_KEY_document.bin and .idx");
  const auto arguments = std::make_shared<BuildArguments>();
  data::PreprocessOptions& options = arguments->options;
  command
      ->add_option(
          "--input", options.inputs,
          "Text files, plain or compressed by gzip or Zstandard, Parquet files, and directories of them; "
          "s3:// and http(s):// too")
      ->required()
      ->type_name("FILE");
  command->add_option("--output-prefix", options.output_prefix, "Path and first part of the data set's name")
      ->required()
      ->type_name("PREFIX");
  command
      ->add_option(
          "--format", arguments->format,
          "jsonl: one JSON object a line, or rows of Parquet; parquet: these alone; text: plain text; "
          "chat: one conversation a line of JSON, or a row of Parquet, into PREFIX and PREFIX_loss_mask")
      ->check(CLI::IsMember({"jsonl", "parquet", "text", "chat"}))
      ->capture_default_str();
  command
      ->add_option(
          "--json-key", options.json_keys,
          "Keys (columns of Parquet) whose values are texts, each for a data set named after it; a.b is b "
          "in the object a")
      ->type_name("KEY")
      ->capture_default_str();
  command->add_option(
      "--document-separator", options.document_separator,
      "Line between the documents of plain text, \"\" for a blank one; without it each file is a "
      "document");
  command->add_flag("--drop-duplicates", options.drop_duplicates,
                    "Leave out documents that stood before, in any of the inputs");
  command->add_flag("--prepend-bos", options.prepend_bos,
                    "Begin each document with the tokenizer's beginning-of-document token, where a chat "
                    "template has not written it");
  command->add_flag("--append-eod", options.append_eod, "End each document with the end-of-document token");
  AddChatOptions(command, &arguments->chat);
  options.workers = CoresOfProcess();
  command
      ->add_option("--workers", options.workers,
                   "Threads that tokenise; the data set is the same with any number of them")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_flag("--restart", options.restart,
                    "Throw away what a build of the same PREFIX, killed or stopped, has left unfinished");
  AddTokenizer(command, &arguments->tokenizer);
  command->add_option("--beginning-of-document", arguments->tokenizer.beginning_of_document,
                      "The token of --prepend-bos, where it is not the one that the tokenizer's files tell");
  command->add_option("--end-of-document", arguments->tokenizer.end_of_document,
                      "The token of --append-eod, where it is not the one that the tokenizer's files tell");
  command->footer(
      "A build that was killed or stopped goes on where it was when it is started again.\n"
      "Exit codes: 0 written; 1 the text, the tokenizer or the disk will not do; 2 wrong options; 128 + n a "
      "stop by signal n");
  command->callback([arguments, exit_code] {
    const absl::StatusOr<int> code = Build(*arguments);
    *exit_code = code.ok() ? *code : Fail(code.status());
  });
}

void AddInfo(CLI::App* parent, int* exit_code) {
  CLI::App* command = parent->add_subcommand("info", "Check a data set and print its sizes and entropy");
  const auto arguments = std::make_shared<InfoArguments>();
  command->add_option("prefix", arguments->prefix, "Data set, without .bin or .idx")
      ->required()
      ->type_name("PREFIX");
  command
      ->add_option("--sample", arguments->sample,
                   "So many documents, evenly from all, with their ids and texts")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40));
  AddTokenizer(command, &arguments->tokenizer);
  command->footer("Exit codes: 0 whole; 1 no data set, or a damaged one; 2 wrong options");
  command->callback([arguments, exit_code] { *exit_code = Info(*arguments); });
}

void AddShow(CLI::App* parent, int* exit_code) {
  CLI::App* command =
      parent->add_subcommand("show", "Print a sample with what of it is learned, and where documents begin");
  const auto arguments = std::make_shared<ShowArguments>();
  command
      ->add_option("what", arguments->what,
                   "A recipe, whose samples are shown as training takes them, or a data set")
      ->required()
      ->type_name("RECIPE|PREFIX");
  command->add_option("--sample", arguments->sample, "Which sample, or of a data set which sequence")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40))
      ->capture_default_str();
  command->add_option("--split", arguments->split, "Of a recipe: train, validation or test")
      ->check(CLI::IsMember({"train", "validation", "test"}))
      ->capture_default_str();
  AddTokenizer(command, &arguments->tokenizer);
  AddLoadOptions(command, &arguments->load);
  command->footer(
      "Exit codes: 0 printed; 1 the recipe, the data or the tokenizer will not do; 2 wrong options");
  command->callback([arguments, exit_code] {
    const absl::StatusOr<int> code = Show(*arguments);
    *exit_code = code.ok() ? *code : Fail(code.status());
  });
}

struct ManyArguments {
  std::vector<std::string> prefixes;
  std::string output;
  std::int64_t vocab = 0;
  int parts = 2;
};

void AddVerify(CLI::App* parent, int* exit_code) {
  CLI::App* command = parent->add_subcommand("verify", "Read data sets whole and say whether they are");
  const auto arguments = std::make_shared<ManyArguments>();
  command->add_option("prefix", arguments->prefixes, "Data sets, without .bin or .idx")
      ->required()
      ->type_name("PREFIX");
  command->add_option("--vocab", arguments->vocab, "Tokens have to be below this number")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 31));
  command->footer("Exit codes: 0 all are whole; 1 one is not, or not there; 2 wrong options");
  command->callback([arguments, exit_code] { *exit_code = Verify(arguments->prefixes, arguments->vocab); });
}

void AddMerge(CLI::App* parent, int* exit_code) {
  CLI::App* command = parent->add_subcommand("merge", "Make one data set of several, one behind the other");
  const auto arguments = std::make_shared<ManyArguments>();
  command->add_option("prefix", arguments->prefixes, "Data sets, without .bin or .idx")
      ->required()
      ->type_name("PREFIX");
  command->add_option("--output-prefix", arguments->output, "Path and name of the new data set")
      ->required()
      ->type_name("PREFIX");
  command->footer("Exit codes: 0 written; 1 the data sets or the disk will not do; 2 wrong options");
  command->callback([arguments, exit_code] {
    data::RemoveTemporaryFilesOnSignals();
    *exit_code = PrintMade(arguments->output, [&](const std::string& output) -> MadeDatasets {
      ASSIGN_OR_RETURN(data::MadeDataset made, data::MergeDatasets(arguments->prefixes, output));
      return std::vector{std::move(made)};
    });
  });
}

void AddSplit(CLI::App* parent, int* exit_code) {
  CLI::App* command =
      parent->add_subcommand("split", "Cut a data set between documents into parts of about as many tokens");
  const auto arguments = std::make_shared<ManyArguments>();
  command->add_option("prefix", arguments->prefixes, "Data set, without .bin or .idx")
      ->required()
      ->expected(1)
      ->type_name("PREFIX");
  command->add_option("--parts", arguments->parts, "How many")
      ->check(CLI::Range(1, data::kMostSplitParts))
      ->capture_default_str();
  command
      ->add_option("--output-prefix", arguments->output,
                   "Path and name of the parts, before _0, _1 and so on")
      ->required()
      ->type_name("PREFIX");
  command->footer("Exit codes: 0 written; 1 the data set or the disk will not do; 2 wrong options");
  command->callback([arguments, exit_code] {
    data::RemoveTemporaryFilesOnSignals();
    *exit_code = PrintMade(arguments->output, [&](const std::string& output) {
      return data::SplitDataset(arguments->prefixes.front(), arguments->parts, output);
    });
  });
}

}  // namespace

void AddDataCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("data", "Make tokenised data sets from text, and look at them");
  command->require_subcommand(1);
  AddBuild(command, exit_code);
  AddInfo(command, exit_code);
  AddShow(command, exit_code);
  AddVerify(command, exit_code);
  AddMerge(command, exit_code);
  AddSplit(command, exit_code);
}

}  // namespace engine::cli
