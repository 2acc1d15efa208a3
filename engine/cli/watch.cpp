// `engine watch`: runs as they go on, from their folders' files.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/print.h"
#include "engine/cli/checks.h"
#include "engine/cli/color.h"
#include "engine/cli/commands.h"
#include "engine/cli/device.h"
#include "engine/cli/terminal.h"
#include "engine/view/frame.h"
#include "engine/view/run_view.h"

namespace engine::cli {
namespace {

constexpr std::int64_t kStepBytes = std::int64_t{32} << 20;  // read of a run between two frames

struct WatchArguments {
  std::vector<std::string> folders;
  double interval_s = 1;
  bool once = false;
  bool ascii = false;
  std::size_t columns = 0;  // 0: the terminal's
};

double NowUnixSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Whether the locale's variables name a character set other than UTF-8.
bool LocaleLacksUtf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string_view locale = value;
    return locale.find("UTF-8") == std::string_view::npos && locale.find("utf8") == std::string_view::npos;
  }
  return false;
}

std::vector<std::string> FrameOf(const std::vector<view::RunReader>& runs,
                                 const view::FrameOptions& options) {
  std::vector<view::Line> lines;
  if (runs.size() == 1) {
    lines = view::RunFrame(runs[0].view(), options);
  } else {
    std::vector<const view::RunView*> views;
    views.reserve(runs.size());
    for (const view::RunReader& run : runs) views.push_back(&run.view());
    lines = view::TableFrame(views, options);
  }
  return view::Render(lines,
                      {.columns = options.columns, .color = UsesColor(stdout), .ascii = options.ascii});
}

// Whether more of a run's records is there to be read at once.
bool Refresh(std::vector<view::RunReader>* runs, std::int64_t most_bytes) {
  bool more = false;
  for (view::RunReader& run : *runs) {
    run.Refresh(most_bytes);
    more = more || run.view().share_read < 1;
  }
  return more;
}

void PrintOnce(const WatchArguments& arguments, std::vector<view::RunReader>* runs) {
  Refresh(runs, view::RunReader::kAllBytes);
  const std::size_t columns = arguments.columns > 0 ? arguments.columns
                              : Terminal::IsThere() ? Terminal::SizeNow().columns
                                                    : 80;
  const view::FrameOptions options{
      .columns = columns, .now_unix_s = NowUnixSeconds(), .ascii = arguments.ascii || LocaleLacksUtf8()};
  for (const std::string& line : FrameOf(*runs, options)) Print(stdout, "{}\n", line);
}

void Follow(const WatchArguments& arguments, std::vector<view::RunReader>* runs) {
  Terminal terminal;
  while (true) {
    const bool more = Refresh(runs, kStepBytes);
    const Terminal::Size size = Terminal::SizeNow();
    terminal.Draw(FrameOf(*runs, {.columns = size.columns,
                                  .rows = size.rows,
                                  .now_unix_s = NowUnixSeconds(),
                                  .ascii = arguments.ascii || LocaleLacksUtf8()}));
    const std::optional<char> key = terminal.Key(more ? 0 : arguments.interval_s);
    if (key == 'q' || key == 'Q') return;
  }
}

int Watch(const WatchArguments& arguments) {
  std::vector<std::string> notes;
  absl::StatusOr<std::vector<view::RunReader>> runs = view::OpenRuns(arguments.folders, &notes);
  if (!runs.ok()) {
    Print(stderr, "engine watch: {}\n", Message(runs.status()));
    return kFailed;
  }
  for (const std::string& note : notes) Print(stderr, "note: {}\n", note);
  if (arguments.once || !Terminal::IsThere()) {
    PrintOnce(arguments, &*runs);
  } else {
    Follow(arguments, &*runs);
  }
  return 0;
}

}  // namespace

void AddWatchCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand(
      "watch", "Show runs as they go on, or how they ended, from the files of their folders; q ends it");
  const auto arguments = std::make_shared<WatchArguments>();
  command->add_option("dir", arguments->folders, "Folder of a run; several are shown as a table")
      ->required()
      ->type_name("DIR");
  command->add_option("--interval", arguments->interval_s, "Seconds between two looks at the files")
      ->check(CLI::Range(0.1, 3600.0))
      ->check(CheckIsNumber)
      ->type_name("SECONDS")
      ->capture_default_str();
  command->add_flag("--once", arguments->once,
                    "Print what there is and end, as also where standard output is no terminal");
  command
      ->add_option("--columns", arguments->columns,
                   "Width of what --once prints; default: the terminal's, else 80")
      ->check(CLI::Range(20, 1000))
      ->type_name("N");
  command->add_flag("--ascii", arguments->ascii,
                    "Only ASCII characters, as also where the locale has another character set than UTF-8");
  command->footer("Exit codes: 0 ended, by q or Ctrl-C too; 1 no folder holds a run; 2 wrong options");
  command->callback([arguments, exit_code] { *exit_code = Watch(*arguments); });
}

}  // namespace engine::cli
