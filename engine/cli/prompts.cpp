#include "engine/cli/prompts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <memory>
#include <utility>

#include "engine/base/status.h"
#include "engine/data/chat_template.h"
#include "engine/data/records.h"
#include "engine/data/text_inputs.h"
#include "engine/data/token_ids.h"
#include "engine/generate/text_stream.h"

namespace engine::cli {
namespace {

absl::StatusOr<std::string> ReadPromptBytes(std::FILE* file, const std::string& name) {
  constexpr std::size_t kMost = 64 << 20;
  std::string text;
  char buffer[1 << 16];
  for (std::size_t got = 0; (got = std::fread(buffer, 1, sizeof(buffer), file)) > 0;) {
    text.append(buffer, got);
    if (text.size() > kMost) return InvalidArgument("{}: more than {} bytes", name, kMost);
  }
  if (std::ferror(file) != 0) return Unavailable("{}: cannot read: {}", name, std::strerror(errno));
  for (const std::string_view magic : {"\x1F\x8B", "\x28\xB5\x2F\xFD"}) {  // of gzip and Zstandard
    if (text.starts_with(magic))
      return InvalidArgument("{}: it is compressed; unpacked, it would be read", name);
  }
  return text;
}

// A file, or standard input for "-".
absl::StatusOr<WrittenIds> ReadPromptFile(const char* option, const std::string& given) {
  if (given == "-") {
    ASSIGN_OR_RETURN(std::string text, ReadPromptBytes(stdin, "standard input"));
    return WrittenIds{"standard input", std::move(text)};
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(given.c_str(), "re"), std::fclose);
  if (file == nullptr) return NotFound("{}: cannot open {}: {}", option, given, std::strerror(errno));
  ASSIGN_OR_RETURN(std::string text, ReadPromptBytes(file.get(), given));
  return WrittenIds{given, std::move(text)};
}

// What --tokens-in means: ids themselves, standard input, or a file's name.
absl::StatusOr<WrittenIds> ReadIds(const std::string& given) {
  if (given != "-" && given.find_first_not_of("0123456789[], \t\n") == std::string::npos)
    return WrittenIds{"--tokens-in", given};
  absl::StatusOr<WrittenIds> file = ReadPromptFile("--tokens-in", given);
  if (!absl::IsNotFound(file.status())) return file;
  // Ids one of which is none: who reads them tells which.
  if (given.find_first_of("0123456789[-") == 0 && given.find_first_of(" ,") != std::string::npos)
    return WrittenIds{"--tokens-in", given};
  return NotFound(
      "{}; where it is to be token ids and no file, they are whole numbers with blanks between them, or a "
      "JSON list",
      Message(file.status()));
}

// A prompt of a JSONL file: a text, a list of ids, or an object that has one of these as `prompt`.
absl::StatusOr<WrittenPrompt> PromptOfRecord(const jinja::Value& record, const std::string& name) {
  const jinja::Value* prompt = &record;
  if (record.dict() != nullptr) prompt = record.dict()->Find("prompt");
  if (prompt == nullptr) return InvalidArgument("the object has no key prompt");
  if (prompt->text() != nullptr) return WrittenPrompt{*prompt->text(), name};
  if (prompt->list() == nullptr) return InvalidArgument("a prompt must be a string or a list of token ids");
  std::vector<std::int64_t> ids;
  for (const jinja::Value& id : prompt->list()->items) {
    if (!id.is_integer()) return InvalidArgument("a prompt must be a string or a list of token ids");
    ids.push_back(id.integer());
  }
  return WrittenPrompt{WrittenIds{"token ids", fmt::format("{}", fmt::join(ids, " "))}, name};
}

absl::StatusOr<WrittenPrompt> ConversationOfRecord(const jinja::Value& record, const std::string& name) {
  ASSIGN_OR_RETURN(data::Conversation conversation, data::ReadConversation(record, {}));
  return WrittenPrompt{std::move(conversation), name};
}

using ReadRecord = absl::StatusOr<WrittenPrompt> (*)(const jinja::Value&, const std::string&);

absl::StatusOr<std::vector<WrittenPrompt>> ReadJsonPrompts(const WrittenIds& file, ReadRecord read) {
  std::vector<WrittenPrompt> prompts;
  RETURN_IF_ERROR(data::VisitJsonRecords(
      {file.name}, data::WithoutByteOrderMark(file.text), [&](const jinja::Value& record) -> absl::Status {
        absl::StatusOr<WrittenPrompt> prompt =
            read(record, fmt::format("{}: prompt {}", file.name, prompts.size() + 1));
        RETURN_IF_ERROR(prompt.status());
        prompts.push_back(*std::move(prompt));
        return absl::OkStatus();
      }));
  return prompts;
}

std::vector<WrittenPrompt> ReadLines(const WrittenIds& file) {
  std::vector<WrittenPrompt> prompts;
  std::string_view left = data::WithoutByteOrderMark(file.text);
  for (std::int64_t number = 1; !left.empty(); ++number) {
    std::string_view line = left.substr(0, left.find('\n'));
    left.remove_prefix(std::min(left.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);  // of files from Windows
    if (!line.empty()) prompts.push_back({std::string(line), fmt::format("{}:{}", file.name, number)});
  }
  return prompts;
}

std::tm LocalNow() {
  const std::time_t now = std::time(nullptr);
  std::tm time = {};
  localtime_r(&now, &time);
  return time;
}

// Makes ids of prompts.
class PromptMaker {
 public:
  PromptMaker(const PromptArguments& arguments, const generate::ModelSource& source,
              const data::Tokenizer* tokenizer, bool shows_ids)
      : arguments_(arguments), source_(source), tokenizer_(tokenizer), shows_ids_(shows_ids) {}

  absl::StatusOr<generate::Prompt> operator()(const std::string& text) {
    const tokenizer::EncodeOptions options{
        .special_tokens = arguments_.special,
        .add_template = arguments_.adds_template.value_or(source_.adds_template)};
    return Encoded(text, options, text);
  }

  absl::StatusOr<generate::Prompt> operator()(const WrittenIds& written) {
    generate::Prompt prompt;
    ASSIGN_OR_RETURN(prompt.ids, data::ParseTokenIds(written.name, written.text, vocabulary()));
    if (prompt.ids.empty() && tokenizer_ == nullptr)
      return InvalidArgument("{}: there is no id", written.name);
    ASSIGN_OR_RETURN(prompt.text, generate::TextOfIds(shows_ids_ ? nullptr : tokenizer_, prompt.ids));
    return Begun(std::move(prompt));
  }

  absl::StatusOr<generate::Prompt> operator()(const data::Conversation& conversation) {
    if (!chat_) {
      absl::StatusOr<data::ChatTemplate> opened =
          data::ChatTemplate::Open(arguments_.chat_template, source_.recipe.data.tokenizer.path, LocalNow());
      RETURN_IF_ERROR(opened.status());
      chat_ = std::make_unique<data::ChatTemplate>(*std::move(opened));
    }
    ASSIGN_OR_RETURN(const std::string text, chat_->RenderPrompt(conversation));
    return Encoded(text, {.special_tokens = true}, "");
  }

 private:
  std::int64_t vocabulary() const { return source_.recipe.model.vocab; }

  absl::StatusOr<generate::Prompt> Encoded(const std::string& text, const tokenizer::EncodeOptions& options,
                                           const std::string& shown) {
    generate::Prompt prompt;
    ASSIGN_OR_RETURN(prompt.ids, generate::EncodePrompt(*tokenizer_, options, vocabulary(), text));
    prompt.text = shown;
    if (shows_ids_) prompt.text = fmt::format("{}", fmt::join(prompt.ids, " "));
    return Begun(std::move(prompt));
  }

  // A prompt without tokens is the beginning of a document.
  absl::StatusOr<generate::Prompt> Begun(generate::Prompt prompt) {
    if (!prompt.ids.empty()) return prompt;
    prompt.is_silent = true;
    prompt.ids.push_back(tokenizer_->end_of_document());
    return prompt;
  }

  const PromptArguments& arguments_;
  const generate::ModelSource& source_;
  const data::Tokenizer* tokenizer_;
  const bool shows_ids_;
  std::unique_ptr<data::ChatTemplate> chat_;
};

}  // namespace

void AddPromptOptions(CLI::App* command, PromptArguments* arguments) {
  CLI::Option* prompt =
      command
          ->add_option(
              "--prompt",
              CLI::callback_t([arguments](const CLI::results_t& texts) {  // as they are: of a vector the
                arguments->prompts = texts;                               // library takes "{}" for none
                return true;
              }),
              "Text to continue; repeated, several of them")
          ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
          ->type_name("TEXT");
  CLI::Option* tokens_in =
      command
          ->add_option(
              "--tokens-in", arguments->tokens_in,
              "Token ids to continue instead of a text: \"464 3290\", a file of them, or - for standard "
              "input; separated by blanks, or a JSON list")
          ->type_name("IDS|FILE|-")
          ->excludes(prompt);
  CLI::Option* prompts =
      command
          ->add_option("--prompts", arguments->prompts_file,
                       "A file of prompts, - for standard input: each line that is not empty is one; of a "
                       "name that ends in "
                       ".jsonl, each is a JSON string, a list of token ids, or an object with one of these "
                       "as \"prompt\"")
          ->type_name("FILE|-")
          ->excludes(prompt)
          ->excludes(tokens_in);
  CLI::Option* chat =
      command
          ->add_option("--chat", arguments->chat_file,
                       "A file of conversations to answer, a JSON object a line, as `engine data build "
                       "--format chat` takes them; the tokenizer's chat template makes prompts of them")
          ->type_name("FILE|-")
          ->excludes(prompt)
          ->excludes(tokens_in)
          ->excludes(prompts);
  command->add_option("--message", arguments->message, "What a user says, as a conversation of one turn")
      ->type_name("TEXT")
      ->excludes(prompt)
      ->excludes(tokens_in)
      ->excludes(prompts)
      ->excludes(chat);
  command
      ->add_option("--chat-template", arguments->chat_template,
                   "Of conversations: a file with a Jinja template, or the name of one of the tokenizer's")
      ->type_name("FILE|NAME");
  command->add_flag("--special", arguments->special,
                    "Special tokens that stand in a text are tokens, not characters");
  command->add_flag("--template,!--no-template", arguments->adds_template,
                    "Put what the tokenizer's template puts around a text around prompts (default: where "
                    "the model is a Hugging Face folder)");
}

absl::StatusOr<std::vector<WrittenPrompt>> ReadPrompts(const PromptArguments& arguments) {
  if (!arguments.chat_template.empty() && !arguments.chat_file && !arguments.message)
    return InvalidArgument(
        "--chat-template is of conversations, and there is none: --chat FILE, or --message TEXT");
  if (arguments.tokens_in) {
    ASSIGN_OR_RETURN(WrittenIds ids, ReadIds(*arguments.tokens_in));
    return std::vector<WrittenPrompt>{{std::move(ids), ""}};
  }
  if (arguments.message) {
    jinja::Dict turn;
    turn.Set("role", "user");
    turn.Set("content", *arguments.message);
    data::Conversation conversation;
    conversation.messages.emplace_back(std::move(turn));
    return std::vector<WrittenPrompt>{{std::move(conversation), ""}};
  }
  std::vector<WrittenPrompt> prompts;
  if (!arguments.chat_file && !arguments.prompts_file) {
    for (const std::string& prompt : arguments.prompts) prompts.push_back({prompt, ""});
    if (prompts.empty()) prompts.push_back({"", ""});
    return prompts;
  }

  const bool is_chat = arguments.chat_file.has_value();
  const std::string& path = is_chat ? *arguments.chat_file : *arguments.prompts_file;
  ASSIGN_OR_RETURN(const WrittenIds file, ReadPromptFile(is_chat ? "--chat" : "--prompts", path));
  if (is_chat || path.ends_with(".jsonl")) {
    ASSIGN_OR_RETURN(prompts, ReadJsonPrompts(file, is_chat ? ConversationOfRecord : PromptOfRecord));
  } else {
    prompts = ReadLines(file);
  }
  if (prompts.empty()) return InvalidArgument("{}: there is no prompt", file.name);
  return prompts;
}

absl::StatusOr<std::vector<generate::Prompt>> MakePrompts(const std::vector<WrittenPrompt>& written,
                                                          const PromptArguments& arguments,
                                                          const generate::ModelSource& source,
                                                          const data::Tokenizer* tokenizer, bool shows_ids) {
  PromptMaker make(arguments, source, tokenizer, shows_ids);
  std::vector<generate::Prompt> prompts;
  for (const WrittenPrompt& one : written) {
    absl::StatusOr<generate::Prompt> prompt = std::visit(make, one.content);
    if (!prompt.ok()) return one.name.empty() ? prompt.status() : WithContext(prompt.status(), one.name);
    prompts.push_back(*std::move(prompt));
  }
  return prompts;
}

}  // namespace engine::cli
