#include "engine/hf/folder.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <random>
#include <set>

#include "tests/hf/raw_files.h"

namespace engine::hf {
namespace {

using data::TempDir;
using data::WriteFile;

// A file of bytes: each tensor one byte, its name's first one.
std::string BytesFile(const std::vector<std::string>& names, const std::string& metadata = "") {
  std::string header = "{" + metadata, data;
  for (const std::string& name : names) {
    if (header.size() > 1) header += ",";
    header += fmt::format(R"("{}":{{"dtype":"U8","shape":[],"data_offsets":[{},{}]}})", name, data.size(),
                          data.size() + 1);
    data += name[0];
  }
  return RawFile(header + "}", data);
}

constexpr std::string_view kGoodIndex =
    R"({"metadata":{"total_size":3},"weight_map":{"a":"one.safetensors","b":"two.safetensors","c":"one.safetensors"}})";

// A folder of two shards.
class ShardsTest {
 public:
  ShardsTest() {
    WriteFile(dir / "one.safetensors", BytesFile({"c", "a"}));
    WriteFile(dir / "two.safetensors", BytesFile({"b"}));
    Index(kGoodIndex);
  }
  void Index(std::string_view text) const {
    WriteFile(dir / "model.safetensors.index.json", std::string(text));
  }
  absl::Status Opened() const { return Folder::Open(dir.path()).status(); }
  // Opens with an index of these entries in weight_map.
  absl::Status With(const std::string& entries) const {
    Index("{\"weight_map\":{" + entries + "}}");
    return Opened();
  }

  TempDir dir;
};

TEST_CASE("a folder's tensors are found in one file and in shards") {
  const ShardsTest shards;
  const auto check = [&](int files) {
    const absl::StatusOr<Folder> folder = Folder::Open(shards.dir.path());
    REQUIRE_MESSAGE(folder.ok(), Message(folder.status()));
    CHECK(folder->path() == shards.dir.path());
    CHECK(folder->names() == std::vector<std::string>{"a", "b", "c"});
    CHECK(folder->bytes() == 3);
    CHECK(!folder->Find("d").has_value());
    std::set<const SafetensorsFile*> used;
    for (const std::string& name : folder->names()) {
      const std::optional<Folder::Entry> entry = folder->Find(name);
      REQUIRE(entry.has_value());
      CHECK(std::to_integer<char>(entry->file->DataOf(*entry->tensor)[0]) == name[0]);
      used.insert(entry->file);
    }
    CHECK(used.size() == static_cast<std::size_t>(files));
  };
  check(2);
  const Folder moved = [&] { return *Folder::Open(shards.dir.path()); }();
  CHECK(moved.Find("b")->tensor->name == "b");

  // As a cache of Hugging Face's: links to files elsewhere.
  std::filesystem::create_directory(shards.dir / "blobs");
  for (const char* name : {"one.safetensors", "two.safetensors", "model.safetensors.index.json"}) {
    std::filesystem::rename(shards.dir / name, shards.dir / "blobs/" + name);
    std::filesystem::create_symlink("blobs/" + std::string(name), shards.dir / name);
  }
  check(2);
  std::filesystem::remove(shards.dir / "model.safetensors.index.json");
  WriteFile(shards.dir / "model.safetensors", BytesFile({"c", "a", "b"}));
  check(1);
  shards.Index(R"({"weight_map":{"a":"model.safetensors","b":"model.safetensors","c":"model.safetensors"}})");
  check(1);
}

TEST_CASE("a folder without weights says what it has instead") {
  const TempDir dir;
  const auto opened = [&] { return Folder::Open(dir.path()).status(); };
  Says(opened(), dir.path() + " has neither model.safetensors nor model.safetensors.index.json");
  CHECK(absl::IsNotFound(opened()));
  WriteFile(dir / "consolidated.safetensors", BytesFile({"a"}));
  Says(opened(),
       "it has consolidated.safetensors: the file with the model's weights must be called model.safetensors");
  for (int i = 0; i < 7; ++i) WriteFile(dir / fmt::format("m{}.safetensors", i), "");
  Says(opened(),
       "it has consolidated.safetensors, m0.safetensors, m1.safetensors, m2.safetensors, m3.safetensors and "
       "3 more");
  WriteFile(dir / "pytorch_model.bin", "never read");
  Says(opened(), "Its pytorch_model.bin is a pickle, which is a program and is never read");
  std::filesystem::rename(dir / "pytorch_model.bin", dir / "pytorch_model.bin.index.json");
  Says(opened(), "Its pytorch_model.bin.index.json is a pickle");

  Says(Folder::Open(dir / "absent").status(), "No such file");
  CHECK(absl::IsNotFound(Folder::Open(dir / "absent").status()));
  Says(Folder::Open(dir / "m0.safetensors").status(), "is no folder: a model is a folder with config.json");
}

TEST_CASE("each index that is not its folder's is refused with what is wrong") {
  const ShardsTest shards;
  const std::string index_path = shards.dir / "model.safetensors.index.json";
  const std::string rest = R"("b":"two.safetensors","c":"one.safetensors")";
  SUBCASE("names of files") {
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"../one.safetensors", "leaves the folder"},
        {"/etc/passwd", "leaves the folder"},
        {"./one.safetensors", "leaves the folder"},
        {"x/one.safetensors", "leaves the folder"},
        {"x\\\\one.safetensors", "leaves the folder"},
        {"..", "does not end with .safetensors"},
        {".", "does not end with .safetensors"},
        {"", "is empty"},
        {".safetensors", "does not end with .safetensors"},
        {"one.safetensors\\u0000", "has a zero byte"},
        {"config.json", "does not end with .safetensors"},
        {"pytorch_model.bin", "is a pickle's"}};
    for (const auto& [name, why] : cases) {
      CAPTURE(name);
      Says(shards.With(fmt::format(R"("a":"{}",{})", name, rest)),
           "which " + why + ": it must be the name of");
    }
  }
  SUBCASE("files that are not there, and that are no files") {
    const std::string entries = R"("a":"three.safetensors",)" + rest;
    const std::string third = shards.dir / "three.safetensors";
    CHECK(absl::IsNotFound(shards.With(entries)));
    Says(shards.With(entries), third + ": No such file or directory (named in model.safetensors.index.json)");
    std::filesystem::create_symlink("nothing", third);
    Says(shards.With(entries), third + ": No such file");
    std::filesystem::remove(third);
    std::filesystem::create_directory(third);
    Says(shards.With(entries), third + " is a folder, not a regular file");
    std::filesystem::remove(third);
    REQUIRE(mkfifo(third.c_str(), 0600) == 0);
    Says(shards.With(entries), third + " is a named pipe");
    std::filesystem::remove(third);
    WriteFile(third, "{}");
    Says(shards.With(entries), third + ": the file has 2 bytes");
    if (geteuid() != 0) {
      REQUIRE(chmod(third.c_str(), 0) == 0);
      Says(shards.With(entries), "Permission denied");
    }
  }
  SUBCASE("tensors") {
    Says(shards.With(rest),
         "/one.safetensors: tensor \"a\" is not in the weight_map of model.safetensors.index.json");
    Says(shards.With(R"("a":"one.safetensors","d":"two.safetensors",)" + rest),
         index_path + ": tensor \"d\" should be in two.safetensors, which has no such tensor");
    Says(shards.With(R"("a":"two.safetensors",)" + rest),
         "tensor \"a\" should be in two.safetensors, which has no such tensor: it is in " +
             (shards.dir / "one.safetensors"));
    Says(shards.With(R"("a":"one.safetensors","a":"two.safetensors",)" + rest),
         "tensor \"a\" is in weight_map twice");
    WriteFile(shards.dir / "two.safetensors", BytesFile({"b", "a"}));
    Says(shards.With(R"("a":"one.safetensors",)" + rest),
         "tensor \"a\" is in " + (shards.dir / "one.safetensors") + " and in " +
             (shards.dir / "two.safetensors") + ": it must be in one file");
  }
  SUBCASE("forms") {
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"", "byte 1 is not of a JSON object"},
        {"{", "is not of a JSON object"},
        {std::string("{}\0", 3), "byte 3 is zero"},
        {"[]", "the index must be an object, and it is a list"},
        {"3", "the index must be an object, and it is 3"},
        {"\"x\"", "the index must be an object"},
        {"{}", "there is no weight_map: {tensor: file}"},
        {R"({"weight_map":{}})", "weight_map is empty"},
        {R"({"weight_map":[]})",
         "weight_map must be an object of tensors' names and files, and it is a list"},
        {R"({"weight_map":null})", "and it is null"},
        {R"({"weight_map":"one.safetensors"})", "and it is \"one.safetensors\""},
        {R"({"weight_map":{"a":1}})", "the file of tensor \"a\" in weight_map must be a name, and it is 1"},
        {R"({"weight_map":{"a":-1}})", "and it is -1"},
        {R"({"weight_map":{"a":1.5}})", "and it is 1.5"},
        {R"({"weight_map":{"a":true}})", "and it is a boolean"},
        {R"({"weight_map":{"a":null}})", "and it is null"},
        {R"({"weight_map":{"a":["one.safetensors"]}})", "and it is a list"},
        {R"({"weight_map":{"a":{}}})", "and it is an object"},
        {R"({"weight_map":{},"weight_map":{}})", "\"weight_map\" is there twice"},
        {"{\"metadata\":" + std::string(1'000'000, '['), "nested deeper than 16 levels"},
        {"{\"metadata\":" + std::string(20, '{'), "is not of a JSON object"},
    };
    for (const auto& [text, why] : cases) {
      CAPTURE(text.substr(0, 100));
      shards.Index(text);
      CHECK(absl::IsInvalidArgument(shards.Opened()));
      Says(shards.Opened(), index_path + ": ");
      Says(shards.Opened(), why);
    }
    std::string odd(kGoodIndex);
    odd.replace(odd.find("3"), 1, R"([1,-1,1.5,null,true,"x",{"a":[]}])");
    shards.Index(odd + "\n");
    CHECK(shards.Opened().ok());
  }
  SUBCASE("no file") {
    std::filesystem::remove(index_path);
    std::filesystem::create_directory(index_path);
    Says(shards.Opened(), index_path + " is a folder");
    std::filesystem::remove(index_path);
    REQUIRE(mkfifo(index_path.c_str(), 0600) == 0);
    Says(shards.Opened(), index_path + " is a named pipe");
    std::filesystem::remove(index_path);
    std::filesystem::create_symlink("nothing", index_path);
    Says(shards.Opened(), index_path + ": No such file");
  }
}

TEST_CASE("two models in one folder, and weights in another layout, are refused") {
  const ShardsTest shards;
  WriteFile(shards.dir / "model.safetensors", BytesFile({"a"}));
  Says(shards.Opened(), "has model.safetensors and model.safetensors.index.json, which does not name it");
  std::filesystem::remove(shards.dir / "model.safetensors.index.json");
  CHECK(shards.Opened().ok());
  for (const char* format : {"tf", "flax"}) {
    WriteFile(shards.dir / "model.safetensors",
              BytesFile({"a"}, fmt::format(R"("__metadata__":{{"format":"{}"}})", format)));
    Says(shards.Opened(), fmt::format("its metadata say format \"{}\"", format));
  }
  WriteFile(shards.dir / "model.safetensors", BytesFile({"a"}, R"("__metadata__":{"format":"pt"})"));
  CHECK(shards.Opened().ok());
}

TEST_CASE("of two hundred mutated indexes each is refused, or says the same") {
  const ShardsTest shards;
  std::mt19937 random(23);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const std::vector<std::string> words = {"\"", "{",    "}",   "[", "]",       ":",    ",",
                                          "0",  "null", "../", "/", "\\u0000", "\xFF", "one"};
  int opened = 0;
  for (int i = 0; i < 200; ++i) {
    std::string index(kGoodIndex);
    for (std::size_t changes = 1 + below(2); changes > 0; --changes) {
      const std::size_t at = below(index.size());
      switch (below(4)) {
        case 0:
          index[at] = static_cast<char>(index[at] ^ 1 << below(8));
          break;
        case 1:
          index.erase(at, 1 + below(4));
          break;
        case 2:
          index.insert(at, words[below(words.size())]);
          break;
        default:
          index.insert(below(index.size()), index.substr(at, below(40)));
      }
    }
    shards.Index(index);
    const absl::StatusOr<Folder> folder = Folder::Open(shards.dir.path());
    if (!folder.ok()) {
      CHECK(Message(folder.status()).find(shards.dir.path()) != std::string::npos);
      continue;
    }
    ++opened;
    CHECK(folder->names() == std::vector<std::string>{"a", "b", "c"});
  }
  CHECK(opened > 2);
  CHECK(opened < 150);
}

}  // namespace
}  // namespace engine::hf
