#include "engine/study/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "engine/base/json.h"
#include "engine/base/shown.h"
#include "engine/base/units.h"
#include "engine/driver/compile_recipe.h"
#include "engine/driver/plan_document.h"
#include "engine/model/load.h"
#include "engine/recipe/print.h"

namespace engine::study {
namespace {

using Json = nlohmann::json;
using predict::Effect;
using predict::Unit;

constexpr double kLargest = 1e18;  // what fits an integer, of numbers of a file

// The comment that recipe::ToToml puts behind each value.
std::string OriginIn(const Side& side, const std::string& key) {
  if (!side.kept) return recipe::OriginOf(*side.recipe, key);
  const auto found = side.recipe->provenance.find(key);
  if (found == side.recipe->provenance.end()) return "";
  const std::string& line = found->second.source_line;
  const std::size_t comment = line.rfind("  # ");
  if (comment == std::string::npos) return recipe::OriginOf(*side.recipe, key);
  return line.substr(comment + 4);
}

std::string Seconds(double seconds) {
  if (std::abs(seconds) >= 1) return fmt::format("{:.3f} s", seconds);
  return fmt::format("{:.3f} ms", seconds * 1e3);
}

// "52.56 GFLOP"
std::string Flops(double flops) {
  std::string count = FormatCount(flops);
  const bool prefixed = count.back() < '0' || count.back() > '9';
  count.insert(count.size() - (prefixed ? 1 : 0), " ");
  return count + "FLOP";
}

std::string Number(Unit unit, double value) {
  switch (unit) {
    case Unit::kBytes:
      return FormatBytes(std::llround(value));
    case Unit::kFlops:
      return Flops(value);
    case Unit::kSeconds:
      return Seconds(value);
    case Unit::kShare:
      return fmt::format("{:.2f} %", value * 100);
    default:
      return WithThousands(std::llround(value));
  }
}

// "+1.50 GiB (× 1.20)"; empty where there is nothing to subtract.
std::string ChangeText(const Effect& effect) {
  if (!effect.before.is_number() || !effect.after.is_number()) return "";
  const double before = effect.before.get<double>();
  const double after = effect.after.get<double>();
  if (!(std::abs(before) < kLargest && std::abs(after) < kLargest)) return "";
  std::string change = (after > before ? "+" : "") + Number(effect.unit, after - before);
  if (before == 0 || after == 0 || effect.unit == Unit::kShare) return change;
  return fmt::format("{} (× {:.3f})", change, after / before);
}

// Without those whose two values read the same, as they are rounded here.
std::vector<Effect> Readable(const std::vector<Effect>& effects) {
  std::vector<Effect> readable;
  for (const Effect& effect : effects) {
    if (FactText(effect.unit, effect.before) != FactText(effect.unit, effect.after))
      readable.push_back(effect);
  }
  return readable;
}

// The line that counts the rows that are left out; empty where there are none.
std::string LeftOut(std::size_t count) {
  if (count == 0) return "";
  if (count == 1) return "one number differs by less than is shown here; --format json has it\n";
  return fmt::format("{} numbers differ by less than is shown here; --format json has them\n", count);
}

// Effects under one heading: of a section, and within it of neighbouring stages that change alike.
struct Group {
  predict::Section section;
  std::int64_t first_stage = -1, last_stage = -1;
  std::vector<Effect> effects;

  std::string heading() const {
    std::string name = Name(section);
    if (first_stage < 0) return name;
    if (first_stage == last_stage) return fmt::format("{} of stage {}", name, first_stage);
    return fmt::format("{} of stages {}-{}", name, first_stage, last_stage);
  }
};

bool Alike(const Group& a, const Group& b) {
  const auto same = [](const Effect& x, const Effect& y) {
    return x.key.name == y.key.name && x.before == y.before && x.after == y.after;
  };
  return a.section == b.section && a.last_stage >= 0 && a.last_stage + 1 == b.first_stage &&
         std::equal(a.effects.begin(), a.effects.end(), b.effects.begin(), b.effects.end(), same);
}

std::vector<Group> GroupsOf(const std::vector<Effect>& effects) {
  std::vector<Group> groups;
  for (const Effect& effect : effects) {
    const predict::FactKey& key = effect.key;
    if (groups.empty() || groups.back().section != key.section || groups.back().first_stage != key.stage) {
      groups.push_back({key.section, key.stage, key.stage, {}});
    }
    groups.back().effects.push_back(effect);
  }
  std::vector<Group> joined;
  for (Group& group : groups) {
    if (!joined.empty() && Alike(joined.back(), group)) {
      joined.back().last_stage = group.last_stage;
    } else {
      joined.push_back(std::move(group));
    }
  }
  return joined;
}

using Row = std::array<std::string, 4>;

std::size_t Width(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80; }));
}

// Two spaces in front and between, every column but the last padded on its right.
std::string Columns(const std::vector<Row>& rows) {
  std::array<std::size_t, 4> widths = {};
  for (const Row& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], Width(row[c]));
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      line += "  " + row[c] + std::string(widths[c] - Width(row[c]), ' ');
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

Row RowOf(const Effect& effect) {
  return {effect.key.name, FactText(effect.unit, effect.before), FactText(effect.unit, effect.after),
          ChangeText(effect)};
}

constexpr const char* kNoSettings = "settings are not compared: a plan does not hold its recipe";

std::string PlansText(const Comparison& c) {
  return c.a_hash == c.b_hash ? fmt::format("the same plan, {}", c.a_hash)
                              : fmt::format("plan {} → {}", c.a_hash, c.b_hash);
}

}  // namespace

std::string FactText(Unit unit, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_number()) return "–";
  const double number = value.get<double>();
  return std::abs(number) < kLargest ? Number(unit, number) : fmt::format("{}", number);
}

absl::StatusOr<Side> SideOf(std::string name, recipe::Recipe recipe, const plan::DeviceProfile& profile) {
  ASSIGN_OR_RETURN(const plan::Plan plan, driver::CompileUnverified(recipe, {.profile = profile}));
  Side side{.name = std::move(name), .hash = plan.hash, .recipe = {}, .facts = {}};
  ASSIGN_OR_RETURN(side.facts, predict::FactsOf(driver::PlanDocument(recipe, plan)));
  side.recipe = std::move(recipe);
  return side;
}

absl::StatusOr<Side> SideOfPlan(std::string name, const std::string& text) {
  ASSIGN_OR_RETURN(const Json json, ParseJson(text, name));
  absl::StatusOr<std::vector<predict::Fact>> facts = predict::FactsOf(json);
  if (!facts.ok()) return WithContext(facts.status(), name);
  const auto word = [&](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  Side side{.name = std::move(name), .hash = word("hash"), .recipe = {}, .facts = *std::move(facts)};
  const std::string toml = word("recipe");
  if (toml.empty()) return side;
  recipe::LoadResult loaded = model::LoadText(toml, side.name + " (recipe)");
  if (!loaded.ok()) {
    const auto is_error = [](const Diagnostic& diagnostic) {
      return diagnostic.severity == Severity::kError;
    };
    return absl::InvalidArgumentError(
        Format(*std::find_if(loaded.diagnostics.begin(), loaded.diagnostics.end(), is_error)));
  }
  side.recipe = std::move(loaded.recipe);
  side.kept = true;
  return side;
}

Comparison Compare(const Side& a, const Side& b) {
  Comparison comparison{
      .a = a.name, .b = b.name, .a_hash = a.hash, .b_hash = b.hash, .settings = {}, .effects = {}};
  comparison.effects = predict::Compare(a.facts, b.facts);
  comparison.tasks = Differences(a.tasks, b.tasks);
  comparison.settings_known = a.recipe.has_value() && b.recipe.has_value();
  if (!comparison.settings_known) return comparison;
  for (const recipe::Change& change : recipe::Diff(*a.recipe, *b.recipe)) {
    comparison.settings.push_back(
        {change.key, change.before, change.after, OriginIn(a, change.key), OriginIn(b, change.key)});
  }
  return comparison;
}

namespace {

// Of each measure of a task: its name, both values, and their difference with its margin.
constexpr const char* kPaired = ", by example";

std::vector<Row> RowsOfTasks(const std::vector<TaskDifference>& tasks) {
  std::vector<Row> rows;
  rows.reserve(tasks.size());
  for (const TaskDifference& task : tasks) {
    rows.push_back({task.name, fmt::format("{:.4g}", task.a), fmt::format("{:.4g}", task.b),
                    WithMargin(task.b - task.a, task.margin) + (task.paired ? kPaired : "")});
  }
  return rows;
}

std::string PlanText(const Comparison& c) {
  std::string text = fmt::format("a  {}\nb  {}\n{}\n", c.a, c.b, PlansText(c));
  if (!c.settings_known) text += fmt::format("{}\n", kNoSettings);
  if (c.empty()) return text + (c.more_differs ? "no setting differs\n" : "no difference\n");
  if (!c.settings.empty()) {
    std::vector<Row> rows;
    for (const SettingChange& s : c.settings) {
      rows.push_back({s.key, s.a, "→ " + s.b, fmt::format("({} → {})", s.a_origin, s.b_origin)});
    }
    text += "\nsettings\n" + Columns(rows);
  }
  const std::vector<Effect> effects = Readable(c.effects);
  for (const Group& group : GroupsOf(effects)) {
    std::vector<Row> rows;
    for (const Effect& effect : group.effects) {
      Row row = RowOf(effect);
      row[2] = "→ " + row[2];
      rows.push_back(std::move(row));
    }
    text += "\n" + group.heading() + "\n" + Columns(rows);
  }
  if (c.effects.empty()) return text + "\nno number of the plan differs\n";
  const std::string left_out = LeftOut(c.effects.size() - effects.size());
  return left_out.empty() ? text : text + "\n" + left_out;
}

std::string PlanMarkdown(const Comparison& c) {
  std::string text = fmt::format("### {} → {}\n\n{}\n", MarkdownCode(c.a), MarkdownCode(c.b), PlansText(c));
  if (!c.settings_known) text += fmt::format("\n{}\n", kNoSettings);
  if (c.empty()) return text + (c.more_differs ? "\nNo setting differs.\n" : "\nNo difference.\n");
  if (!c.settings.empty()) text += "\n| setting | a | b | from |\n|---|---|---|---|\n";
  for (const SettingChange& s : c.settings) {
    text += fmt::format("| {} | {} | {} | {} → {} |\n", MarkdownCode(s.key), MarkdownCode(s.a),
                        MarkdownCode(s.b), MarkdownCode(s.a_origin), MarkdownCode(s.b_origin));
  }
  const std::vector<Effect> effects = Readable(c.effects);
  if (!effects.empty()) text += "\n| effect | a | b | change |\n|---|---:|---:|---:|\n";
  for (const Group& group : GroupsOf(effects)) {
    text += fmt::format("| **{}** | | | |\n", group.heading());
    for (const Effect& effect : group.effects) {
      const Row row = RowOf(effect);
      text += fmt::format("| {} | {} | {} | {} |\n", row[0], row[1], row[2], row[3]);
    }
  }
  const std::string left_out = LeftOut(c.effects.size() - effects.size());
  if (!left_out.empty()) text += "\n" + left_out;
  return text;
}

}  // namespace

std::string ToText(const Comparison& c) {
  std::string text = PlanText(c);
  if (c.tasks.empty()) return text;
  std::vector<Row> rows = RowsOfTasks(c.tasks);
  for (Row& row : rows) row[2] = "→ " + row[2];
  return text + "\ntasks, difference with a confidence of 95 %\n" + Columns(rows);
}

std::string ToMarkdown(const Comparison& c) {
  std::string text = PlanMarkdown(c);
  if (!c.tasks.empty()) text += "\n| task | a | b | difference, 95 % |\n|---|---:|---:|---:|\n";
  for (const Row& row : RowsOfTasks(c.tasks))
    text += fmt::format("| {} | {} | {} | {} |\n", MarkdownCode(row[0]), row[1], row[2], row[3]);
  return text;
}

nlohmann::ordered_json ToJson(const Comparison& c) {
  nlohmann::ordered_json settings = nlohmann::ordered_json::array();
  for (const SettingChange& s : c.settings) {
    settings.push_back(
        {{"key", s.key}, {"a", s.a}, {"b", s.b}, {"a_origin", s.a_origin}, {"b_origin", s.b_origin}});
  }
  constexpr std::array kUnits = {"count", "bytes", "flops", "seconds", "share", "word"};
  nlohmann::ordered_json effects = nlohmann::ordered_json::array();
  for (const Effect& effect : c.effects) {
    nlohmann::ordered_json& item = effects.emplace_back();
    item["section"] = Name(effect.key.section);
    if (effect.key.stage >= 0) item["stage"] = effect.key.stage;
    item["name"] = effect.key.name;
    item["unit"] = kUnits[static_cast<std::size_t>(effect.unit)];
    item["a"] = effect.before;
    item["b"] = effect.after;
    if (effect.before.is_number() && effect.after.is_number()) {
      const bool whole = effect.before.is_number_integer() && effect.after.is_number_integer();
      item["change"] = effect.after.get<double>() - effect.before.get<double>();
      if (whole) item["change"] = effect.after.get<std::int64_t>() - effect.before.get<std::int64_t>();
    }
  }
  nlohmann::ordered_json tasks = nlohmann::ordered_json::array();
  for (const TaskDifference& task : c.tasks) {
    nlohmann::ordered_json& item = tasks.emplace_back();
    item = {{"name", task.name}, {"a", task.a}, {"b", task.b}, {"change", task.b - task.a}};
    if (task.margin) item["margin_95"] = *task.margin;
    item["by_example"] = task.paired;
  }
  return {{"a", {{"name", c.a}, {"plan", c.a_hash}}},
          {"b", {{"name", c.b}, {"plan", c.b_hash}}},
          {"same_plan", c.a_hash == c.b_hash},
          {"settings_compared", c.settings_known},
          {"settings", std::move(settings)},
          {"effects", std::move(effects)},
          {"tasks", std::move(tasks)}};
}

}  // namespace engine::study
