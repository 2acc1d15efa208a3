#include "engine/recipe/shipped.h"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "engine/recipe/load.h"
#include "engine/recipe/print.h"
#include "engine/recipe/study.h"
#include "tests/recipe/test_files.h"

namespace engine::recipe {
namespace {

// $ENGINE_DATA for as long as it lives.
struct ShippedIn {
  explicit ShippedIn(const std::string& folder) { setenv("ENGINE_DATA", folder.c_str(), 1); }
  ~ShippedIn() { unsetenv("ENGINE_DATA"); }
};

std::string AllMessages(const LoadResult& result) {
  std::string text;
  for (const Diagnostic& diagnostic : result.diagnostics) text += Format(diagnostic);
  return text;
}

}  // namespace

TEST_CASE("engine: names a shipped file, and what that extends, from anywhere and under --root") {
  const TemporaryFolder share;
  share.Write("configs/models/small.toml", "extends = '../parts/seed.toml'\n" + BaseRecipe());
  share.Write("configs/parts/seed.toml", "[training]\nseed = 5\n");
  const ShippedIn data(share.Path(""));
  const TemporaryFolder user;
  const std::string path = user.Write("r.toml", "extends = 'engine:configs/models/small.toml'\n");
  for (const std::string& root : {std::string(), user.Path("")}) {
    const LoadResult result = Load(path, {{}, root});
    CAPTURE(AllMessages(result));
    REQUIRE(result.ok());
    CHECK(result.recipe.training.seed == 5);
    CHECK(OriginOf(result.recipe, "training.seed") == "engine:configs/parts/seed.toml:2:8");
    CHECK(OriginOf(result.recipe, "model.layers") == "engine:configs/models/small.toml:4:10");
  }
  CHECK(Load("engine:configs/models/small.toml").ok());
  const StudyResult study =
      LoadStudy(user.Write("s.toml",
                           "[study]\nbase = 'engine:configs/models/small.toml'\nmetric = 'train_loss'\n"
                           "[grid]\noptimizer.learning_rate = [1, 2]\n"));
  CHECK(study.ok());
}

TEST_CASE("engine: names what is there and nothing above it; errors name the folders") {
  const TemporaryFolder top;
  top.Write("secret.toml", BaseRecipe());
  top.Write("share/away.toml", "extends = '/etc/hostname'\n");
  const ShippedIn data(top.Path("share"));
  const TemporaryFolder user;
  const auto error = [&](const std::string& name) {
    const LoadResult result = Load(user.Write("r.toml", "extends = '" + name + "'\n"), {{}, user.Path("")});
    CHECK(!result.ok());
    return result.diagnostics.empty() ? "" : result.diagnostics[0].message;
  };
  CHECK(error("engine:configs/none.toml") == "extends: 'engine:configs/none.toml' is not in '" +
                                                 top.Path("share") + "' (ENGINE_DATA=FOLDER names another)");
  const std::string no_name =
      " names no file of the installation; write engine:configs/… or engine:recipes/…";
  for (const char* name :
       {"engine:../secret.toml", "engine:configs/../../secret.toml", "engine:", "engine:."}) {
    CHECK(error(name) == "extends: '" + std::string(name) + "'" + no_name);
  }
  CHECK(error("engine:/etc/hostname") == "extends: 'engine:/etc/hostname'" + no_name);
  CHECK(error("engine:away.toml").find("outside of the root") != std::string::npos);
}

TEST_CASE("without ENGINE_DATA: share/engine beside the program's folder, and the tree of a build folder") {
  const std::vector<std::string> folders = ShippedFolders();
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
  REQUIRE(folders.size() == 2);
  CHECK(folders[0] == (program.parent_path().parent_path() / "share/engine").string());
  CHECK(std::filesystem::equivalent(folders[1], ENGINE_SOURCE_DIR));
  const TemporaryFolder user;
  const LoadResult result =
      Load(user.Write("r.toml", "extends = ['engine:recipes/quickstart.toml']\n[training]\nseed = 3\n"));
  CAPTURE(AllMessages(result));
  CHECK(result.ok());
  // A message shows both folders.
  const LoadResult none = Load(user.Write("n.toml", "extends = 'engine:none.toml'\n"));
  REQUIRE(!none.ok());
  CHECK(none.diagnostics[0].message.find("' is not in '" + folders[0] + "' or '" + folders[1] + "'") !=
        std::string::npos);
}

}  // namespace engine::recipe
