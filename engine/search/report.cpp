#include "engine/search/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "engine/base/units.h"
#include "engine/recipe/fields.h"
#include "engine/recipe/print.h"

namespace engine::search {
namespace {

using nlohmann::ordered_json;
using recipe::Recipe;

// Share of a device's memory that is taken, with what lies outside of the arena.
double DeviceShare(const Found& found, const recipe::Cluster& cluster) {
  return static_cast<double>(found.arena_bytes + cluster.reserved_bytes) /
         static_cast<double>(cluster.memory_bytes);
}

// An MFU of another machine's times is none.
bool HasMfu(const Found& found) { return found.time.has_times() && found.time.mfu > 0; }

std::string Percent(bool known, double share) { return known ? fmt::format("{:.1f}", 100 * share) : "–"; }

std::string CountsText(const SearchResult& result) {
  const std::string limit = result.limit_bytes > 0 ? " than " + FormatBytes(result.limit_bytes) : "";
  std::string text =
      fmt::format("{} lawful layouts of {} ranks", WithThousands(result.layouts), result.world);
  if (result.interrupted)
    text += fmt::format("; interrupted after {} of them", WithThousands(result.looked_at));
  text += fmt::format("\n{} need more memory{}, {} cannot be the best; {} were estimated to know that\n",
                      WithThousands(result.too_large), limit, WithThousands(result.slower),
                      WithThousands(result.estimated));
  return text;
}

std::string RankingText(const SearchResult& result, size_t shown) {
  std::string text =
      fmt::format("ranked by estimates; {} plans compiled and compared", WithThousands(result.compiled));
  if (result.interrupted) return text + ", then interrupted\n";
  if (!result.all_compared) return text + ", of more that are about as good\n";
  if (static_cast<size_t>(result.compiled) <= shown) return text + "\n";
  return text + "; by its estimate no other can be the best\n";
}

// With `experts` a column of ep, and what tp does with them.
constexpr const char* kColumns =
    "\n  dp   tp   pp   cp{}   sp chunks  sched       zero micro  recompute                     memory of "
    "device  "
    "iteration  tok/s/dev   MFU% bubble exposed\n";

std::string LayoutRow(const Found& found, std::int64_t world, bool experts, const recipe::Cluster& cluster) {
  const Layout& l = found.layout;
  const double tokens = found.time.tokens_per_s / static_cast<double>(world);
  const bool limited = cluster.memory_bytes > 0;
  return fmt::format(
      "{:>4} {:>4} {:>4} {:>4}{}  {:>3} {:>6}  {:<11} {:>4} {:>5}  {:<25} {:>10}  {:>7} %  {:>9}  {:>9.0f}  "
      "{:>5} "
      "{:>6.1f} {:>7.1f}\n",
      l.dp, l.tp, l.pp, l.cp,
      experts ? fmt::format(" {:>4} {:>5}", l.ep, l.expert_tp == 1 ? "whole" : "split") : "",
      l.sequence_parallel ? "yes" : "no", l.virtual_stages, l.ScheduleText(), l.zero_stage, l.micro_batch,
      l.RecomputeText(), FormatBytes(found.arena_bytes),
      Percent(limited, limited ? DeviceShare(found, cluster) : 0),
      fmt::format("{:.3f} s", found.time.iteration_s), tokens, Percent(HasMfu(found), found.time.mfu),
      100 * found.time.bubble, 100 * found.time.exposed);
}

std::string NeighboursText(const std::vector<Neighbour>& neighbours) {
  if (neighbours.empty()) return "";
  std::string text = "\nits neighbours\n";
  size_t width = 0;
  for (const Neighbour& neighbour : neighbours) width = std::max(width, neighbour.change.size());
  for (const Neighbour& neighbour : neighbours)
    text += fmt::format("  {:<{}}  {}\n", neighbour.change, width, neighbour.why);
  return text;
}

ordered_json NumberOrNull(bool known, double number) {
  return known ? ordered_json(number) : ordered_json(nullptr);
}

ordered_json FoundJson(const Found& found, const Recipe& recipe) {
  const Layout& l = found.layout;
  const predict::Prediction& time = found.time;
  const bool known = time.has_times();
  const bool limited = recipe.cluster.memory_bytes > 0;
  return {{"dp", l.dp},
          {"tp", l.tp},
          {"pp", l.pp},
          {"cp", l.cp},
          {"ep", l.ep},
          {"expert_tp", l.expert_tp},
          {"sequence_parallel", l.sequence_parallel},
          {"virtual_stages", l.virtual_stages},
          {"layers_per_stage",
           l.layers_per_stage.empty() ? ordered_json(nullptr) : ordered_json(l.layers_per_stage)},
          {"schedule", l.pp > 1 ? ordered_json(l.ScheduleText()) : ordered_json(nullptr)},
          {"zero_stage", l.zero_stage},
          {"micro_batch", l.micro_batch},
          {"recompute", {{"granularity", l.granularity}, {"modules", l.modules}}},
          {"arena_bytes", found.arena_bytes},
          {"of_device", NumberOrNull(limited, limited ? DeviceShare(found, recipe.cluster) : 0)},
          {"iteration_s", NumberOrNull(known, time.iteration_s)},
          {"tokens_per_s", NumberOrNull(known, time.tokens_per_s)},
          {"mfu", NumberOrNull(HasMfu(found), time.mfu)},
          {"bubble", NumberOrNull(known, time.bubble)},
          {"exposed", NumberOrNull(known, time.exposed)}};
}

}  // namespace

std::string ToText(const SearchResult& result, const Recipe& recipe) {
  std::string text = CountsText(result);
  if (result.best.empty()) {
    if (result.interrupted) return text + "\nnothing that fits was found before that\n";
    return text + fmt::format("\nnone fits. {} needs least: {}\n", result.smallest.layout.ToString(),
                              FormatBytes(result.smallest.arena_bytes));
  }
  text += RankingText(result, result.best.size());
  for (const std::string& key : result.best.front().time.missing)
    text += fmt::format("cluster.{} is not given: times are of another machine\n", key);
  const bool experts = recipe.model.experts > 0;
  text += fmt::format(kColumns, experts ? "   ep   etp" : "");
  for (const Found& found : result.best) text += LayoutRow(found, result.world, experts, recipe.cluster);
  text += fmt::format("\nbest: {}\n", result.best.front().layout.ToString());
  return text + NeighboursText(result.neighbours);
}

ordered_json ToJson(const SearchResult& result, const Recipe& recipe) {
  ordered_json json = {{"world", result.world},
                       {"layouts", result.layouts},
                       {"looked_at", result.looked_at},
                       {"too_large", result.too_large},
                       {"slower", result.slower},
                       {"unlawful", result.unlawful},
                       {"estimated", result.estimated},
                       {"probes", result.probes},
                       {"compiled", result.compiled},
                       {"all_compared", result.all_compared},
                       {"interrupted", result.interrupted},
                       {"limit_bytes", result.limit_bytes > 0 ? ordered_json(result.limit_bytes) : nullptr},
                       {"missing", ordered_json::array()},
                       {"best", ordered_json::array()},
                       {"neighbours", ordered_json::array()}};
  if (!result.best.empty()) json["missing"] = result.best.front().time.missing;
  for (const Found& found : result.best) json["best"].push_back(FoundJson(found, recipe));
  for (const Neighbour& neighbour : result.neighbours) {
    ordered_json one = {{"change", neighbour.change}, {"why", neighbour.why}};
    one.update(FoundJson(neighbour.found, recipe));
    json["neighbours"].push_back(std::move(one));
  }
  return json;
}

std::string FoundRecipe(const Recipe& recipe, const Recipe& changed, const std::string& base) {
  std::map<std::string, std::string> tables;  // text of each
  for (const recipe::Change& change : recipe::Diff(recipe, changed)) {
    const size_t dot = change.key.rfind('.');
    tables[change.key.substr(0, dot)] += fmt::format("{} = {}\n", change.key.substr(dot + 1), change.after);
  }
  std::string text = fmt::format("extends = [{}]\n", recipe::QuoteToml(base));
  for (const auto& [table, lines] : tables) text += fmt::format("\n[{}]\n{}", table, lines);
  return text;
}

}  // namespace engine::search
