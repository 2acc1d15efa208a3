// `engine explain`: what a code of `engine check` means, and what to do about it.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/diagnostic.h"
#include "engine/base/print.h"
#include "engine/cli/commands.h"
#include "engine/cli/device.h"
#include "engine/recipe/codes.h"

namespace engine::cli {
namespace {

struct ExplainArguments {
  std::vector<std::string> codes;
  bool page = false;
};

// Text in lines of at most `width` bytes where its words allow.
std::string Wrapped(std::string_view text, std::size_t width) {
  std::string wrapped;
  std::size_t used = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const bool fits = used == 0 || used + 1 + end <= width;
    if (used > 0) wrapped += fits ? " " : "\n";
    wrapped += text.substr(0, end);
    used = fits && used > 0 ? used + 1 + end : end;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return wrapped;
}

int ExplainCode(const std::string& name) {
  constexpr std::size_t kWidth = 100;
  const recipe::Code* code = recipe::FindCode(name);
  if (code == nullptr) {
    std::vector<std::string> known;
    for (const recipe::Code& each : recipe::Codes()) {
      known.emplace_back(each.code);
      known.emplace_back(each.name);
    }
    const std::string nearest = NearestWord(name, known);
    Print(stderr, "engine explain: there is no code '{}'{}; `engine explain` lists them\n", name,
          nearest.empty() ? "" : fmt::format(", did you mean '{}'?", nearest));
    return kUsage;
  }
  Print(stdout, "{} {}: {}\n\n{}\n\nremedy: {}\n", code->code, code->name, code->title,
        Wrapped(code->reason, kWidth), Wrapped(code->remedy, kWidth));
  return 0;
}

int Explain(const ExplainArguments& arguments) {
  if (arguments.page) {
    Print(stdout, "{}", recipe::CodesPage());
    return 0;
  }
  for (const recipe::Code& code : recipe::Codes()) {
    if (arguments.codes.empty()) Print(stdout, "{}  {:<26}{}\n", code.code, code.name, code.title);
  }
  for (const std::string& name : arguments.codes) {
    if (const int failed = ExplainCode(name); failed != 0) return failed;
  }
  return 0;
}

}  // namespace

void AddExplainCommand(CLI::App& app, int* exit_code) {
  CLI::App* command =
      app.add_subcommand("explain", "What a code of engine check means; without one, the list");
  const auto arguments = std::make_shared<ExplainArguments>();
  command->add_option("codes", arguments->codes, "Codes or names, such as W102 or pipeline-bubble")
      ->type_name("CODE");
  command->add_flag("--page", arguments->page, "All of them, as Markdown: docs/warnings.md");
  command->footer("Exit codes: 0 explained; 2 no such code, or wrong options");
  command->callback([arguments, exit_code] { *exit_code = Explain(*arguments); });
}

}  // namespace engine::cli
