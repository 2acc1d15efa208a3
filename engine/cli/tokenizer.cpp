// `engine tokenize`: text to token ids and back. `engine tokenizer info`: what a tokenizer's files say.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/print.h"
#include "engine/base/shown.h"
#include "engine/base/status.h"
#include "engine/base/units.h"
#include "engine/cli/commands.h"
#include "engine/data/token_ids.h"
#include "engine/data/tokenizer/names.h"
#include "engine/data/tokenizer/pipeline.h"
#include "engine/data/tokenizer/read_files.h"

namespace engine::cli {
namespace {

struct TokenizeArguments {
  std::string tokenizer;
  std::string input = "-";
  std::string format = "text";
  bool decode = false;
  bool special = false;
  bool add_template = false;
};

int FailTokenizer(const absl::Status& status) {
  const std::string message = Message(status);
  const bool is_located = message.find(": error: ") != std::string::npos;
  Print(stderr, "{}{}\n", is_located ? "" : "error: ", message);
  return 1;
}

absl::StatusOr<std::unique_ptr<tokenizer::Pipeline>> OpenPipeline(const std::string& path) {
  ASSIGN_OR_RETURN(tokenizer::Description description, tokenizer::ReadTokenizer(path));
  return tokenizer::Pipeline::Make(std::move(description));
}

struct CloseFile {
  void operator()(std::FILE* file) const {
    if (file != stdin) std::fclose(file);
  }
};
using OpenFile = std::unique_ptr<std::FILE, CloseFile>;

absl::StatusOr<OpenFile> OpenInput(const std::string& path) {
  if (path == "-") return OpenFile(stdin);
  ASSIGN_OR_RETURN(const int descriptor, OpenRegular(path, 0));
  return OpenFile(fdopen(descriptor, "rb"));
}

using TakeInput = std::function<absl::Status(std::string_view, std::int64_t)>;

absl::Status TakeWhole(std::FILE* file, const TakeInput& take) {
  std::string text;
  char buffer[1 << 16];
  for (std::size_t got = 0; (got = std::fread(buffer, 1, sizeof buffer, file)) > 0;) text.append(buffer, got);
  return std::ferror(file) != 0 ? absl::OkStatus() : take(text, 1);
}

// Gives each line, without its end.
absl::Status TakeLines(std::FILE* file, const TakeInput& take) {
  char* line = nullptr;
  std::size_t capacity = 0;
  absl::Status status;
  for (std::int64_t number = 1; status.ok(); ++number) {
    const ssize_t length = getline(&line, &capacity, file);
    if (length < 0) break;
    std::string_view text(line, static_cast<std::size_t>(length));
    if (text.ends_with('\n')) text.remove_suffix(1);
    status = take(text, number);
  }
  std::free(line);
  return status;
}

absl::Status TakeInputs(std::FILE* file, const std::string& name, bool whole, const TakeInput& take) {
  RETURN_IF_ERROR((whole ? TakeWhole : TakeLines)(file, take));
  return std::ferror(file) != 0 ? SystemError("read", name, errno) : absl::OkStatus();
}

absl::Status EncodeInput(const tokenizer::Pipeline& pipeline, const TokenizeArguments& arguments,
                         const std::string& name, std::string_view input, std::int64_t line) {
  std::string decoded;
  if (arguments.format == "jsonl") {
    ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(input, name, line));
    if (!json.is_string())
      return InvalidArgument("{}:{}: error: must be a string, and is {}", name, line, TypeOf(json));
    decoded = json.get<std::string>();
    input = decoded;
  }
  std::vector<std::int32_t> ids;
  const tokenizer::EncodeOptions options{.special_tokens = arguments.special,
                                         .add_template = arguments.add_template};
  if (const absl::Status status = pipeline.Encode(input, options, &ids); !status.ok()) {
    return InvalidArgument("{}:{}: error: {}", name, line, Message(status));
  }
  const bool is_json = arguments.format == "jsonl";
  Print(stdout, "{}{}{}\n", is_json ? "[" : "", fmt::join(ids, is_json ? "," : " "), is_json ? "]" : "");
  return absl::OkStatus();
}

absl::Status DecodeInput(const tokenizer::Pipeline& pipeline, const TokenizeArguments& arguments,
                         const std::string& name, std::string_view input, std::int64_t line) {
  absl::StatusOr<std::vector<std::int32_t>> parsed = data::ParseTokenIds("", input, pipeline.vocab_size());
  if (!parsed.ok()) {  // ":LINE:COLUMN: error: …" within the input
    const std::string message = Message(parsed.status());
    if (arguments.format == "text") return InvalidArgument("{}{}", name, message);
    return InvalidArgument("{}:{}{}", name, line, message.substr(message.find(':', 1)));
  }
  const std::vector<std::int32_t>& ids = *parsed;
  const absl::StatusOr<std::string> decoded = pipeline.Decode(ids, !arguments.special);
  if (!decoded.ok()) return InvalidArgument("{}:{}: error: {}", name, line, Message(decoded.status()));
  const std::string& text = *decoded;
  if (arguments.format == "jsonl") {
    const nlohmann::json json = text;
    Print(stdout, "{}\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    Print(stdout, "{}{}", text, arguments.format == "lines" ? "\n" : "");
  }
  return absl::OkStatus();
}

int Tokenize(const TokenizeArguments& arguments) {
  const absl::StatusOr<std::unique_ptr<tokenizer::Pipeline>> pipeline = OpenPipeline(arguments.tokenizer);
  if (!pipeline.ok()) return FailTokenizer(pipeline.status());
  const tokenizer::Description& description = (*pipeline)->description();
  if (arguments.add_template && description.before.empty() && description.behind.empty())
    Print(stderr, "note: {} has no template: nothing is put around a text\n", ShownPath(arguments.tokenizer));
  const absl::StatusOr<OpenFile> file = OpenInput(arguments.input);
  if (!file.ok()) return FailTokenizer(file.status());
  const std::string name = arguments.input == "-" ? "standard input" : ShownPath(arguments.input);
  const auto take = [&](std::string_view input, std::int64_t line) {
    return (arguments.decode ? DecodeInput : EncodeInput)(**pipeline, arguments, name, input, line);
  };
  const absl::Status status = TakeInputs(file->get(), name, arguments.format == "text", take);
  return status.ok() ? 0 : FailTokenizer(status);
}

int TokenizerInfo(const std::string& path) {
  const absl::StatusOr<std::unique_ptr<tokenizer::Pipeline>> pipeline = OpenPipeline(path);
  if (!pipeline.ok()) return FailTokenizer(pipeline.status());
  const tokenizer::Description& description = (*pipeline)->description();
  const auto list = [](const std::vector<std::string>& names) {
    return names.empty() ? std::string("none") : fmt::format("{}", fmt::join(names, ", "));
  };
  std::int64_t special = 0;
  for (const tokenizer::AddedToken& token : description.added_tokens) special += token.special ? 1 : 0;
  const auto shown = [&](std::int32_t id) {
    for (const tokenizer::AddedToken& token : description.added_tokens) {
      if (token.id == id) return fmt::format("{} {}", id, Shown(token.content));
    }
    return fmt::format("{} {}", id, Shown(tokenizer::VocabularyOf(description.model).Token(id)));
  };
  std::vector<std::string> around;
  for (const std::int32_t id : description.before) around.push_back(shown(id));
  around.emplace_back("text");
  for (const std::int32_t id : description.behind) around.push_back(shown(id));
  Print(stdout, "source           {}\n", description.source);
  Print(stdout, "vocabulary       {} ids, {} of the model, {} added tokens ({} special)\n",
        WithThousands((*pipeline)->vocab_size()),
        WithThousands(tokenizer::VocabularyOf(description.model).tokens()),
        WithThousands(static_cast<std::int64_t>(description.added_tokens.size())), WithThousands(special));
  Print(stdout, "model            {}\n", tokenizer::NameOf(description.model));
  Print(stdout, "normalizers      {}\n", list(tokenizer::NamesOf(description.normalizers)));
  Print(stdout, "pre-tokenizers   {}\n", list(tokenizer::NamesOf(description.pre_tokenizers)));
  Print(stdout, "decoders         {}\n", list(tokenizer::NamesOf(description.decoders)));
  Print(stdout, "template         {}\n", fmt::join(around, ", "));
  const auto print_token = [&](const char* label, std::optional<std::int32_t> id, const std::string& from) {
    Print(stdout, "{:<17}{}\n", label, id.has_value() ? shown(*id) + ", by " + from : "unknown");
  };
  print_token("beginning", description.beginning_of_document, description.beginning_of_document_from);
  print_token("end of document", description.end_of_document, description.end_of_document_from);
  return 0;
}

}  // namespace

void AddTokenizeCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("tokenize", "Token ids of text, or with --decode the text of ids");
  const auto arguments = std::make_shared<TokenizeArguments>();
  command->add_option("tokenizer", arguments->tokenizer, "A tokenizer's file or a Hugging Face folder")
      ->required()
      ->type_name("PATH");
  command->add_option("--input", arguments->input, "What to read; - is standard input")
      ->type_name("FILE")
      ->capture_default_str();
  command
      ->add_option("--format", arguments->format,
                   "text: the input is one text; lines: each line is one; jsonl: each line is a JSON string, "
                   "or with --decode "
                   "a list of ids")
      ->check(CLI::IsMember({"text", "lines", "jsonl"}))
      ->capture_default_str();
  CLI::Option* decode = command->add_flag("--decode", arguments->decode, "Read ids and print text");
  command->add_flag(
      "--special", arguments->special,
      "Special tokens in a text are tokens, not characters; with --decode they are printed, not left out");
  command
      ->add_flag("--template", arguments->add_template,
                 "Put the special tokens of the template around each text")
      ->excludes(decode);
  command->footer("Exit codes: 0 printed; 1 the tokenizer or the input will not do; 2 wrong options");
  command->callback([arguments, exit_code] { *exit_code = Tokenize(*arguments); });
}

void AddTokenizerCommand(CLI::App& app, int* exit_code) {
  CLI::App* parent = app.add_subcommand("tokenizer", "Look at a tokenizer");
  parent->require_subcommand(1);
  CLI::App* command =
      parent->add_subcommand("info", "What a tokenizer is made of, its sizes, its end of a document");
  const auto path = std::make_shared<std::string>();
  command->add_option("tokenizer", *path, "A tokenizer's file or a Hugging Face folder")
      ->required()
      ->type_name("PATH");
  command->footer("Exit codes: 0 printed; 1 no tokenizer, or one that is not understood; 2 wrong options");
  command->callback([path, exit_code] { *exit_code = TokenizerInfo(*path); });
}

}  // namespace engine::cli
