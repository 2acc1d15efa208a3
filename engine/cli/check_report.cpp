#include "engine/cli/check_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/base/status.h"
#include "engine/base/version.h"
#include "engine/recipe/codes.h"
#include "engine/recipe/shipped.h"

namespace engine::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

// A file name or a clipped source line need not be UTF-8; every form but text must be.
std::string Dump(const OrderedJson& json, int indent) {
  return json.dump(indent, ' ', false, OrderedJson::error_handler_t::replace);
}
std::string ValidUtf8(const std::string& text) { return OrderedJson::parse(Dump(text, -1)); }

const char* SeverityName(Severity severity) {
  return severity == Severity::kError ? "error" : severity == Severity::kWarning ? "warning" : "note";
}

// A --set argument has no place in a file, and a file of the installation none in the user's.
bool IsInFile(const SourceSpan& span) {
  return !span.file.empty() && span.file != "--set" && !recipe::IsShipped(span.file);
}

std::string WithHint(const Diagnostic& d) { return d.message + (d.hint.empty() ? "" : "\nhint: " + d.hint); }

// ---------------------------------------------------------------------------------------------------------
// text

// "2 recipes", "1 recipe and 1 study".
std::string CountedFiles(const std::vector<CheckedFile>& files) {
  const std::size_t studies = static_cast<std::size_t>(
      std::count_if(files.begin(), files.end(), [](const CheckedFile& file) { return file.is_study; }));
  const std::size_t recipes = files.size() - studies;
  std::string text;
  if (recipes > 0) text = fmt::format("{} {}", recipes, recipes == 1 ? "recipe" : "recipes");
  if (studies > 0) {
    text += fmt::format("{}{} {}", text.empty() ? "" : " and ", studies, studies == 1 ? "study" : "studies");
  }
  return text;
}

std::string Text(const CheckReport& report) {
  std::string text;
  std::size_t with_errors = 0;
  std::size_t with_warnings = 0;
  for (const CheckedFile& file : report.files) {
    for (const Diagnostic& diagnostic : file.diagnostics) text += Format(diagnostic, report.colors);
    if (HasErrors(file.diagnostics)) {
      ++with_errors;
    } else if (HasWarnings(file.diagnostics)) {
      ++with_warnings;
    } else {
      text += fmt::format("{}: ok\n", file.file);
    }
  }
  text += fmt::format("{} checked, {} with errors", CountedFiles(report.files), with_errors);
  if (with_warnings > 0) text += fmt::format(", {} with warnings", with_warnings);
  return text + "\n";
}

// ---------------------------------------------------------------------------------------------------------
// json

OrderedJson ToJson(const Diagnostic& d) {
  return {{"severity", SeverityName(d.severity)},
          {"code", d.code},
          {"file", d.span.file},
          {"line", std::max(1, d.span.line)},  // of a file as a whole, its beginning
          {"column", std::max(1, d.span.column)},
          {"length", d.span.length},
          {"message", d.message},
          {"hint", d.hint},
          {"source_line", d.source_line}};
}

std::string JsonText(const CheckReport& report) {
  OrderedJson files = OrderedJson::array();
  for (const CheckedFile& file : report.files) {
    OrderedJson listed = OrderedJson::array();
    for (const Diagnostic& diagnostic : file.diagnostics) listed.push_back(ToJson(diagnostic));
    files.push_back({{"file", file.file}, {"ok", report.Passes(file)}, {"diagnostics", listed}});
  }
  return Dump({{"ok", report.Passes()}, {"files", files}}, 2) + "\n";
}

// --------------------------------------------------------------------------------------------------------
// sarif

// A path as a URI reference (RFC 3986).
std::string ToUri(const std::string& path) {
  std::string uri = path.front() == '/' ? "file://" : "";
  for (const char c : path) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("-._~/").find(c) != std::string_view::npos;
    uri += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return uri;
}

// Column of a byte of the line, counted in code points; both from 1.
int CodePointColumn(const std::string& line, int byte_column) {
  const auto end = std::min(line.size(), static_cast<std::size_t>(byte_column - 1));
  const auto continues = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; };
  return byte_column - static_cast<int>(std::count_if(
                           line.begin(), line.begin() + static_cast<std::ptrdiff_t>(end), continues));
}

OrderedJson Region(const Diagnostic& d) {
  OrderedJson region = {{"startLine", d.span.line}};
  if (d.span.column > 0) {
    region["startColumn"] = CodePointColumn(d.source_line, d.span.column);
    region["endColumn"] = CodePointColumn(d.source_line, d.span.column + std::max(1, d.span.length));
  }
  return region;
}

OrderedJson SarifResult(const Diagnostic& d) {
  OrderedJson result;
  if (d.severity != Severity::kNote) {
    const std::vector<recipe::Code>& codes = recipe::Codes();
    const recipe::Code* code = recipe::FindCode(d.code);
    ENGINE_CHECK(code != nullptr, "'{}' has the code '{}', which is none", d.message, d.code);
    result = {{"ruleId", d.code}, {"ruleIndex", code - codes.data()}};
  }
  result["level"] = SeverityName(d.severity);
  result["message"] = {{"text", WithHint(d)}};
  if (!IsInFile(d.span)) return result;
  OrderedJson place = {{"artifactLocation", {{"uri", ToUri(d.span.file)}}}};
  if (d.span.line > 0) place["region"] = Region(d);
  result["locations"] = OrderedJson::array({{{"physicalLocation", place}}});
  return result;
}

OrderedJson SarifRule(const recipe::Code& code) {
  return {{"id", code.code},
          {"name", code.name},
          {"shortDescription", {{"text", code.title}}},
          {"fullDescription", {{"text", code.reason}}},
          {"help", {{"text", code.remedy}}},
          {"defaultConfiguration", {{"level", code.is_warning() ? "warning" : "error"}}}};
}

std::string Sarif(const CheckReport& report) {
  OrderedJson rules = OrderedJson::array();
  for (const recipe::Code& code : recipe::Codes()) rules.push_back(SarifRule(code));
  OrderedJson results = OrderedJson::array();
  for (const CheckedFile& file : report.files) {
    for (const Diagnostic& diagnostic : file.diagnostics) results.push_back(SarifResult(diagnostic));
  }
  const OrderedJson driver = {{"name", "engine check"}, {"version", Version()}, {"rules", rules}};
  const OrderedJson run = {
      {"tool", {{"driver", driver}}}, {"columnKind", "unicodeCodePoints"}, {"results", results}};
  return Dump({{"$schema", "https://json.schemastore.org/sarif-2.1.0.json"},
               {"version", "2.1.0"},
               {"runs", OrderedJson::array({run})}},
              2) +
         "\n";
}

// --------------------------------------------------------------------------------------------------------
// junit

std::string EscapeXml(const std::string& raw) {
  std::string escaped;
  for (const char c : ValidUtf8(raw)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '&') {
      escaped += "&amp;";
    } else if (c == '<') {
      escaped += "&lt;";
    } else if (c == '>') {
      escaped += "&gt;";
    } else if (c == '"') {
      escaped += "&quot;";
    } else if (byte < 0x20 && c != '\n' && c != '\t') {
      escaped += "\xef\xbf\xbd";  // U+FFFD: XML has no such character
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string JunitCase(const CheckReport& report, const CheckedFile& file) {
  std::string text;
  for (const Diagnostic& diagnostic : file.diagnostics) text += Format(diagnostic);
  std::string body;
  if (!report.Passes(file)) {
    const auto failing = [&](const Diagnostic& d) {
      return d.severity == Severity::kError || (report.strict && d.severity == Severity::kWarning);
    };
    const auto first = std::find_if(file.diagnostics.begin(), file.diagnostics.end(), failing);
    body = fmt::format("    <failure type=\"{}\" message=\"{}\">{}</failure>\n", first->code,
                       EscapeXml(first->message), EscapeXml(text));
  } else if (!text.empty()) {
    body = fmt::format("    <system-out>{}</system-out>\n", EscapeXml(text));
  }
  return fmt::format("  <testcase classname=\"engine check\" name=\"{}\">\n{}  </testcase>\n",
                     EscapeXml(file.file), body);
}

std::string Junit(const CheckReport& report) {
  const auto failures = std::count_if(report.files.begin(), report.files.end(),
                                      [&](const CheckedFile& f) { return !report.Passes(f); });
  std::string text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
  text += fmt::format(
      "<testsuite name=\"engine check\" tests=\"{}\" failures=\"{}\" errors=\"0\" skipped=\"0\">\n",
      report.files.size(), failures);
  for (const CheckedFile& file : report.files) text += JunitCase(report, file);
  return text + "</testsuite>\n";
}

// -------------------------------------------------------------------------------------------------------
// github

std::string EscapeCommand(const std::string& raw, bool is_property) {
  std::string escaped;
  for (const char c : ValidUtf8(raw)) {
    const bool special = c == '%' || c == '\r' || c == '\n' || (is_property && (c == ':' || c == ','));
    escaped += special ? fmt::format("%{:02X}", static_cast<unsigned char>(c)) : std::string(1, c);
  }
  return escaped;
}

std::string GithubLine(const Diagnostic& d) {
  std::string place;
  if (IsInFile(d.span)) {
    place = fmt::format("file={},", EscapeCommand(d.span.file, true));
    if (d.span.line > 0) place += fmt::format("line={},", d.span.line);
    if (d.span.column > 0) {
      place += fmt::format("col={},endColumn={},", d.span.column, d.span.column + std::max(1, d.span.length));
    }
  }
  const std::string command = d.severity == Severity::kNote ? "notice" : SeverityName(d.severity);
  const std::string& title = d.code.empty() ? command : d.code;
  return fmt::format("::{} {}title={}::{}\n", command, place, title, EscapeCommand(WithHint(d), false));
}

std::string Github(const CheckReport& report) {
  std::string text;
  for (const CheckedFile& file : report.files) {
    for (const Diagnostic& diagnostic : file.diagnostics) text += GithubLine(diagnostic);
  }
  return text;
}

struct Form {
  const char* name;
  std::string (*write)(const CheckReport&);
};
constexpr Form kForms[] = {
    {"text", Text}, {"json", JsonText}, {"sarif", Sarif}, {"junit", Junit}, {"github", Github}};

}  // namespace

bool CheckReport::Passes(const CheckedFile& file) const {
  return !HasErrors(file.diagnostics) && !(strict && HasWarnings(file.diagnostics));
}

bool CheckReport::Passes() const {
  return std::all_of(files.begin(), files.end(), [this](const CheckedFile& file) { return Passes(file); });
}

std::vector<std::string> ReportFormats() {
  std::vector<std::string> names;
  for (const Form& form : kForms) names.emplace_back(form.name);
  return names;
}

std::string ReportText(const CheckReport& report, std::string_view format) {
  for (const Form& form : kForms) {
    if (form.name == format) return form.write(report);
  }
  ENGINE_CHECK(false, "there is no form '{}'", format);
  return "";
}

}  // namespace engine::cli
