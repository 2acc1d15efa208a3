// `engine serve`: a trained model over HTTP.
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "engine/base/print.h"
#include "engine/base/status.h"
#include "engine/cli/checks.h"
#include "engine/cli/commands.h"
#include "engine/cli/model_options.h"
#include "engine/cli/stop_signals.h"
#include "engine/data/chat_template.h"
#include "engine/generate/batch.h"
#include "engine/serve/server.h"

namespace engine::cli {
namespace {

struct ServeArguments {
  ModelArguments model;
  serve::ServerOptions server;
  std::int64_t slots = 8;
  std::int64_t queue = 256;  // sequences that wait
  double timeout_seconds = 300;
  std::int64_t most_body_bytes = 16 << 20;
};

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

// The name under which the model is listed: the folder's own.
std::string NameOfFolder(const std::string& folder) {
  const std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

// The text of the tokenizer's chat template; empty: it has none.
std::string ChatTemplateOf(const std::string& tokenizer_path) {
  const absl::StatusOr<data::ChatTemplate> opened = data::ChatTemplate::Open("", tokenizer_path, {});
  return opened.ok() ? opened->text() : "";
}

// Until a signal comes and all that is under way has ended.
void ServeUntilSignal(generate::Batch* batch, serve::Server* server) {
  constexpr std::chrono::milliseconds kLookForSignals{50};
  while (StopSignals::Came() == 0) {
    if (!batch->Advance()) batch->WaitForWork(kLookForSignals);
  }
  // Clients that wait for an answer are told that the server stops, and streams come to their end, as far as their clients read.
  constexpr std::chrono::seconds kMost{2};
  server->Refuse();
  for (const auto end = std::chrono::steady_clock::now() + kMost;
       server->is_answering() && std::chrono::steady_clock::now() < end;) {
    batch->CancelAll();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  server->Stop();
  while (!server->has_stopped()) {
    batch->CancelAll();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

absl::Status ServeModel(const ServeArguments& arguments) {
  ASSIGN_OR_RETURN(const generate::ModelSource source, FindModel(arguments.model));
  const absl::StatusOr<std::unique_ptr<data::Tokenizer>> tokenizer =
      generate::OpenTokenizer(source.recipe.data, arguments.model.files);
  if (!tokenizer.ok())
    Print(stderr, "note: prompts must be token ids, for there is no tokenizer: {}\n",
          Message(tokenizer.status()));
  ASSIGN_OR_RETURN(const std::unique_ptr<generate::LoadedModel> model,
                   LoadModel(source, arguments.model.device, arguments.slots));
  generate::Batch batch(&model->decoder(), static_cast<std::size_t>(arguments.queue));
  const data::Tokenizer* texts = tokenizer.ok() ? tokenizer->get() : nullptr;
  const std::string chat_template = ChatTemplateOf(source.recipe.data.tokenizer.path);
  // Clients write the prompts of chats themselves, by the template: a model that has one may be asked for turns.
  const bool may_chat = !chat_template.empty();
  const serve::ServedModel served{.name = NameOfFolder(arguments.model.folder),
                                  .batch = &batch,
                                  .tokenizer = texts,
                                  .chat_template = chat_template,
                                  .end_tokens = generate::EndTokens(source, texts, may_chat),
                                  .adds_template = source.adds_template,
                                  .vocabulary = model->decoder().vocabulary(),
                                  .context = model->decoder().context(),
                                  .seed = static_cast<std::uint64_t>(std::time(nullptr)),
                                  .created = std::time(nullptr)};

  serve::ServerOptions options = arguments.server;
  options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(arguments.timeout_seconds * 1000));
  options.most_body = static_cast<std::size_t>(arguments.most_body_bytes);
  // Beside those of the batch's sequences: clients that keep a connection and say nothing for a while.
  options.connections += static_cast<std::size_t>(model->decoder().slots() + arguments.queue);
  if (!IsLoopback(options.host))
    Print(stderr,
          "warning: {} may be reached from other machines; whoever reaches it can use the model, as there "
          "are no "
          "passwords and no encryption\n",
          options.host);
  const StopSignals signals;
  ASSIGN_OR_RETURN(const std::unique_ptr<serve::Server> server, serve::Server::Start(served, options));
  Print(stdout, "{} at http://{}:{}/v1 with {} slots of {} tokens; Ctrl-C ends it\n", served.name,
        options.host, server->port(), model->decoder().slots(), served.context);
  std::fflush(stdout);
  ServeUntilSignal(&batch, server.get());
  return absl::OkStatus();
}

}  // namespace

void AddServeCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "serve", "Answer requests over HTTP with a trained model, as evaluation harnesses send them");
  const auto arguments = std::make_shared<ServeArguments>();
  AddModelOptions(command, &arguments->model);
  command->add_option("--port", arguments->server.port, "0: any that is free")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command
      ->add_option("--host", arguments->server.host,
                   "The address to listen at; others than this machine's own come with a warning")
      ->type_name("ADDRESS")
      ->capture_default_str();
  command
      ->add_option(
          "--slots", arguments->slots,
          "Sequences that are computed at the same time; rounded up to as many on each rank of dp and ep")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  command
      ->add_option("--queue", arguments->queue,
                   "Sequences that may wait for a slot; more are answered with 429")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  command->add_option("--timeout", arguments->timeout_seconds, "Seconds that a request may take, waiting too")
      ->check(CLI::Range(0.001, 1e6))
      ->check(CheckIsNumber)
      ->type_name("SECONDS")
      ->capture_default_str();
  command->add_option("--max-body", arguments->most_body_bytes, "Bytes that the body of a request may have")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))
      ->type_name("BYTES")
      ->capture_default_str();
  command->footer(
      "Exit codes: 0 ended by a signal; 1 no whole checkpoint, the model could not run, or the port is "
      "taken; 2 "
      "wrong options");
  command->callback([arguments, exit_code] {
    const absl::Status status = ServeModel(*arguments);
    if (!status.ok()) Print(stderr, "engine serve: {}\n", Message(status));
    *exit_code = status.ok() ? 0 : 1;
  });
}

}  // namespace engine::cli
