#include "engine/cli/man.h"

#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/str_split.h>
#include <fmt/format.h>

#include <vector>

namespace engine::cli {
namespace {

// Text that troff takes as it stands.
std::string Plain(const std::string& text) {
  std::string plain =
      absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}, {"\n.", "\n\\&."}, {"\n'", "\n\\&'"}});
  return plain.starts_with('.') || plain.starts_with('\'') ? "\\&" + plain : plain;
}

std::string Bold(const std::string& text) { return "\\fB" + Plain(text) + "\\fR"; }
std::string Italic(const std::string& text) { return "\\fI" + Plain(text) + "\\fR"; }

std::string Option(const OptionInfo& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.names) names.push_back(Bold(name));
  std::string text = ".TP\n" + absl::StrJoin(names, ", ");
  if (!option.words.empty()) {
    text += " " + Plain(absl::StrJoin(option.words, "|"));
  } else if (!option.value.empty()) {
    text += " " + Italic(option.value);
  }
  text += "\n" + Plain(option.description);
  if (!option.initial.empty()) text += fmt::format(" (default: {})", Plain(option.initial));
  return text + "\n";
}

std::string Command(const CommandInfo& command) {
  std::string text = ".SS " + Bold(command.path);
  if (!command.options.empty()) text += " [" + Italic("OPTIONS") + "]";
  for (const OptionInfo& argument : command.arguments) {
    const std::string name = argument.value + (argument.repeated ? "..." : "");
    text += argument.required ? " " + Italic(name) : " [" + Italic(name) + "]";
  }
  text += "\n" + Plain(command.description) + ".\n";
  for (const OptionInfo& option : command.options) {
    if (option.names.back() != "--help" && option.names.back() != "--version") text += Option(option);
  }
  if (command.footer.empty()) return text;
  text += ".PP\n";
  for (const absl::string_view line : absl::StrSplit(command.footer, '\n'))
    text += Plain(std::string(line)) + "\n.br\n";
  return text;
}

constexpr const char* kRest = R"(.SH FILES
.TP
\fIrecipe.toml\fR
What is trained: a recipe. \fBengine schema \-\-reference\fR lists its keys.
.TP
\fIruns/NAME\fR
The folder of a run: metrics.jsonl, resolved.toml, plan.json, origin.json, checkpoints/.
.TP
\fIPREFIX/share/engine\fR
Recipes, configurations and schemas that come with the program; a recipe names them
\fBextends = "engine:configs/models/llama3\-8b.toml"\fR.
.SH ENVIRONMENT
.TP
\fBENGINE_DATA\fR
The folder that \fBengine:\fR names stand for, in place of the installed one.
.TP
\fBENGINE_CACHE\fR
Where measured choices of matrix products, compiled copies of large tokenizers, and copies of indexes of data sets in buckets
and on web servers are kept.
.TP
\fBENGINE_CACHE_LIMIT\fR
How much these copies may take, as in 100GB; 32 GiB where it is not set.
.TP
\fBAWS_ACCESS_KEY_ID\fR, \fBAWS_SECRET_ACCESS_KEY\fR, \fBAWS_SESSION_TOKEN\fR, \fBAWS_REGION\fR, \fBAWS_DEFAULT_REGION\fR
Who reads and writes \fIs3://BUCKET/KEY\fR, and in which region. Files of credentials are not read.
.TP
\fBAWS_ENDPOINT_URL_S3\fR, \fBAWS_ENDPOINT_URL\fR
Another server of S3's interface than AWS.
.TP
\fBENGINE_COORDINATOR\fR, \fBENGINE_TOKEN\fR
Rank 0's HOST:PORT and the secret of a run of several hosts.
.TP
\fBNO_COLOR\fR, \fBCLICOLOR_FORCE\fR
No colours, unless \fB\-\-color always\fR asks for them; colours also where there is no terminal.
.SH SEE ALSO
\fBengine COMMAND \-\-help\fR; the pages in \fIPREFIX/share/doc/engine\fR.
)";

}  // namespace

std::string ManualPage(const CommandInfo& root, const std::string& version) {
  std::string text = fmt::format(".TH ENGINE 1 \"\" \"engine {}\"\n.SH NAME\nengine \\- {}\n", Plain(version),
                                 "train transformer models from one declarative recipe");
  text += ".SH SYNOPSIS\n\\fBengine\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n.SH DESCRIPTION\n" +
          Plain(root.description) +
          "\nA recipe is compiled into a static plan, which is verified, printed and hashed before anything "
          "runs.\n"
          ".SH COMMANDS\n";
  for (const CommandInfo* command : AllCommands(root)) {
    if (command->commands.empty()) text += Command(*command);
  }
  return text + kRest;
}

}  // namespace engine::cli
