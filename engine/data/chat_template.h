// The chat template of a tokenizer: conversations to text, with the parts of it that the model has to learn.
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "engine/data/conversation.h"
#include "engine/data/jinja/template.h"

namespace engine::data {

enum class LossOn { kAssistant, kAll };

struct ChatText {
  std::string text;
  std::vector<std::pair<std::size_t, std::size_t>>
      learned;  // [begin, end) in bytes of `text`, in order and apart
};

class ChatTemplate {
 public:
  // `which` is a file, or the name of one of the tokenizer's templates; empty: its template, which of several is that of the name "default".
  // `tokenizer_path` is a tokenizer's file or folder, or empty: beside it are looked for chat_template.jinja,
  // additional_chat_templates/NAME.jinja, and chat_template in tokenizer_config.json, a text or a list of {name, template};
  // that file's special tokens (bos_token, eos_token, …) are variables of the template. `now` is the time of strftime_now.
  static absl::StatusOr<ChatTemplate> Open(const std::string& which, const std::string& tokenizer_path,
                                           const std::tm& now);

  // The conversation's text. What the model has to learn is
  //   kAll: everything;
  //   kAssistant, of a template with generation blocks: what stands in these;
  //   kAssistant, of another: of each turn of the role "assistant" what it adds. That is the text of the turns up to it without the
  //   text of the turns before it and the beginning of an answer (add_generation_prompt). Where one is not the beginning of the
  //   other, because the template looks ahead or back, it cannot be told: InvalidArgument, as for all that the template refuses.
  // Safe to call from many threads.
  absl::StatusOr<ChatText> Render(const Conversation& conversation, LossOn loss_on) const;

  // The text with which a model is asked for the next turn: that of all turns and the beginning of an answer. As Render in the rest.
  absl::StatusOr<std::string> RenderPrompt(const Conversation& conversation) const;

  const std::string& text() const { return text_; }      // of the template itself
  const std::string& source() const { return source_; }  // "models/x/tokenizer_config.json (chat_template)"
  // A hash of all that texts follow from, but conversations and the time.
  const std::string& identity() const { return identity_; }
  // The time of strftime_now, "2024-07-26 00:00:00"; empty where the template does not ask for it.
  std::string time() const;

 private:
  ChatTemplate(jinja::Template made, std::string source)
      : template_(std::move(made)), source_(std::move(source)) {}
  absl::StatusOr<jinja::Rendered> RenderSome(const Conversation& conversation, std::size_t count,
                                             bool prompt) const;
  absl::Status FindTurns(const Conversation& conversation, ChatText* text) const;

  jinja::Template template_;
  std::string source_;
  std::string text_;
  std::string identity_;
  bool asks_time_ = false;
  jinja::Dict tokens_;
  jinja::RenderOptions options_;
};

}  // namespace engine::data
