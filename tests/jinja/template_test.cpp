#include "engine/data/jinja/template.h"

#include <doctest/doctest.h>
#include <simdjson.h>

#include <nlohmann/json.hpp>
#include <random>

#include "engine/base/file.h"
#include "engine/base/status.h"
#include "engine/data/jinja/json.h"

namespace engine::jinja {
namespace {

Dict DictFrom(const nlohmann::ordered_json& json) {
  simdjson::dom::parser parser;
  simdjson::dom::element element;
  REQUIRE(parser.parse(json.dump()).get(element) == simdjson::SUCCESS);
  const absl::StatusOr<Value> value = FromJson(element);
  REQUIRE(value.ok());
  return *value->dict();
}

absl::StatusOr<Rendered> Render(std::string_view source,
                                const nlohmann::ordered_json& variables = nlohmann::ordered_json::object(),
                                const RenderOptions& options = {}) {
  ASSIGN_OR_RETURN(const Template made, Template::Parse(source, "t"));
  return made.Render(DictFrom(variables), options);
}

std::string ErrorOf(std::string_view source, const RenderOptions& options = {}) {
  const absl::StatusOr<Rendered> rendered = Render(source, nlohmann::ordered_json::object(), options);
  return rendered.ok() ? "rendered: " + rendered->text : Message(rendered.status());
}

RenderOptions JulyOptions() {
  RenderOptions options;
  options.now.tm_sec = 56;
  options.now.tm_min = 34;
  options.now.tm_hour = 12;
  options.now.tm_mday = 26;
  options.now.tm_mon = 6;
  options.now.tm_year = 124;
  options.now.tm_wday = 5;
  options.now.tm_yday = 207;
  return options;
}

nlohmann::ordered_json Cases() {
  const absl::StatusOr<std::string> text = ReadRegular(ENGINE_SOURCE_DIR "/tests/jinja/cases.json", 1 << 20);
  REQUIRE(text.ok());
  return nlohmann::ordered_json::parse(*text);
}

// The results are those of Jinja itself: tests/oracles/templates.py.
TEST_CASE("templates give what Jinja gives") {
  const nlohmann::ordered_json cases = Cases();
  CHECK(cases["cases"].size() > 90);
  for (const nlohmann::ordered_json& one : cases["cases"]) {
    const std::string source = one["template"];
    CAPTURE(source);
    const absl::StatusOr<Rendered> rendered = Render(source, cases["variables"], JulyOptions());
    if (one.contains("error")) {
      CHECK(!rendered.ok());
      continue;
    }
    CHECK(rendered.status().ToString() == "OK");
    if (!rendered.ok()) continue;
    CHECK(rendered->text == one["text"].get<std::string>());
    CHECK(nlohmann::ordered_json(rendered->generated) == one["generated"]);
  }
}

TEST_CASE("a template's mistakes are told with their line and column") {
  CHECK(ErrorOf("a\n{{ x | nofilter }}")
            .starts_with("t:2:8: error: the filter \"nofilter\" is not supported; there are abs, "));
  CHECK(ErrorOf("{% if x is notest %}{% endif %}")
            .starts_with("t:1:12: error: the test \"notest\" is not supported; there are "));
  CHECK(ErrorOf("{% include 'x' %}") ==
        "t:1:4: error: the statement \"include\" is not supported; there are if, for, set, with, macro, "
        "call, filter, "
        "generation, break, continue and raw");
  CHECK(ErrorOf("{{ f(*x) }}") ==
        "t:1:6: error: arguments that a list or a dict holds, \"*\" and \"**\", are not supported");
  CHECK(ErrorOf("{{ 'a'.zfill(3) }}") == "t:1:13: error: the method \"zfill\" of a str is not supported");
  CHECK(ErrorOf("é{{ '%s' % 1 }}") ==
        "t:1:11: error: text is not formatted by \"%\" here; \"~\" joins values");
  CHECK(ErrorOf("{{ 'É'.lower() }}") ==
        "t:1:14: error: the case of letters that are not ASCII is not changed here");
  CHECK(ErrorOf("\n {{ raise_exception('roles must alternate') }}") ==
        "t:2:20: error: the template says: roles must alternate");
  CHECK(ErrorOf("{{ messages[0].role }}") == "t:1:13: error: \"messages\" is undefined");
  CHECK(ErrorOf("{% for x in y recursive %}") ==
        "t:1:15: error: loops that call themselves, \"recursive\", are not supported");
  CHECK(ErrorOf("\xFF") == "t: error: is not UTF-8 from byte 0 on");
  CHECK(ErrorOf("{% macro f() %}{% generation %}{% endgeneration %}{% endmacro %}")
            .starts_with("t:1:19: error: a generation block stands inside a macro"));
}

TEST_CASE("a template is bounded in steps, sizes and depth") {
  RenderOptions few;
  few.most_steps = 1000;
  CHECK(ErrorOf("{% for i in range(1000) %}{{ i }}{% endfor %}", few)
            .ends_with("the template has taken more than 1000 steps"));
  RenderOptions small;
  small.most_bytes = 1000;
  CHECK(ErrorOf("{{ 'abc' * 400 }}", small) ==
        "t:1:10: error: 400 times a str would have more than 1000 bytes");
  CHECK(
      ErrorOf("{% for i in range(9) %}{% for i in range(9) %}1234567890123456{% endfor %}{% endfor %}", small)
          .ends_with("the text has more than 1000 bytes"));
  CHECK(ErrorOf(
            "{% set ns = namespace(x='a') %}{% for i in range(90) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}")
            .ends_with("a text of more than 67108864 bytes"));
  CHECK(ErrorOf("{% set ns = namespace(x=[]) %}{% for i in range(900) %}{% set ns.x = [ns.x] %}{% endfor %}")
            .find("200 lists in each other") != std::string::npos);
  CHECK(ErrorOf("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").find("goes deeper than 1000 levels") !=
        std::string::npos);
  CHECK(ErrorOf("{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor "
                "%}{% endfor %}{% endfor %}")
            .ends_with("the template has taken more than 20000000 steps"));
  CHECK(absl::IsResourceExhausted(
      Render("{% for i in range(1000) %}{{ i }}{% endfor %}", nlohmann::ordered_json::object(), few)
          .status()));
  const auto nested = [](int count, std::string_view open) {
    std::string text = "{{ ";
    for (int i = 0; i < count; ++i) text += open;
    return text;
  };
  for (const std::string_view open : {"(", "[", "{'a': ", "-", "not ", "f(", "x if "})
    CHECK(ErrorOf(nested(100'000, open)).find("error: ") != std::string::npos);
  std::string sum = "{{ 1";
  for (int i = 0; i < 50'000; ++i) sum += "+1";
  CHECK(ErrorOf(sum + " }}").ends_with("the expression has more than 300 parts within each other"));
  std::string ifs;
  for (int i = 0; i < 10'000; ++i) ifs += "{% if 1 %}";
  CHECK(ErrorOf(ifs).ends_with("is nested deeper than 200 levels"));
}

// No output is asked for: that none of them crashes or hangs is the test, and that each says where its mistake is.
TEST_CASE("mutated templates are refused, or rendered") {
  const nlohmann::ordered_json cases = Cases();
  const Dict variables = DictFrom(cases["variables"]);
  std::mt19937 random(5);
  const auto below = [&random](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  RenderOptions options = JulyOptions();
  options.most_steps = 20'000;
  int rendered = 0;
  int refused = 0;
  for (int i = 0; i < 1000; ++i) {
    std::string source = cases["cases"][below(cases["cases"].size())]["template"];
    const std::string other = cases["cases"][below(cases["cases"].size())]["template"];
    for (std::size_t k = 1 + below(3); k > 0 && !source.empty(); --k) {
      const std::size_t at = below(source.size());
      switch (below(4)) {
        case 0:
          source.erase(at, 1 + below(8));
          break;
        case 1:
          source.insert(at, other.substr(below(other.size() + 1), below(20)));
          break;
        case 2:
          source[at] = "{%}|.()[]'\"-+~=, \n\0\xFF#a1"[below(24)];
          break;
        default:
          source.insert(at, source.substr(below(source.size()), below(30)));
      }
    }
    CAPTURE(source);
    const absl::StatusOr<Template> made = Template::Parse(source, "t");
    const absl::StatusOr<Rendered> result = made.ok() ? made->Render(variables, options) : made.status();
    (result.ok() ? rendered : refused) += 1;
    if (!result.ok()) CHECK(Message(result.status()).find("error: ") != std::string::npos);
  }
  CHECK(rendered > 100);
  CHECK(refused > 100);
}

}  // namespace
}  // namespace engine::jinja
