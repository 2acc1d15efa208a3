// `engine generate`: text from a trained model.
#include "engine/generate/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/base/print.h"
#include "engine/cli/checks.h"
#include "engine/cli/commands.h"
#include "engine/cli/model_options.h"
#include "engine/cli/prompts.h"
#include "engine/cli/stop_signals.h"
#include "engine/generate/sampling.h"

namespace engine::cli {
namespace {

struct GenerateArguments {
  ModelArguments model;
  PromptArguments prompts;
  generate::GenerateOptions options;
  std::int64_t slots = 8;
  bool ids_out = false;
  bool json = false;
  std::string logits_file;
};

nlohmann::ordered_json LikelihoodJson(const generate::Likelihood& one, const data::Tokenizer* tokenizer) {
  nlohmann::ordered_json json = {{"token", one.token}, {"logprob", one.value}};
  if (tokenizer == nullptr) return json;
  const absl::StatusOr<std::string> text = tokenizer->Decode({&one.token, 1});
  if (text.ok()) json["text"] = *text;
  return json;
}

nlohmann::ordered_json AnswerJson(const WrittenPrompt& written, const generate::Prompt& prompt,
                                  const generate::Answer& answer, const data::Tokenizer* tokenizer) {
  nlohmann::ordered_json json;
  if (const std::string* text = std::get_if<std::string>(&written.content)) json["prompt"] = *text;
  json["prompt_tokens"] = prompt.ids;
  if (tokenizer != nullptr) json["text"] = answer.text;
  json["tokens"] = nlohmann::ordered_json::array();
  for (const generate::ScoredToken& token : answer.tokens) {
    json["tokens"].push_back(token.token);
    if (!token.log_probability) continue;
    nlohmann::ordered_json scored = LikelihoodJson({token.token, *token.log_probability}, tokenizer);
    for (const generate::Likelihood& one : token.top) scored["top"].push_back(LikelihoodJson(one, tokenizer));
    json["logprobs"].push_back(std::move(scored));
  }
  json["finish_reason"] = generate::NameOf(answer.finish);
  return json;
}

// Prints answers in the order of their prompts: a single one as it comes, of several each when it is whole.
class AnswerPrinter {
 public:
  AnswerPrinter(const GenerateArguments& arguments, const std::vector<WrittenPrompt>& written,
                const std::vector<generate::Prompt>& prompts, const data::Tokenizer* tokenizer)
      : arguments_(arguments),
        written_(written),
        prompts_(prompts),
        tokenizer_(tokenizer),
        lines_(prompts.size()) {
    if (streams()) Show(prompts[0].text);
  }

  void AddText(std::string_view text) const {
    if (streams()) Show(text);
  }
  void AddAnswer(std::size_t prompt, const generate::Answer& answer) {
    if (answer.finish == generate::Finish::kCancelled) ++cancelled_;
    lines_[prompt] = streams() ? "\n" : LineOf(prompt, answer);
    for (; shown_ < lines_.size() && !lines_[shown_].empty(); ++shown_) Show(lines_[shown_]);
  }
  // Where an answer ends early, what follows begins a line.
  void EndLine() const {
    if (streams() && shown_ == 0) Show("\n");
  }
  std::size_t cancelled() const { return cancelled_; }

 private:
  bool streams() const { return prompts_.size() == 1 && !arguments_.json; }
  static void Show(std::string_view text) {
    Print(stdout, "{}", text);
    std::fflush(stdout);
  }
  std::string LineOf(std::size_t prompt, const generate::Answer& answer) const {
    if (!arguments_.json) return prompts_[prompt].text + answer.text + "\n";
    return AnswerJson(written_[prompt], prompts_[prompt], answer, tokenizer_)
               .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
           "\n";
  }

  const GenerateArguments& arguments_;
  const std::vector<WrittenPrompt>& written_;
  const std::vector<generate::Prompt>& prompts_;
  const data::Tokenizer* tokenizer_;  // null: answers are ids
  std::vector<std::string> lines_;    // what is printed last of each; empty: it is not done
  std::size_t shown_ = 0;
  std::size_t cancelled_ = 0;
};

bool AreIds(const std::vector<WrittenPrompt>& prompts) {
  return std::all_of(prompts.begin(), prompts.end(), [](const WrittenPrompt& prompt) {
    return std::holds_alternative<WrittenIds>(prompt.content);
  });
}

bool AreConversations(const std::vector<WrittenPrompt>& prompts) {
  return std::all_of(prompts.begin(), prompts.end(), [](const WrittenPrompt& prompt) {
    return std::holds_alternative<data::Conversation>(prompt.content);
  });
}

absl::Status WriteLogitsOf(const std::vector<generate::Prompt>& prompts, const GenerateArguments& arguments,
                           generate::Decoder* decoder) {
  if (prompts.size() != 1)
    return InvalidArgument("--logits is of one prompt, and there are {}", prompts.size());
  if (prompts[0].is_silent) return InvalidArgument("the prompt has no tokens, which logits could follow");
  return generate::WriteLogits(decoder, prompts[0].ids, arguments.logits_file);
}

void NoteLongPrompts(const std::vector<generate::Prompt>& prompts, std::int64_t context) {
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const std::int64_t tokens = std::ssize(prompts[i].ids);
    if (tokens <= context) continue;
    const std::string which = prompts.size() == 1 ? "the prompt" : fmt::format("prompt {}", i + 1);
    Print(stderr, "note: {} has {} tokens, of which the model sees the last {}\n", which, tokens, context);
  }
}

absl::Status GenerateText(const GenerateArguments& arguments) {
  RETURN_IF_ERROR(generate::CheckSampling(arguments.options.sampling));
  ASSIGN_OR_RETURN(const std::vector<WrittenPrompt> written, ReadPrompts(arguments.prompts));
  ASSIGN_OR_RETURN(const generate::ModelSource source, FindModel(arguments.model));
  for (const std::int32_t id : arguments.options.end_tokens) {
    if (id >= source.recipe.model.vocab)
      return InvalidArgument("--end-token {} is no token id: there are 0 to {}", id,
                             source.recipe.model.vocab - 1);
  }
  const bool writes_logits = !arguments.logits_file.empty();
  std::unique_ptr<data::Tokenizer> tokenizer;
  if (!AreIds(written) || !(arguments.ids_out || writes_logits)) {
    ASSIGN_OR_RETURN(tokenizer, generate::OpenTokenizer(source.recipe.data, arguments.model.files));
  }
  if (!arguments.options.stops.empty() && (arguments.ids_out || tokenizer == nullptr))
    return InvalidArgument(
        "--stop is of text, and what is asked for is token ids alone; --end-token ends these");
  ASSIGN_OR_RETURN(const std::vector<generate::Prompt> prompts,
                   MakePrompts(written, arguments.prompts, source, tokenizer.get(),
                               arguments.ids_out || tokenizer == nullptr));
  const auto slots = std::min(arguments.slots, static_cast<std::int64_t>(prompts.size()));
  ASSIGN_OR_RETURN(const std::unique_ptr<generate::LoadedModel> model,
                   LoadModel(source, arguments.model.device, slots));
  if (writes_logits) return WriteLogitsOf(prompts, arguments, &model->decoder());
  NoteLongPrompts(prompts, model->decoder().context());

  generate::GenerateOptions options = arguments.options;
  if (options.end_tokens.empty())
    options.end_tokens = generate::EndTokens(source, tokenizer.get(), AreConversations(written));
  const data::Tokenizer* text_of = arguments.ids_out ? nullptr : tokenizer.get();
  AnswerPrinter printer(arguments, written, prompts, text_of);
  const StopSignals signals;
  absl::Status status = generate::Generate(
      &model->decoder(), text_of, prompts, options,
      {.on_text = [&](std::size_t, std::string_view text) { printer.AddText(text); },
       .on_answer = [&](std::size_t prompt,
                        const generate::Answer& answer) { printer.AddAnswer(prompt, answer); },
       .should_stop = [] { return StopSignals::Came() != 0; }});
  if (!status.ok()) {
    printer.EndLine();
    return status;
  }
  if (printer.cancelled() > 0 && prompts.size() > 1)
    return absl::CancelledError(fmt::format("stopped by a signal: {} of {} answers are not whole",
                                            printer.cancelled(), prompts.size()));
  return absl::OkStatus();
}

void AddSamplingOptions(CLI::App* command, generate::SamplingOptions* sampling) {
  command->add_option("--temperature", sampling->temperature, "0: always the likeliest token")
      ->check(CLI::Range(0.0, 100.0))
      ->check(CheckIsNumber)
      ->capture_default_str();
  command->add_option("--top-k", sampling->top_k, "Draw among the k likeliest tokens; 0: among all")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 31))
      ->capture_default_str();
  command
      ->add_option("--top-p", sampling->top_p,
                   "Draw among the likeliest tokens whose probabilities come to p")
      ->check(CLI::Range(0.0, 1.0))
      ->check(CheckIsNumber)
      ->capture_default_str();
  command
      ->add_option("--min-p", sampling->min_p,
                   "Draw among tokens that are at least so many times as likely as the likeliest")
      ->check(CLI::Range(0.0, 1.0))
      ->check(CheckIsNumber)
      ->capture_default_str();
  command
      ->add_option("--repetition-penalty", sampling->repetition_penalty,
                   "Above 1: tokens that are there already become less likely")
      ->check(CLI::Range(0.01, 100.0))
      ->check(CheckIsNumber)
      ->capture_default_str();
  command->add_option("--seed", sampling->seed, "Of the draws")->check(CheckIsSeed)->capture_default_str();
}

void AddAnswerOptions(CLI::App* command, GenerateArguments* arguments) {
  generate::GenerateOptions& options = arguments->options;
  command->add_option("--tokens", options.tokens, "New tokens at most")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->capture_default_str();
  command->add_option("--stop", options.stops, "A text that ends the answer, which has what stands before it")
      ->allow_extra_args(false)
      ->check([](const std::string& stop) { return stop.empty() ? "must not be empty" : ""; })
      ->type_name("TEXT");
  command
      ->add_option("--end-token", options.end_tokens,
                   "Token id that ends the text (default: the tokenizer's end of a document, where one is "
                   "used, and those of generation_config.json, or of conversations the tokenizer's "
                   "eos_token where there are none)")
      ->allow_extra_args(false)
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 31))
      ->type_name("ID");
  CLI::Option* tokens_out =
      command->add_flag("--tokens-out", arguments->ids_out,
                        "Print token ids, separated by blanks; with --tokens-in no tokenizer is needed");
  CLI::Option* json = command->add_flag("--json", arguments->json,
                                        "Print a JSON object a prompt: text, tokens, why it ended");
  command
      ->add_option("--logprobs", options.top,
                   "With --json: the log-probability of each new token, and of the N likeliest in its place")
      ->check(CLI::Range(0, 1000))
      ->type_name("N")
      ->needs(json);
  command
      ->add_option("--logits", arguments->logits_file,
                   "Instead of continuing the prompt, write the logits that follow each of its tokens: a "
                   "file in NumPy's form (.npy), float32 [tokens, vocabulary]")
      ->type_name("FILE")
      ->check([](const std::string& path) {
        return path == "-" ? std::string("- is no file, and logits are written to one") : std::string();
      })
      ->excludes(tokens_out)
      ->excludes(json);
  command
      ->add_option(
          "--slots", arguments->slots,
          "Prompts that are answered at the same time; rounded up to as many on each rank of dp and ep")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
}

}  // namespace

void AddGenerateCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("generate", "Continue prompts with a trained model");
  const auto arguments = std::make_shared<GenerateArguments>();
  AddModelOptions(command, &arguments->model);
  AddPromptOptions(command, &arguments->prompts);
  AddAnswerOptions(command, arguments.get());
  AddSamplingOptions(command, &arguments->options.sampling);
  // Where logits are written nothing is drawn.
  for (const char* of_answer : {"--tokens", "--stop", "--end-token", "--temperature", "--top-k", "--top-p",
                                "--min-p", "--repetition-penalty", "--seed"})
    command->get_option("--logits")->excludes(command->get_option(of_answer));
  command->footer(
      "Ctrl-C ends the text with what there is.\n"
      "Exit codes: 0 continued; 1 no whole checkpoint, the model could not run, or a signal came before all "
      "of "
      "several prompts were answered; 2 wrong options");
  command->callback([arguments, exit_code] {
    const absl::Status status = GenerateText(*arguments);
    if (!status.ok()) Print(stderr, "engine generate: {}\n", Message(status));
    *exit_code = status.ok() ? 0 : 1;
  });
}

}  // namespace engine::cli
