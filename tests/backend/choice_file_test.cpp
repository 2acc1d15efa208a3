// Choices of kernels in a file that several processes read and write.
#include "engine/backend/cuda/profile/choice_file.h"

#include <doctest/doctest.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/data/temp_dir.h"

namespace engine::backend::cuda {
namespace {

bool Any(const std::string&) { return true; }

std::string Kept(ChoiceFile* file, const std::string& key, const std::string& choice) {
  const absl::StatusOr<std::string> kept = file->Keep(key, choice, Any);
  REQUIRE_MESSAGE(kept.ok(), Message(kept.status()));
  return *kept;
}

std::int64_t CountAll(const std::string& path) {
  return CountChoices(path, [](const std::string&, const std::string&) { return true; });
}

}  // namespace

TEST_CASE("choice file: what one process keeps, others find, and the first choice stands") {
  const data::TempDir folder;
  const std::string path = folder / "choices.txt";
  ChoiceFile one(path);
  ChoiceFile other(path);
  CHECK(!one.Find("GPU\t9.19\tshape", Any));
  CHECK(Kept(&one, "GPU\t9.19\tshape", "own") == "own");
  CHECK(other.Find("GPU\t9.19\tshape", Any) == "own");
  CHECK(!other.Find("GPU\t9.20\tshape", Any));
  // Another process that has timed it meanwhile, without having looked again.
  ChoiceFile late(path);
  CHECK(Kept(&late, "GPU\t9.19\tshape", "cudnn") == "own");
  CHECK(late.Find("GPU\t9.19\tshape", Any) == "own");
  CHECK(Kept(&late, "GPU\t9.19\twider", "cudnn") == "cudnn");
  CHECK(one.Find("GPU\t9.19\twider", Any) == "cudnn");
  CHECK(CountAll(path) == 2);
}

TEST_CASE("choice file: a choice that means nothing to who asks is none, and is written over") {
  const data::TempDir folder;
  const std::string path = folder / "choices.txt";
  const auto is_own = [](const std::string& choice) { return choice == "own"; };
  ChoiceFile one(path);
  CHECK(Kept(&one, "key", "nonsense") == "nonsense");
  ChoiceFile other(path);
  CHECK(!other.Find("key", is_own));
  CHECK(*other.Keep("key", "own", is_own) == "own");
  CHECK(ChoiceFile(path).Find("key", Any) == "own");
}

TEST_CASE("choice file: lines that are spoilt are ignored, and dropped when the file is next written") {
  const data::TempDir folder;
  const std::string path = folder / "choices.txt";
  ChoiceFile one(path);
  Kept(&one, "a\tb", "1");
  Kept(&one, "a\tc", "2");
  std::string text = data::ReadFile(path);
  text[text.size() - 2] = '3';  // the second line's choice, not its hash
  data::WriteFile(path, text + "half a line");
  ChoiceFile other(path);
  CHECK(other.Find("a\tb", Any) == "1");
  CHECK(!other.Find("a\tc", Any));
  CHECK(CountAll(path) == 1);
  Kept(&other, "d", "4");
  const std::string written = data::ReadFile(path);
  CHECK(written.find("half") == std::string::npos);
  CHECK(CountAll(path) == 2);
}

TEST_CASE("choice file: without a file, and with one that cannot be written") {
  ChoiceFile none("");
  CHECK(Kept(&none, "key", "own") == "own");
  CHECK(none.Find("key", Any) == "own");
  CHECK(!ChoiceFile("").Find("key", Any));
  ChoiceFile nowhere("/nowhere/choices.txt");
  const absl::Status status = nowhere.Keep("key", "own", Any).status();
  CHECK(absl::IsUnavailable(status));
  CHECK(Message(status).find("writing the choices of kernels to /nowhere/choices.txt.") == 0);
}

TEST_CASE("choice file: those who keep at once all get the same choice, and no choice is lost") {
  const data::TempDir folder;
  const std::string path = folder / "choices.txt";
  constexpr int kWriters = 8;
  constexpr int kKeys = 10;
  std::vector<std::vector<std::string>> found(kWriters);
  std::vector<std::thread> writers;
  for (int w = 0; w < kWriters; ++w) {
    writers.emplace_back([&, w] {
      ChoiceFile file(path);
      for (int k = 0; k < kKeys; ++k) {
        const auto kept = file.Keep("key " + std::to_string(k), std::to_string(w), Any);
        found[static_cast<std::size_t>(w)].push_back(kept.ok() ? *kept : "error");
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  for (const std::vector<std::string>& choices : found) CHECK(choices == found[0]);
  CHECK(CountAll(path) == kKeys);
}

}  // namespace engine::backend::cuda
