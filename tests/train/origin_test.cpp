#include "engine/train/origin.h"

#include <filesystem>

#include "engine/recipe/print.h"
#include "tests/train/run_testing.h"

namespace engine::train::testing {
namespace {

namespace fs = std::filesystem;

recipe::Recipe RecipeAt(const std::string& path, double learning_rate = 1e-2) {
  recipe::Recipe recipe = MakeRecipe(kGptLike, {});
  recipe.path = path;
  recipe.optimizer.learning_rate = learning_rate;
  return recipe;
}

// What a run of the recipe leaves in the folder, as far as it matters here.
void LeaveRun(const recipe::Recipe& recipe, const std::string& out) {
  fs::create_directories(out);
  REQUIRE(WriteOrigin(recipe, out).ok());
  data::WriteFile(out + "/resolved.toml", recipe::ToToml(recipe));
  data::WriteFile(out + "/metrics.jsonl", "{\"iteration\":1}\n");
}

}  // namespace

TEST_CASE("origin: another file of the same name is refused, with both names") {
  const TempDir folder;
  const std::string out = folder / "repository/runs/x";
  const std::string one = folder / "repository/one/x.toml";
  const std::string two = folder / "repository/two/x.toml";
  CHECK(CheckOrigin(RecipeAt(one), out).ok());  // no folder
  LeaveRun(RecipeAt(one), out);
  CHECK(CheckOrigin(RecipeAt(one, 5e-3), out).ok());
  CHECK(CheckOrigin(RecipeAt(folder / "repository/two/../one/./x.toml", 5e-3), out).ok());
  const absl::Status refused = CheckOrigin(RecipeAt(two, 5e-3), out);
  CHECK(refused.code() == absl::StatusCode::kFailedPrecondition);
  const std::string real = fs::canonical(folder.path()).string();
  CHECK(Message(refused) ==
        out + " holds a run of another recipe file of that name: " + real +
            "/repository/one/x.toml, and not " + real +
            "/repository/two/x.toml\n    hint: --out DIR gives this one a folder of its own; --out " + out +
            " goes on with that run");
  // The recipe itself, copied or renamed.
  CHECK(CheckOrigin(RecipeAt(two), out).ok());

  fs::create_directories(folder / "repository/one");
  data::WriteFile(one, "");
  fs::create_symlink(folder / "repository/one", folder / "link");
  CHECK(CheckOrigin(RecipeAt(folder / "link/x.toml", 5e-3), out).ok());
}

TEST_CASE("origin: a repository that is moved, and runs that are, keep what they are of") {
  const TempDir folder;
  LeaveRun(RecipeAt(folder / "old/one/x.toml"), folder / "old/runs/x");
  fs::rename(folder / "old", folder / "new");
  CHECK(CheckOrigin(RecipeAt(folder / "new/one/x.toml", 5e-3), folder / "new/runs/x").ok());
  CHECK(!CheckOrigin(RecipeAt(folder / "new/two/x.toml", 5e-3), folder / "new/runs/x").ok());

  LeaveRun(RecipeAt(folder / "new/one/x.toml"), folder / "new/runs/x");
  fs::create_directories(folder / "disk");
  fs::rename(folder / "new/runs/x", folder / "disk/x");
  CHECK(CheckOrigin(RecipeAt(folder / "new/one/x.toml", 5e-3), folder / "disk/x").ok());
}

TEST_CASE("origin: a folder that holds no run, or does not say of what, is nobody's") {
  const TempDir folder;
  const recipe::Recipe other = RecipeAt(folder / "two/x.toml", 5e-3);
  LeaveRun(RecipeAt(folder / "one/x.toml"), folder.path());
  CHECK(!CheckOrigin(other, folder.path()).ok());
  for (const char* text : {"", "{", "[1]", "{\"recipe\": 3}", "{}"}) {
    data::WriteFile(folder / "origin.json", text);
    CHECK(CheckOrigin(other, folder.path()).ok());
  }
  LeaveRun(RecipeAt(folder / "one/x.toml"), folder.path());
  fs::remove(folder / "metrics.jsonl");
  CHECK(CheckOrigin(other, folder.path()).ok());
  fs::create_directories(folder / "checkpoints/iteration_0000001");
  CHECK(!CheckOrigin(other, folder.path()).ok());
  // A name that is no UTF-8 is compared as it is written.
  const recipe::Recipe odd = RecipeAt(folder / "\xff/x.toml");
  LeaveRun(odd, folder.path());
  CHECK(CheckOrigin(RecipeAt(odd.path, 5e-3), folder.path()).ok());
}

}  // namespace engine::train::testing
