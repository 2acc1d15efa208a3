#include "engine/study/comparison.h"

#include <doctest/doctest.h>

#include "engine/driver/plan_document.h"
#include "engine/recipe/load.h"
#include "tests/plan/plans.h"

namespace engine::study {
namespace {

Side SideWith(const std::string& name, const std::vector<std::string>& sets) {
  absl::StatusOr<Side> side = SideOf(name, plan::TinyRecipe(false, sets), {});
  if (!side.ok()) FAIL(Message(side.status()));
  return *std::move(side);
}

std::string Document(const std::vector<std::string>& sets) {
  const recipe::Recipe recipe = plan::TinyRecipe(false, sets);
  const absl::StatusOr<plan::Plan> plan = driver::CompileUnverified(recipe, {});
  REQUIRE(plan.ok());
  return driver::PlanDocument(recipe, *plan).dump();
}

bool Has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  MESSAGE("no '" << part << "' in: " << text);
  return false;
}

}  // namespace

TEST_CASE("comparison: of equals nothing, in every form") {
  const Comparison same = Compare(SideWith("x", {}), SideWith("y", {}));
  CHECK(same.empty());
  CHECK(Has(ToText(same), "no difference\n"));
  CHECK(Has(ToMarkdown(same), "No difference.\n"));
  const nlohmann::json json = ToJson(same);
  CHECK(json["same_plan"] == true);
  CHECK(json["settings"].empty());
  CHECK(json["effects"].empty());
}

TEST_CASE("comparison: the reverse of the reverse") {
  const Side a = SideWith("x", {"parallelism.tp=2", "training.seed=7"});
  const Side b = SideWith("y", {"parallelism.pp=4"});
  const nlohmann::json there = ToJson(Compare(a, b));
  const nlohmann::json back = ToJson(Compare(b, a));
  CHECK(there["settings"].size() == 3);
  CHECK(there["effects"].size() > 10);
  for (const char* list : {"settings", "effects"}) {
    REQUIRE(there[list].size() == back[list].size());
    for (std::size_t i = 0; i < there[list].size(); ++i) {
      nlohmann::json turned = back[list][i];
      std::swap(turned["a"], turned["b"]);
      if (turned.contains("a_origin")) std::swap(turned["a_origin"], turned["b_origin"]);
      if (turned.contains("change")) {
        turned["change"] = turned["change"].is_number_float()
                               ? nlohmann::json(-turned["change"].get<double>())
                               : nlohmann::json(-turned["change"].get<std::int64_t>());
      }
      CHECK(there[list][i] == turned);
      if (turned.contains("change")) {
        const double change = there[list][i]["b"].get<double>() - there[list][i]["a"].get<double>();
        CHECK(there[list][i]["change"].get<double>() == change);
      }
    }
  }
}

TEST_CASE("comparison: a plan's document stands for its recipe, origins included") {
  const absl::StatusOr<Side> kept = SideOfPlan("plan.json", Document({"parallelism.tp=2"}));
  REQUIRE(kept.ok());
  CHECK(Compare(*kept, SideWith("x", {"parallelism.tp=2"})).empty());
  const Comparison comparison = Compare(*kept, SideWith("x", {"training.seed=9"}));
  REQUIRE(comparison.settings.size() == 2);
  CHECK(comparison.settings[0].key == "parallelism.tp");
  CHECK(comparison.settings[0].a == "2");
  CHECK(comparison.settings[0].b == "1");
  CHECK(comparison.settings[0].a_origin == "--set:1:16");
  CHECK(comparison.settings[0].b_origin == "default");
  CHECK(comparison.settings[1].a_origin == "default");
}

TEST_CASE("comparison: a plan without its recipe says so, and rubbish is refused") {
  nlohmann::json document = nlohmann::json::parse(Document({}));
  document.erase("recipe");
  const absl::StatusOr<Side> bare = SideOfPlan("plan.json", document.dump());
  REQUIRE(bare.ok());
  const Comparison comparison = Compare(*bare, SideWith("x", {}));
  CHECK(!comparison.settings_known);
  CHECK(Has(ToText(comparison), "a plan does not hold its recipe"));
  CHECK(Message(SideOfPlan("p.json", "{").status()).starts_with("p.json:1:2: error: syntax error"));
  CHECK(Message(SideOfPlan("p.json", "{}").status())
            .starts_with("p.json: no plan as `engine plan --json` writes it"));
  document["recipe"] = "model = 3";
  CHECK(!SideOfPlan("p.json", document.dump()).ok());
}

TEST_CASE("comparison: neighbouring stages that change alike share a heading; text is exact") {
  const Comparison comparison = Compare(SideWith("a.toml", {"parallelism.pp=4", "model.layers=8"}),
                                        SideWith("b.toml", {"parallelism.pp=4", "model.layers=12"}));
  const std::string text = ToText(comparison);
  CHECK(Has(text, "a  a.toml\nb  b.toml\nplan "));
  CHECK(Has(text, "\nsettings\n  model.layers  8  → 12  (--set:2:14 → --set:2:14)\n"));
  CHECK(Has(text, "\nmemory of stage 0\n"));
  const std::string markdown = ToMarkdown(comparison);
  CHECK(Has(markdown, "| `model.layers` | `8` | `12` | `--set:2:14` → `--set:2:14` |\n"));
  CHECK(Has(markdown, "| **memory of stage 0** | | | |\n"));

  Comparison made;
  made.a_hash = "1";
  made.settings = {{"data.split", "\"a|b\"", "\"c`d\"", "x", "y"}};
  for (const std::int64_t stage : {0, 1, 2}) {
    made.effects.push_back(
        {{predict::Section::kMemory, stage, 0, "total"}, predict::Unit::kBytes, 1024, stage == 2 ? 1 : 1536});
  }
  CHECK(Has(ToText(made), "\nmemory of stages 0-1\n  total  1.00 KiB  → 1.50 KiB  +512 B (× 1.500)\n"));
  CHECK(Has(ToText(made), "\nmemory of stage 2\n  total  1.00 KiB  → 1 B  -1023 B (× 0.001)\n"));
  CHECK(Has(ToMarkdown(made), "| `data.split` | `\"a\\|b\"` | `\"c'd\"` | `x` → `y` |\n"));
}

TEST_CASE("comparison: that there is no difference is not said where something else differs") {
  Comparison made;
  CHECK(Has(ToText(made), "\nno difference\n"));
  CHECK(Has(ToMarkdown(made), "\nNo difference.\n"));
  made.more_differs = true;
  CHECK(Has(ToText(made), "\nno setting differs\n"));
  CHECK(Has(ToMarkdown(made), "\nNo setting differs.\n"));
  CHECK(made.empty());
}

TEST_CASE("comparison: FLOPs have a unit of their own, and values that read the same are left to JSON") {
  CHECK(FactText(predict::Unit::kFlops, 52.56e9) == "52.56 GFLOP");
  CHECK(FactText(predict::Unit::kFlops, 512) == "512 FLOP");
  Comparison made;
  made.a_hash = "1";
  made.settings_known = true;
  made.effects = {
      {{predict::Section::kWork, -1, 0, "FLOPs per token"}, predict::Unit::kFlops, 52.56e9, 52.56e9 - 4100},
      {{predict::Section::kWork, -1, 1, "ranks"}, predict::Unit::kCount, 2, 4}};
  for (const std::string& text : {ToText(made), ToMarkdown(made)}) {
    CHECK(text.find("FLOPs per token") == std::string::npos);
    CHECK(Has(text, "ranks"));
    CHECK(Has(text, "\none number differs by less than is shown here; --format json has it\n"));
  }
  CHECK(ToJson(made)["effects"].size() == 2);
  made.effects.pop_back();
  made.effects.push_back(made.effects[0]);
  CHECK(Has(ToText(made), "\n2 numbers differ by less than is shown here; --format json has them\n"));
  CHECK(ToMarkdown(made).find("| effect |") == std::string::npos);
}

}  // namespace engine::study
