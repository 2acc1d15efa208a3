// `engine report`: runs as one HTML page, or as Markdown.
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/print.h"
#include "engine/base/write_file.h"
#include "engine/cli/commands.h"
#include "engine/cli/device.h"
#include "engine/view/page.h"
#include "engine/view/run_view.h"

namespace engine::cli {
namespace {

struct ReportArguments {
  std::vector<std::string> folders;
  std::string out;
};

absl::Status WriteReport(const ReportArguments& arguments) {
  std::vector<std::string> notes;
  ASSIGN_OR_RETURN(std::vector<view::RunReader> runs, view::OpenRuns(arguments.folders, &notes));
  for (const std::string& note : notes) Print(stderr, "note: {}\n", note);
  std::vector<const view::RunView*> views;
  for (view::RunReader& run : runs) {
    run.Refresh(view::RunReader::kAllBytes);
    views.push_back(&run.view());
  }
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const view::Document report = view::ReportOf(view::ReportedRuns(views), now);
  const std::string page = arguments.out.ends_with(".md") ? view::MarkdownOf(report) : view::HtmlOf(report);
  if (!arguments.out.empty()) return WriteFile(arguments.out, page);
  Print(stdout, "{}", page);
  return absl::OkStatus();
}

// Checks that a file's name promises a form that a report has: the message where it does not, else nothing (CLI11's convention).
std::string CheckEnding(const std::string& path) {
  const std::string ending = std::filesystem::path(path).extension().string();
  if (ending.empty() || ending == ".html" || ending == ".htm" || ending == ".md") return "";
  return "'" + path + "': a name ends in .html or .htm for a page, or in .md for Markdown";
}

int Report(const ReportArguments& arguments) {
  const absl::Status status = WriteReport(arguments);
  if (!status.ok()) Print(stderr, "engine report: {}\n", Message(status));
  return status.ok() ? 0 : kFailed;
}

}  // namespace

void AddReportCommand(CLI::App& app, int* exit_code) {
  CLI::App* command = app.add_subcommand("report",
                                         "Write runs as one HTML page, or as Markdown: what was run, curves, "
                                         "slow ranks, events, where the time went");
  const auto arguments = std::make_shared<ReportArguments>();
  command->add_option("dir", arguments->folders, "Folder of a run; several stand beside each other")
      ->required()
      ->type_name("DIR");
  command
      ->add_option(
          "-o,--output", arguments->out,
          "The page, of a name that ends in .html, .htm or in nothing; Markdown tables where it ends in .md; "
          "default: standard output")
      ->check(CheckEnding)
      ->type_name("FILE");
  command->footer(
      "Exit codes: 0 written; 1 no folder holds a run, or the page cannot be written; 2 wrong options");
  command->callback([arguments, exit_code] { *exit_code = Report(*arguments); });
}

}  // namespace engine::cli
