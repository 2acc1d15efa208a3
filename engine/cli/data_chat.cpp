#include "engine/cli/data_chat.h"

#include <array>
#include <cstdio>
#include <ctime>

#include "engine/base/shown.h"
#include "engine/base/status.h"

namespace engine::cli {
namespace {

// "2024-07-26", "2024-07-26 12:34" or "2024-07-26 12:34:56"; empty: today by the local time, at its beginning, so that a build that is
// gone on with on the same day is the same.
absl::StatusOr<std::tm> TimeOf(const std::string& text) {
  std::tm time = {};
  if (text.empty()) {
    const std::time_t now = std::time(nullptr);
    localtime_r(&now, &time);
    time.tm_hour = time.tm_min = time.tm_sec = 0;
    return time;
  }
  int used = 0;
  int hour = 0;
  int minute = 0;
  int second = 0;
  std::array<int, 3> date = {};
  const int read = std::sscanf(text.c_str(), "%4d-%2d-%2d%n %2d:%2d%n:%2d%n", &date[0], &date[1], &date[2],
                               &used, &hour, &minute, &used, &second, &used);
  const bool has_form =
      (read == 3 || read == 5 || read == 6) && static_cast<std::size_t>(used) == text.size();
  time.tm_year = date[0] - 1900;
  time.tm_mon = date[1] - 1;
  time.tm_mday = date[2];
  time.tm_hour = hour;
  time.tm_min = minute;
  time.tm_sec = second;
  std::tm same = time;
  const bool is_day = has_form && timegm(&same) != -1 && same.tm_mday == time.tm_mday &&
                      same.tm_mon == time.tm_mon && same.tm_hour == hour && same.tm_min == minute &&
                      same.tm_sec == second;
  if (!is_day)
    return InvalidArgument("--chat-time \"{}\" is no time; 2024-07-26 and \"2024-07-26 12:34:56\" are",
                           Shown(text));
  return same;
}

absl::StatusOr<data::ConversationKeys> KeysOf(const std::vector<std::string>& keys) {
  data::ConversationKeys named;
  for (const std::string& one : keys) {
    const std::size_t sign = one.find('=');
    if (sign == std::string::npos || sign + 1 == one.size() ||
        !data::SetKey(one.substr(0, sign), one.substr(sign + 1), &named))
      return InvalidArgument(
          "--chat-key \"{}\" is not NAME=KEY; names are, with the keys that are looked for without it, {}",
          Shown(one), data::KeyNames());
  }
  return named;
}

}  // namespace

void AddChatOptions(CLI::App* command, ChatArguments* arguments) {
  command
      ->add_option("--chat-template", arguments->chat_template,
                   "Of --format chat: a file with a Jinja template, or the name of one of the tokenizer's; "
                   "without it, the tokenizer's")
      ->type_name("FILE|NAME");
  command
      ->add_option("--loss-on", arguments->loss_on,
                   "Of --format chat: assistant: what the assistant says is learned, by the template's "
                   "generation blocks or turn by "
                   "turn; all: everything is")
      ->check(CLI::IsMember({"assistant", "all"}))
      ->capture_default_str();
  command
      ->add_option("--chat-key", arguments->keys,
                   "Of --format chat: what a key of a record is called, as messages=turns; names are " +
                       data::KeyNames())
      ->type_name("NAME=KEY");
  command
      ->add_option("--chat-time", arguments->time,
                   "Of --format chat: the date that templates may write; by default today's")
      ->type_name("YYYY-MM-DD");
}

absl::StatusOr<Chat> PrepareChat(const ChatArguments& arguments, const data::BuildOptions& options) {
  ASSIGN_OR_RETURN(const std::tm time, TimeOf(arguments.time));
  data::ChatBuildOptions chat;
  static_cast<data::BuildOptions&>(chat) = options;
  ASSIGN_OR_RETURN(chat.keys, KeysOf(arguments.keys));
  chat.loss_on = arguments.loss_on == "all" ? data::LossOn::kAll : data::LossOn::kAssistant;
  ASSIGN_OR_RETURN(data::ChatTemplate made,
                   data::ChatTemplate::Open(arguments.chat_template, options.tokenizer.path, time));
  return Chat{.options = std::move(chat), .chat_template = std::move(made)};
}

}  // namespace engine::cli
