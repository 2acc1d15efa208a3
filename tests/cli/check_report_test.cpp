// The forms that `engine check` writes for CI systems.
#include "engine/cli/check_report.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "engine/cli/commands.h"
#include "tests/cli/run_command.h"

namespace engine::cli {
namespace {

using Json = nlohmann::json;

// An error in a line with é before it, a warning of a --set, a file that is missing, and one that is clean;
// names and texts with all that a form must escape.
CheckReport Awkward() {
  Diagnostic error{Severity::kError, {"a b/ü,%:.toml", 3, 10, 4}, "50 % < \"x\" & y\x01",
                   "one\ntwo",       "n = \"é\"; 'abcd'",         "E102"};
  Diagnostic warning{Severity::kWarning, {"--set", 1, 3, 2}, "slow", "", "a=1", "W101"};
  Diagnostic missing{Severity::kError, {"/none.toml", 0, 0, 1}, "no file", "", "", "E104"};
  return {.files = {{"a b/ü,%:.toml", {error}},
                    {"set.toml", {warning}},
                    {"/none.toml", {missing}},
                    {"\xff.toml", {}}},
          .strict = false};
}

void CheckKeys(const Json& object, const std::set<std::string>& required,
               const std::set<std::string>& allowed) {
  CAPTURE(object.dump());
  for (const std::string& key : required) CHECK(object.contains(key));
  for (const auto& [key, value] : object.items()) CHECK(required.count(key) + allowed.count(key) == 1);
}

}  // namespace

TEST_CASE("SARIF: the shape that OASIS's schema 2.1.0 asks for") {
  const Json sarif = Json::parse(ReportText(Awkward(), "sarif"));
  CheckKeys(sarif, {"version", "runs"}, {"$schema"});
  CHECK(sarif["version"] == "2.1.0");
  REQUIRE(sarif["runs"].size() == 1);
  const Json& run = sarif["runs"][0];
  CheckKeys(run, {"tool", "results"}, {"columnKind"});
  CHECK(run["columnKind"] == "unicodeCodePoints");
  const Json& driver = run["tool"]["driver"];
  CheckKeys(driver, {"name"}, {"version", "rules"});
  for (const Json& rule : driver["rules"]) {
    CheckKeys(rule, {"id"}, {"name", "shortDescription", "fullDescription", "help", "defaultConfiguration"});
    CHECK((rule["defaultConfiguration"]["level"] ==
           (rule["id"].get<std::string>()[0] == 'W' ? "warning" : "error")));
  }
  REQUIRE(run["results"].size() == 3);
  for (const Json& result : run["results"]) {
    CheckKeys(result, {"message"}, {"ruleId", "ruleIndex", "level", "locations"});
    CheckKeys(result["message"], {"text"}, {});
    CHECK(driver["rules"][result["ruleIndex"].get<std::size_t>()]["id"] == result["ruleId"]);
  }
  const Json& error = run["results"][0];
  CHECK(error["level"] == "error");
  CHECK(error["message"]["text"] == "50 % < \"x\" & y\x01\nhint: one\ntwo");
  REQUIRE(error["locations"].size() == 1);
  const Json& place = error["locations"][0]["physicalLocation"];
  CheckKeys(place, {"artifactLocation", "region"}, {});
  CHECK(place["artifactLocation"]["uri"] == "a%20b/%C3%BC%2C%25%3A.toml");
  CHECK(place["region"] ==
        Json{{"startLine", 3}, {"startColumn", 9}, {"endColumn", 13}});  // é is one code point
  CHECK(run["results"][1]["level"] == "warning");
  CHECK(!run["results"][1].contains("locations"));
  const Json& missing = run["results"][2]["locations"][0]["physicalLocation"];
  CHECK(missing == Json{{"artifactLocation", {{"uri", "file:///none.toml"}}}});
}

TEST_CASE("JUnit: a case a recipe, escaped") {
  CheckReport report = Awkward();
  const std::string text = ReportText(report, "junit");
  CHECK(text.rfind("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"engine check\" tests=\"4\" "
                   "failures=\"2\" ",
                   0) == 0);
  CHECK(text.find("<testcase classname=\"engine check\" name=\"a b/ü,%:.toml\">\n    <failure type=\"E102\" "
                  "message=\"50 % &lt; "
                  "&quot;x&quot; &amp; y\xef\xbf\xbd\">") != std::string::npos);
  CHECK(text.find("name=\"set.toml\">\n    <system-out>--set:1:3: warning: slow [W101]") !=
        std::string::npos);
  CHECK(text.find("name=\"\xef\xbf\xbd.toml\">\n  </testcase>") != std::string::npos);
  CHECK(text.find('\x01') == std::string::npos);
  report.strict = true;
  CHECK(ReportText(report, "junit").find("failures=\"3\"") != std::string::npos);
}

TEST_CASE("GitHub: one workflow command a finding") {
  CHECK(ReportText(Awkward(), "github") ==
        "::error file=a b/ü%2C%25%3A.toml,line=3,col=10,endColumn=14,title=E102::50 %25 < \"x\" & "
        "y\x01%0Ahint: one%0Atwo\n"
        "::warning title=W101::slow\n"
        "::error file=/none.toml,title=E104::no file\n");
}

TEST_CASE("JSON: every place can be indexed, also of a file that is missing") {
  const Json files = Json::parse(ReportText(Awkward(), "json"))["files"];
  CHECK(files[0]["diagnostics"][0]["line"] == 3);
  CHECK(files[2]["diagnostics"][0]["line"] == 1);
  CHECK(files[2]["diagnostics"][0]["column"] == 1);
}

TEST_CASE("check: a file of the installation has no place among the user's") {
  Diagnostic error{Severity::kError, {"engine:configs/a.toml", 3, 1, 1}, "wrong", "", "", "E201"};
  const CheckReport report{.files = {{"a.toml", {error}}}};
  CHECK(ReportText(report, "github") == "::error title=E201::wrong\n");
  CHECK(!Json::parse(ReportText(report, "sarif"))["runs"][0]["results"][0].contains("locations"));
}

TEST_CASE("check: --strict makes warnings fail, in every form") {
  const std::string file = SourcePath("recipes/gpt2-124m-1gpu.toml");
  for (const std::string& format : ReportFormats()) {
    CAPTURE(format);
    const std::vector<std::string> warned = {"check", file,    "--format",
                                             format,  "--set", "optimizer.weight_decay=0"};
    std::vector<std::string> strict = warned;
    strict.emplace_back("--strict");
    CHECK(RunCommand(AddCheckCommand, {"check", file, "--strict", "--format", format}).exit_code == 0);
    CHECK(RunCommand(AddCheckCommand, warned).exit_code == 0);
    CHECK(RunCommand(AddCheckCommand, warned).output.find("W311") != std::string::npos);
    CHECK(RunCommand(AddCheckCommand, strict).exit_code == 1);
  }
}

TEST_CASE("check: warnings in text, counted, and the order of files") {
  const std::string good = SourcePath("recipes/quickstart.toml");
  const std::string bad = SourcePath("tests/recipe/bad/unknown_key.toml");
  const CommandResult warned = RunCommand(
      AddCheckCommand, {"check", good, "--set", "parallelism.zero_stage=1", "--set", "parallelism.dp=1"});
  CHECK(warned.output ==
        "--set:1:24: warning: zero_stage 1 shards over dp and cp, and both are 1 [W105]\n"
        "    parallelism.zero_stage=1\n"
        "                           ^\n"
        "    hint: zero_stage = 0\n"
        "1 recipe checked, 0 with errors, 1 with warnings\n");
  std::vector<std::string> arguments = {"check", "--format", "json"};
  for (int i = 0; i < 60; ++i) arguments.push_back(i % 7 == 3 ? bad : good);
  const CommandResult many = RunCommand(AddCheckCommand, arguments);
  CHECK((many.output == RunCommand(AddCheckCommand, arguments).output));
  const Json files = Json::parse(many.output)["files"];
  for (std::size_t i = 0; i < 60; ++i) CHECK(files[i]["file"] == arguments[i + 3]);
}

TEST_CASE("a note is no warning: it fails nothing, and has no rule") {
  const Diagnostic note{Severity::kNote, {"a.toml", 3, 1, 4}, "unused", "", "note = 1"};
  CheckReport report{.files = {{"a.toml", {note}}}, .strict = true};
  CHECK(report.Passes());
  CHECK(ReportText(report, "text") ==
        "a.toml:3:1: note: unused\n    note = 1\n    ^~~~\na.toml: ok\n1 recipe checked, 0 with errors\n");
  CHECK(Json::parse(ReportText(report, "json"))["files"][0]["ok"] == true);
  const Json result = Json::parse(ReportText(report, "sarif"))["runs"][0]["results"][0];
  CheckKeys(result, {"level", "message", "locations"}, {});
  CHECK(result["level"] == "note");
  CHECK(ReportText(report, "github") ==
        "::notice file=a.toml,line=3,col=1,endColumn=5,title=notice::unused\n");
  CHECK(ReportText(report, "junit").find("failures=\"0\"") != std::string::npos);

  const Diagnostic warning{Severity::kWarning, {"a.toml", 4, 1, 4}, "slow", "", "", "W101"};
  report.files[0].diagnostics.push_back(warning);
  CHECK(!report.Passes());  // the warning; its failure is named by it, not by the note
  CHECK(ReportText(report, "junit").find("<failure type=\"W101\" message=\"slow\">") != std::string::npos);
}

}  // namespace engine::cli
