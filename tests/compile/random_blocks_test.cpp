// Blocks of steps drawn at random: whatever a model's text says, each layout has a lawful plan, or the recipe is refused for it.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/driver/compile_recipe.h"
#include "tests/compile/block_recipe.h"

namespace engine::compile {
namespace {

using Dims = std::vector<std::string>;  // as a recipe writes them: "H", "1"

// Draws the steps of a block of x[B, S, D]. What a step makes and none reads goes to the residual by a product.
class BlockWriter {
 public:
  explicit BlockWriter(std::uint32_t seed) : random_(seed) {}

  std::string Write() {
    Add("n", {"D"}, fmt::format("do = \"{}\", of = \"x\"", Below(2) == 0 ? "rms_norm" : "layer_norm"));
    const int steps = 2 + Below(6);
    for (int i = 0; i < steps; ++i) AddStep(fmt::format("v{}", i));
    std::vector<std::string> branches = {"x"};
    for (const auto& [name, dims] : std::map(made_)) {
      if (read_.contains(name)) continue;
      branches.push_back("o_" + name);
      Add(branches.back(), {"D"}, fmt::format("do = \"linear\", of = \"{}\", out = [\"D\"]", name));
    }
    return text_ + fmt::format("  {{ do = \"residual\", as = \"r\", of = [\"{}\"], to = \"x\" }},\n",
                               fmt::join(branches, "\", \""));
  }

 private:
  int Below(int count) { return static_cast<int>(random_() % static_cast<std::uint32_t>(count)); }
  template <typename T>
  T OneOf(const std::vector<T>& all) {
    return all[static_cast<std::size_t>(Below(static_cast<int>(all.size())))];
  }
  void Add(const std::string& name, const Dims& dims, const std::string& step) {
    text_ += fmt::format("  {{ as = \"{}\", {} }},\n", name, step);
    made_[name] = dims;
  }
  // Names of what has been made and fits.
  template <typename Fits>
  std::vector<std::string> Where(const Fits& fits) const {
    std::vector<std::string> names;
    for (const auto& [name, dims] : made_) {
      if (fits(name, dims)) names.push_back(name);
    }
    return names;
  }

  void AddStep(const std::string& name) {
    const std::string from = OneOf(Where([](const std::string&, const Dims&) { return true; }));
    const Dims dims = made_.at(from);
    switch (Below(8)) {
      case 0:
      case 1:
      case 2:
        return AddLinear(name, from);
      case 3: {
        const std::vector<std::string> same = {"do = \"act\", act = \"silu\"", "do = \"rms_norm\"",
                                               "do = \"dropout\", p = 0.1", "do = \"scale\", by = 0.5"};
        read_.insert(from);
        return Add(name, dims, fmt::format("{}, of = \"{}\"", OneOf(same), from));
      }
      case 4:
      case 5: {
        const auto other =
            Where([&](const std::string& of, const Dims& shape) { return of != from && shape == dims; });
        if (other.empty()) return AddLinear(name, from);
        return AddOfTwo(name, dims, Below(2) == 0 ? "add" : "multiply", from, OneOf(other));
      }
      case 6: {
        const auto other = Where([&](const std::string& of, const Dims& shape) {
          return of != from && dims.size() == 2 && shape.size() == 2 &&
                 (shape[0] == dims[0] || shape[0] == "1");
        });
        if (other.empty()) return AddLinear(name, from);
        return AddOfTwo(name, {dims[0], "joined"}, "join", OneOf(other), from);
      }
      default:
        return AddAttention(name, from);
    }
  }
  void AddLinear(const std::string& name, const std::string& from) {
    static const std::vector<Dims> kOut = {{"D"},      {"F"},      {"C"},      {"H", "E"},
                                           {"K", "E"}, {"1", "F"}, {"H", "C"}, {"2", "F"}};
    const Dims out = OneOf(kOut);
    std::string text;
    for (const std::string& dim : out)
      text += (text.empty() ? "" : ", ") + (dim == "1" || dim == "2" ? dim : "\"" + dim + "\"");
    read_.insert(from);
    Add(name, out,
        fmt::format("do = \"linear\", of = \"{}\", out = [{}]{}", from, text,
                    Below(2) == 0 ? "" : ", bias = true"));
  }
  void AddOfTwo(const std::string& name, const Dims& dims, const char* what, const std::string& a,
                const std::string& b) {
    read_.insert(a);
    read_.insert(b);
    Add(name, dims, fmt::format("do = \"{}\", of = [\"{}\", \"{}\"]", what, a, b));
  }
  void AddAttention(const std::string& name, const std::string& from) {
    const auto queries = Where([](const std::string&, const Dims& dims) { return dims == Dims{"H", "E"}; });
    const auto keys = Where([](const std::string&, const Dims& dims) { return dims == Dims{"K", "E"}; });
    if (queries.empty() || keys.empty()) return AddLinear(name, from);
    const std::string q = OneOf(queries), k = OneOf(keys), v = OneOf(keys);
    read_.insert({q, k, v});
    Add(name, {"H", "E"},
        fmt::format("do = \"attention\", of = [\"{}\", \"{}\", \"{}\"], mask = \"{}\"", q, k, v,
                    Below(2) == 0 ? "causal" : "none"));
  }

  std::mt19937 random_;
  std::string text_;
  std::map<std::string, Dims> made_;
  std::set<std::string> read_;
};

TEST_CASE("placements: blocks drawn at random have plans in all layouts") {
  const std::vector<std::vector<std::string>> layouts = {
      {"parallelism.tp=2"},
      {"parallelism.tp=4"},
      {"parallelism.tp=2", "parallelism.sequence_parallel=true"},
      {"parallelism.cp=2", "parallelism.dp=2", "parallelism.zero_stage=3"},
      {"parallelism.tp=4", "parallelism.cp=2"},
      {"parallelism.tp=2", "parallelism.cp=2", "parallelism.dp=2"},
      {"parallelism.tp=2", "parallelism.cp=2", "parallelism.dp=2", "parallelism.sequence_parallel=true"},
      {"parallelism.tp=2", "parallelism.cp=2", "parallelism.pp=2", "parallelism.sequence_parallel=true"}};
  int plans = 0;
  for (std::uint32_t seed = 0; seed < 80; ++seed) {
    const std::string block = BlockWriter(seed).Write();
    CAPTURE(block);
    const recipe::LoadResult alone = LoadBlock(block, {});
    for (const Diagnostic& diagnostic : alone.diagnostics) {
      if (diagnostic.severity == Severity::kError) MESSAGE(Format(diagnostic));
    }
    REQUIRE(alone.ok());
    for (const std::vector<std::string>& layout : layouts) {
      CAPTURE(fmt::format("{}", fmt::join(layout, " ")));
      const recipe::LoadResult loaded = LoadBlock(block, layout);
      if (!loaded.ok()) continue;  // rows that so many ranks cannot share
      const absl::StatusOr<plan::Plan> plan = driver::CompileRecipe(loaded.recipe, {});
      CHECK_MESSAGE(plan.ok(), Message(plan.status()));
      ++plans;
    }
  }
  MESSAGE(plans << " plans");
  CHECK(plans > 400);
}

}  // namespace
}  // namespace engine::compile
