#include "engine/checkpoint/manifest.h"

#include <functional>
#include <nlohmann/json.hpp>

#include "engine/base/hash.h"
#include "tests/checkpoint/testing.h"

namespace engine::checkpoint {
namespace {

using Json = nlohmann::json;

Manifest SmallManifest() {
  Manifest manifest;
  manifest.metadata = SmallMetadata(9);
  const std::string checksum(32, 'a');
  manifest.files = {{"rank_00000.h5", 4096 + 96, checksum}, {"index.h5", 900, checksum}};
  manifest.tensors = {{"w", {4, 6}, DType::kF32}};
  manifest.pieces = {{{0, "w@0,0", {{0, 0}, {4, 2}}, 4096}, {0, "w@0,2", {{0, 2}, {4, 4}}, 4096 + 32}}};
  return manifest;
}

// The text with the checksum that a careful forger would give it.
std::string Sign(std::string text) {
  const std::string key = "\"manifest_checksum\": \"";
  const std::size_t at = text.find(key);
  if (at == std::string::npos) return text;
  text.replace(at + key.size(), 32, std::string(32, '0'));
  return text.replace(at + key.size(), 32, HashHex(text));
}

std::string Edited(const std::function<void(Json&)>& edit) {
  Json json = Json::parse(*FormatManifest(SmallManifest()));
  edit(json);
  return Sign(json.dump(1));
}

TEST_CASE("text and back") {
  const absl::StatusOr<std::string> text = FormatManifest(SmallManifest());
  REQUIRE(text.ok());
  const absl::StatusOr<Manifest> back = ParseManifest(*text);
  REQUIRE_MESSAGE(back.ok(), Message(back.status()));
  CHECK(*FormatManifest(*back) == *text);
  CHECK(back->metadata.recipe_toml == SmallMetadata(9).recipe_toml);
  CHECK(back->metadata.consumed_samples == 144);
  CHECK(back->metadata.mesh.at("tp") == 2);
  CHECK(back->pieces[0][1].box == Box{{0, 2}, {4, 4}});
  CHECK(ParseManifest(Edited([](Json&) {})).ok());
}

TEST_CASE("every cut and every changed byte is found") {
  const std::string text = *FormatManifest(SmallManifest());
  for (std::size_t i = 0; i < text.size(); ++i) {
    CHECK_FALSE(ParseManifest(text.substr(0, i)).ok());
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    CHECK_FALSE(ParseManifest(changed).ok());
  }
}

Json GuardOf(const Json& losses, const Json& norms, const Json& left_out) {
  return {{"losses", losses}, {"grad_norms", norms}, {"left_out", left_out}, {"rewinds", 0}, {"skips", 0}};
}

TEST_CASE("hostile manifests with a true checksum are clear errors") {
  struct Case {
    const char* expected;
    std::function<void(Json&)> edit;
  };
  const std::int64_t huge = std::int64_t{1} << 62;
  const std::vector<Case> cases = {
      {"format version is not 1", [](Json& j) { j["version"] = 2; }},
      {"not a checkpoint manifest", [](Json& j) { j["format"] = 5; }},
      {"the manifest has no \"seed\"", [](Json& j) { j.erase("seed"); }},
      {"the manifest has an unknown key", [](Json& j) { j["extra"] = 1; }},
      {"iteration is not a 64-bit integer", [](Json& j) { j["iteration"] = "9"; }},
      {"iteration is not a 64-bit integer", [](Json& j) { j["iteration"] = 1.5; }},
      {"seed is not a 64-bit integer", [](Json& j) { j["seed"] = std::uint64_t{1} << 63; }},
      {"iteration -4", [](Json& j) { j["iteration"] = -4; }},
      {"recipe is not a string", [](Json& j) { j["recipe"] = Json::array(); }},
      {"mesh is not an object", [](Json& j) { j["mesh"] = 3; }},
      {"fingerprints is not an object", [](Json& j) { j["fingerprints"] = 3; }},
      {"schedule_samples is negative", [](Json& j) { j["schedule_samples"] = -1; }},
      {"guard is not an object", [](Json& j) { j["guard"] = 1; }},
      {"guard has no \"rewinds\"",
       [](Json& j) {
         j["guard"] = {{"losses", {1.5}}, {"grad_norms", {2}}, {"left_out", {}}};
       }},
      {"guard has 2 losses and 1 norms",
       [](Json& j) {
         j["guard"] = GuardOf({1.5, 2}, {2}, Json::array());
       }},
      {"guard.losses has what is not a number",
       [](Json& j) { j["guard"] = GuardOf({nullptr}, {2}, Json::array()); }},
      {"[7, 5] of guard.left_out",
       [](Json& j) {
         j["guard"] = GuardOf({1}, {2}, {{7, 5}});
       }},
      {"guard.rewinds is negative",
       [](Json& j) {
         j["guard"] = GuardOf({1}, {2}, {{5, 7}});
         j["guard"]["rewinds"] = -1;
       }},
      {"guard.skips is negative",
       [](Json& j) {
         j["guard"] = GuardOf({1}, {2}, {{5, 7}});
         j["guard"]["skips"] = -1;
       }},
      {"attention_draws is less than 1", [](Json& j) { j["attention_draws"] = 0; }},
      {"dropout_draws is less than 1", [](Json& j) { j["dropout_draws"] = 0; }},
      {"a fingerprint is not a string",
       [](Json& j) {
         j["fingerprints"] = {{"data x.bin", 3}};
       }},
      {"a mesh axis is not a 64-bit integer", [](Json& j) { j["mesh"]["tp"] = nullptr; }},
      {"files is not a list", [](Json& j) { j["files"] = "x"; }},
      {"files[0] is not an object", [](Json& j) { j["files"][0] = 1; }},
      {"files[0].name is neither", [](Json& j) { j["files"][0]["name"] = "../../etc/passwd"; }},
      {"files[0].name is neither", [](Json& j) { j["files"][0]["name"] = "/etc/passwd"; }},
      {"files names index.h5 twice", [](Json& j) { j["files"][0]["name"] = "index.h5"; }},
      {"files does not name index.h5", [](Json& j) { j["files"].erase(1); }},
      {"files[0].bytes is negative", [](Json& j) { j["files"][0]["bytes"] = -1; }},
      {"files[0].xxh3_128 is not a checksum", [](Json& j) { j["files"][0]["xxh3_128"] = ""; }},
      {"tensors is not a list", [](Json& j) { j["tensors"] = Json::object(); }},
      {"tensors[0].shape is not a list", [](Json& j) { j["tensors"][0]["shape"] = 4; }},
      {"tensors[0].shape is not a 64-bit integer", [](Json& j) { j["tensors"][0]["shape"][0] = true; }},
      {"no elements", [](Json& j) { j["tensors"][0]["shape"][0] = -1; }},
      {"is too large",
       [&](Json& j) {
         j["tensors"][0]["shape"] = {huge, huge};
       }},
      {"pieces cover 24 of the 4,611,686,018,427,387,896",
       [&](Json& j) {
         j["tensors"][0]["shape"] = {4, (huge - 8) / 4};
         j["tensors"][0]["dtype"] = "u8";
       }},
      {"at most 32 are possible", [](Json& j) { j["tensors"][0]["shape"] = std::vector<int>(1000000, 1); }},
      {"tensors[0].dtype is unknown", [](Json& j) { j["tensors"][0]["dtype"] = "f8"; }},
      {"tensors[0].pieces is not a list", [](Json& j) { j["tensors"][0]["pieces"] = "all"; }},
      {"tensor name \"a//b\"", [](Json& j) { j["tensors"][0]["name"] = "a//b"; }},
      {"tensor w is named twice", [](Json& j) { j["tensors"].push_back(j["tensors"][0]); }},
      {"a piece of tensor w: no file 2", [](Json& j) { j["tensors"][0]["pieces"][0]["file"] = 2; }},
      {"a piece of tensor w: no file -1", [](Json& j) { j["tensors"][0]["pieces"][0]["file"] = -1; }},
      {"a piece of tensor w is outside its shape",
       [](Json& j) { j["tensors"][0]["pieces"][0]["start"][1] = 5; }},
      {"is outside its shape",
       [](Json& j) {
         j["tensors"][0]["pieces"][0]["count"] = {std::int64_t{1} << 62, 4};
       }},
      {"is outside its shape", [](Json& j) { j["tensors"][0]["pieces"][0]["count"] = {4}; }},
      {"outside its file of 4192 bytes", [](Json& j) { j["tensors"][0]["pieces"][1]["offset"] = 4129; }},
      {"outside its file of 4192 bytes", [](Json& j) { j["tensors"][0]["pieces"][1]["offset"] = -1; }},
      {"overlap", [](Json& j) { j["tensors"][0]["pieces"][0]["start"][1] = 1; }},
      {"[0:4, 0:2] is missing", [](Json& j) { j["tensors"][0]["pieces"].erase(0); }},
  };
  for (const Case& row : cases) {
    INFO("expected: " << row.expected);
    CHECK(Contains(ParseManifest(Edited(row.edit)).status(), row.expected));
  }
}

TEST_CASE("how far the schedule is is kept, and may be missing") {
  Manifest manifest = SmallManifest();
  const std::string without = *FormatManifest(manifest);
  CHECK(without.find("schedule_samples") == std::string::npos);
  CHECK(ParseManifest(without)->metadata.schedule_samples == -1);
  manifest.metadata.schedule_samples = 12;
  CHECK(ParseManifest(*FormatManifest(manifest))->metadata.schedule_samples == 12);
}

TEST_CASE("the versions of dropout's draws are kept, and are 1 where they are missing") {
  Manifest manifest = SmallManifest();
  const std::string without = *FormatManifest(manifest);
  CHECK(without.find("_draws") == std::string::npos);
  CHECK(ParseManifest(without)->metadata.attention_draws == 1);
  CHECK(ParseManifest(without)->metadata.dropout_draws == 1);
  manifest.metadata.attention_draws = 2;
  manifest.metadata.dropout_draws = 3;
  CHECK(ParseManifest(*FormatManifest(manifest))->metadata.attention_draws == 2);
  CHECK(ParseManifest(*FormatManifest(manifest))->metadata.dropout_draws == 3);
}

TEST_CASE("what a guard remembers is kept to the bit, and may be missing") {
  Manifest manifest = SmallManifest();
  const std::string without = *FormatManifest(manifest);
  CHECK(without.find("guard") == std::string::npos);
  CHECK((ParseManifest(without)->metadata.guard == GuardState()));
  manifest.metadata.guard = {
      .losses = {0.1, 1.0 / 3}, .grad_norms = {1e-300, 5}, .left_out = {{5, 7}}, .rewinds = 2, .skips = 3};
  const absl::StatusOr<Manifest> back = ParseManifest(*FormatManifest(manifest));
  REQUIRE(back.ok());
  CHECK((back->metadata.guard == manifest.metadata.guard));
}

TEST_CASE("fingerprints are kept, and may be missing") {
  Manifest manifest = SmallManifest();
  const std::string without = *FormatManifest(manifest);
  CHECK(without.find("fingerprints") == std::string::npos);
  CHECK(ParseManifest(without)->metadata.fingerprints.empty());
  manifest.metadata.fingerprints = {{"data a.bin", "1 bytes, xxh3_128 00"}, {"data a.idx", "ü"}};
  const absl::StatusOr<Manifest> back = ParseManifest(*FormatManifest(manifest));
  REQUIRE(back.ok());
  CHECK(back->metadata.fingerprints == manifest.metadata.fingerprints);
}

TEST_CASE("names of others are cut in messages") {
  const std::string long_name(5000, 'n');
  for (const absl::Status& status :
       {ParseManifest(Edited([&](Json& j) { j["tensors"][0]["name"] = long_name; })).status(),
        ParseManifest(Edited([&](Json& j) {
          j["mesh"] = {{long_name, 0}};
        })).status()}) {
    CHECK(Contains(status, "nnnn…"));
    CHECK(Message(status).size() < 300);
  }
}

TEST_CASE("deep nesting and other texts are refused") {
  const std::string head = "{\"manifest_checksum\": \"" + std::string(32, '0') + "\", \"x\": ";
  CHECK(Contains(ParseManifest(Sign(head + std::string(5000000, '['))).status(), "nested deeper than 16"));
  CHECK(Contains(ParseManifest(Sign(head + "1")).status(), "not valid JSON"));
  CHECK(Contains(ParseManifest("").status(), "no checkpoint manifest"));
  CHECK(Contains(ParseManifest("\"manifest_checksum\": \"00").status(), "no checkpoint manifest"));
}

}  // namespace
}  // namespace engine::checkpoint
