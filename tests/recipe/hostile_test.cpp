// Input that wants to crash, hang or escape: each is one clear located error.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <malloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <limits>
#include <random>
#include <string>

#include "engine/recipe/load.h"
#include "engine/recipe/print.h"
#include "engine/recipe/source.h"
#include "tests/recipe/test_files.h"

namespace engine::recipe {
namespace {

namespace fs = std::filesystem;

std::string Repeated(const std::string& text, int count) {
  std::string repeated;
  for (int i = 0; i < count; ++i) repeated += text;
  return repeated;
}

// "line:column: message" of the only diagnostic.
std::string OnlyError(const LoadResult& result) {
  if (result.diagnostics.size() != 1) return fmt::format("{} diagnostics", result.diagnostics.size());
  const Diagnostic& d = result.diagnostics[0];
  return fmt::format("{}:{}: {}", d.span.line, d.span.column, d.message);
}

std::string OnlyErrorOfText(const std::string& text) { return OnlyError(LoadText(text, "text.toml")); }

bool Contains(const std::string& text, const std::string& part) {
  CAPTURE(text);
  const bool found = text.find(part) != std::string::npos;
  CHECK(found);
  return found;
}

}  // namespace

TEST_CASE("a file of 100 MB is refused unread, with both numbers") {
  const TemporaryFolder folder;
  const std::string path = folder.Write("big.toml", BaseRecipe());
  fs::resize_file(path, 100'000'000);
  const auto begin = std::chrono::steady_clock::now();
  CHECK(OnlyError(Load(path)) ==
        "0:0: the file has 100,000,000 bytes, and a recipe has at most 4,194,304 (4.00 MiB)");
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(100));
  CHECK(OnlyErrorOfText(std::string(5'000'000, '#')) ==
        "0:0: the text has 5000000 bytes, and a recipe has at most 4194304");
}

TEST_CASE("the largest files are read") {
  const std::string comment = "#" + std::string(kMaxRecipeBytes - BaseRecipe().size() - 2, 'x') + "\n";
  const TemporaryFolder folder;
  CHECK(Load(folder.Write("large.toml", comment + BaseRecipe())).ok());
  CHECK(!Load(folder.Write("larger.toml", comment + BaseRecipe() + "#")).ok());
}

TEST_CASE("deep nesting is refused before anything recurses") {
  const std::string deep = "nested more than 64 deep; a recipe nests 3 deep";
  CHECK(OnlyErrorOfText("a = " + std::string(100'000, '[')) == "1:69: " + deep);
  CHECK(OnlyErrorOfText("a = " + std::string(100'000, '[') + std::string(100'000, ']')) == "1:69: " + deep);
  CHECK(OnlyErrorOfText("a = " + Repeated("{a=", 100'000)) == "1:197: " + deep);
  CHECK(OnlyErrorOfText("a" + Repeated(".a", 100'000) + " = 1") == "1:130: " + deep);
  CHECK(OnlyErrorOfText("[a" + Repeated(". \"a\"", 100'000) + "]") == "1:323: " + deep);
  CHECK(OnlyErrorOfText("# [[[\na = \"\"\"\n" + std::string(1000, '[') + "\"\"\"\n[" + Repeated("a.", 100) +
                        "a]") == "4:131: " + deep);
}

TEST_CASE("a flood of values is refused") {
  CHECK(Contains(OnlyErrorOfText("a = [" + Repeated("1,", 1'000'000) + "]"), "more than 200000 values"));
  const LoadResult result = LoadText(Repeated("[a]\n", 1) + Repeated("x", 10), "text.toml");
  CHECK(!result.ok());
  std::string keys = "[model]\n";
  for (int i = 0; i < 50'000; ++i) keys += fmt::format("x{} = 1\n", i);
  const LoadResult unknown = LoadText(keys, "text.toml");
  CHECK(unknown.diagnostics.size() < 130);
  CHECK(std::any_of(unknown.diagnostics.begin(), unknown.diagnostics.end(), [](const Diagnostic& d) {
    return d.message == "more than 100 mistakes; the rest is not shown";
  }));
  std::string items = "[data]\npaths = [";
  for (int i = 0; i < 50'000; ++i) items += "1,";
  CHECK(LoadText(items + "]\n", "text.toml").diagnostics.size() < 130);
}

TEST_CASE("long lines of values take linear time") {
  // Memory is kept from run to run: on some machines, touching a new page costs more than all that is measured.
  constexpr int kKeptBytes = 1 << 30;
  mallopt(M_TRIM_THRESHOLD, kKeptBytes);
  mallopt(M_MMAP_THRESHOLD, kKeptBytes);
  // Processor time, which other load stretches by its use of the caches alone; the least of several.
  const auto seconds = [](int values) {
    std::string paths = "[data]\npaths = [";
    for (int i = 0; i < values; ++i) paths += "\"é\", ";
    double least = std::numeric_limits<double>::infinity();
    for (int run = 0; run < 4; ++run) {
      const std::clock_t begin = std::clock();
      CHECK(!LoadText(paths + "3]\n", "text.toml").ok());
      least = std::min(least, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
    }
    return least;
  };
  const double many = seconds(160'000);
  const double few = seconds(10'000);
  MESSAGE("16 times the values take " << many / few << " times as long");
  CHECK(many < 80 * few);  // 15; looking for the line's end at each value: 147
}

TEST_CASE("extends: cycles, depth and doubling") {
  const TemporaryFolder folder;
  folder.Write("a.toml", "extends = 'b.toml'\n");
  folder.Write("b.toml", "# two\nextends = ['c.toml']\n");
  folder.Write("c.toml", "extends = './a.toml'\n");
  const LoadResult cycle = Load(folder.Path("a.toml"));
  REQUIRE(cycle.diagnostics.size() == 1);
  const Diagnostic& d = cycle.diagnostics[0];
  CHECK(d.span.file == folder.Path("c.toml"));
  CHECK(d.span.line == 1);
  CHECK(d.span.column == 11);
  CHECK(d.message == fmt::format("extends: a cycle: {0} → {1} → {2} → {0}", folder.Path("a.toml"),
                                 folder.Path("b.toml"), folder.Path("c.toml")));

  // Each level names the next one twice: 2^15 paths, 16 files.
  folder.Write("d15.toml", BaseRecipe());
  for (int i = 0; i < 15; ++i) {
    folder.Write(fmt::format("d{}.toml", i), fmt::format("extends = ['d{0}.toml', 'd{0}.toml']\n", i + 1));
  }
  CHECK(Load(folder.Path("d0.toml")).ok());
  folder.Write("deeper.toml", "extends = 'd0.toml'\n");
  CHECK(Contains(Load(folder.Path("deeper.toml")).diagnostics.at(0).message, "is 17 files deep; at most 16"));

  std::string many = "extends = [";
  for (int i = 0; i < 300; ++i) {
    folder.Write(fmt::format("m{}.toml", i), "");
    many += fmt::format("'m{}.toml', ", i);
  }
  const LoadResult wide = Load(folder.Write("wide.toml", many + "]\n"));
  CHECK(wide.diagnostics.size() == 45);
  CHECK(Contains(wide.diagnostics[0].message, "at most 256"));
}

TEST_CASE("with a root, nothing outside is read") {
  const TemporaryFolder folder;
  const std::string secret = folder.Write("secret.toml", BaseRecipe());
  folder.Write("root/inside.toml", BaseRecipe());
  fs::create_symlink("../secret.toml", folder.Path("root/link.toml"));
  fs::create_symlink("..", folder.Path("root/up"));
  const LoadOptions rooted{{}, folder.Path("root")};
  const auto load = [&](const std::string& extends, const LoadOptions& options) {
    return Load(folder.Write("root/main.toml", "extends = '" + extends + "'\n"), options);
  };
  for (const std::string& escape :
       {std::string("../secret.toml"), std::string("link.toml"), std::string("up/secret.toml"), secret,
        std::string("../root/../secret.toml")}) {
    CAPTURE(escape);
    CHECK(Contains(OnlyError(load(escape, rooted)), "outside of the root"));
    CHECK(load(escape, {}).ok());
  }
  CHECK(load("inside.toml", rooted).ok());
  CHECK(load("../root/inside.toml", rooted).ok());
  CHECK(load("up/root/inside.toml", rooted).ok());
  CHECK(Contains(OnlyError(Load(secret, rooted)), "outside of the root"));
  CHECK(Contains(OnlyError(Load(folder.Path("root/link.toml"), rooted)), "outside of the root"));
  // A folder whose name only begins like the root's is outside of it.
  const std::string sibling = folder.Write("rootless/x.toml", BaseRecipe());
  CHECK(Contains(OnlyError(Load(sibling, rooted)), "outside of the root"));
  CHECK(Contains(OnlyError(Load(secret, {{}, folder.Path("nowhere")})), "No such file or directory"));
}

TEST_CASE("what is no regular file is refused without waiting") {
  const TemporaryFolder folder;
  REQUIRE(::mkfifo(folder.Path("pipe.toml").c_str(), 0600) == 0);
  CHECK(Contains(OnlyError(Load(folder.Path("pipe.toml"))), "is not a regular file"));
  CHECK(Contains(OnlyError(Load(folder.Path("."))), "is a directory, not a recipe"));
  CHECK(Contains(OnlyError(Load("/dev/zero")), "'/dev/zero' is not a regular file"));
  CHECK(Contains(OnlyError(Load(folder.Path("missing.toml"))), "No such file or directory"));
  CHECK(!Load("").ok());
  CHECK(!Load(std::string("a\0b", 3)).ok());
  CHECK(!Load(std::string(10'000, 'a')).ok());
  fs::create_symlink("loop.toml", folder.Path("loop.toml"));
  CHECK(Contains(OnlyError(Load(folder.Path("loop.toml"))), "symbolic links"));
}

TEST_CASE("invalid UTF-8 is located by its byte") {
  CHECK(OnlyErrorOfText("a = 1\nb = \"x\xff\"\n") == "2:7: invalid UTF-8: byte 0xff");
  CHECK(OnlyErrorOfText("# é \xc3") == "1:6: invalid UTF-8: byte 0xc3");        // cut short
  CHECK(OnlyErrorOfText("# \xc0\x80") == "1:3: invalid UTF-8: byte 0xc0");      // overlong NUL
  CHECK(OnlyErrorOfText("# \xe0\x80\x80") == "1:3: invalid UTF-8: byte 0xe0");  // overlong
  CHECK(OnlyErrorOfText("# \xed\xa0\x80") == "1:3: invalid UTF-8: byte 0xed");  // surrogate
  CHECK(OnlyErrorOfText("# \xf4\x90\x80\x80") == "1:3: invalid UTF-8: byte 0xf4");
  CHECK(OnlyErrorOfText(std::string("a = 1\n\0", 7)) == "2:1: a recipe cannot have a NUL byte");
  CHECK(LoadText("\xef\xbb\xbf" + BaseRecipe() + "# 😀 é\n", "text.toml").ok());
}

TEST_CASE("characters beyond ASCII outside of strings and comments") {
  const std::string message = "characters beyond ASCII may stand only in strings and comments";
  CHECK(OnlyErrorOfText("é = 1") == "1:1: " + message);
  CHECK(OnlyErrorOfText("# é\na = 'é'\nb = 1 é\n") == "3:7: " + message);
  CHECK(OnlyErrorOfText("a = 36o\"é") == "1:9: " + message);  // no string begins in a number
  CHECK(OnlyErrorOfText("a = \"\"\"x\"\"\"\"é") == "1:13: " + message);
  CHECK(OnlyErrorOfText("a = \"\"\"\\\n  é\"\"\"") ==
        "2:3: a character beyond ASCII cannot follow a backslash");
  CHECK(OnlyErrorOfText("a = \"\\é\"") == "1:7: a character beyond ASCII cannot follow a backslash");
  CHECK(LoadText(BaseRecipe() + "[cluster]\nname = \"\"\"é\\\n  e é\"\"\"\n", "text.toml")
            .recipe.cluster.name == "ée é");
}

TEST_CASE("keys and strings that would confuse a reader") {
  const auto first = [](const std::string& text) {
    return LoadText(BaseRecipe() + text, "t").diagnostics.at(0).message;
  };
  CHECK(first("[precision]\n\"a\\u001b[31m\\nb\" = 1\n") == "unknown key 'a\\x1b[31m\\nb' in [precision]");
  CHECK(first("[precision]\n'" + std::string(79, 'k') + "éé' = 1\n") ==
        "unknown key '" + std::string(79, 'k') + "é…' in [precision]");
  CHECK(LoadText("'model.layers' = 3\n" + BaseRecipe(), "t").diagnostics.at(0).message ==
        "unknown key 'model.layers'");
  CHECK(LoadText("[model]\n'attention.heads' = 3\n", "t").diagnostics.back().message ==
        "unknown key 'attention.heads' in [model]");
}

TEST_CASE("table headers without a name") {
  const std::string message =
      "not valid TOML: key: expected bare key starting character or string delimiter, saw ";
  CHECK(OnlyErrorOfText("[=]") == "1:2: " + message + "'='");
  CHECK(OnlyErrorOfText("[[.a]]") == "1:3: " + message + "'.'");
  CHECK(OnlyErrorOfText("[#") == "1:2: " + message + "'#'");
  CHECK(Contains(OnlyErrorOfText("["), "not valid TOML"));
}

TEST_CASE("numbers that are none") {
  const auto with_rate = [](const std::string& value) {
    std::string text = BaseRecipe();
    const std::size_t at = text.find("1e-3");
    return OnlyErrorOfText(text.replace(at, 4, value));
  };
  CHECK(with_rate("nan") == "14:17: optimizer.learning_rate must be a finite number, found nan");
  CHECK(with_rate("-inf") == "14:17: optimizer.learning_rate must be a finite number, found -inf");
  CHECK(with_rate("1e999") == "14:17: the number 1e999 does not fit in a 64-bit float");
  CHECK(with_rate("-1e400") == "14:17: the number -1e400 does not fit in a 64-bit float");
  CHECK(with_rate("9223372036854775808") == "14:17: the integer 9223372036854775808 does not fit in 64 bits");
  CHECK(with_rate("-9223372036854775809") ==
        "14:17: the integer -9223372036854775809 does not fit in 64 bits");
}

TEST_CASE("mutated recipes never crash, and what loads prints and loads again") {
  const std::string base = BaseRecipe() + ReadText(fs::path(ENGINE_SOURCE_DIR) / "recipes/quickstart.toml");
  const std::string scraps = "[]{}=.,\"'\\\n#0123456789-+eEaz_ \t\x80\xff\xc3\xa9";
  std::mt19937 random(7);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random()) % n; };
  int loaded = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = round % 2 == 0 ? BaseRecipe() : base;
    for (std::size_t edits = 1 + below(4); edits > 0; --edits) {
      const std::size_t at = below(text.size());
      switch (below(4)) {
        case 0:
          text[at] = scraps[below(scraps.size())];
          break;
        case 1:
          text.insert(at, 1, scraps[below(scraps.size())]);
          break;
        case 2:
          text.erase(at, 1 + below(5));
          break;
        default:
          text.insert(at, text.substr(below(text.size()), below(40)));
          break;
      }
    }
    const LoadResult result = LoadText(text, "mutated.toml");
    if (!result.ok()) {
      for (const Diagnostic& d : result.diagnostics) CHECK(!Format(d).empty());
      continue;
    }
    ++loaded;
    const LoadResult again = LoadText(ToToml(result.recipe), "printed.toml");
    CAPTURE(text);
    CHECK(again.ok());
    CHECK(Diff(result.recipe, again.recipe).empty());
  }
  CHECK(loaded > 100);
}

}  // namespace engine::recipe
