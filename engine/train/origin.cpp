#include "engine/train/origin.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/status.h"
#include "engine/base/write_file.h"
#include "engine/driver/run_folder.h"
#include "engine/model/load.h"
#include "engine/recipe/print.h"
#include "engine/train/resume.h"
#include "engine/train/run.h"

namespace engine::train {
namespace {

namespace fs = std::filesystem;

struct Place {
  std::string absolute;  // path of the recipe's file, without symbolic links
  std::string relative;  // the same from the run's folder
};

// A file name need not be UTF-8, and JSON must be.
std::string InUtf8(const fs::path& path) {
  using nlohmann::json;
  return json::parse(json(path.string()).dump(-1, ' ', false, json::error_handler_t::replace))
      .get<std::string>();
}

Place PlaceOf(const recipe::Recipe& recipe, const std::string& out) {
  std::error_code error;
  const fs::path file = fs::weakly_canonical(fs::absolute(recipe.path, error), error);
  const fs::path folder = fs::weakly_canonical(fs::absolute(out, error), error);
  return {InUtf8(file), InUtf8(file.lexically_relative(folder))};
}

std::string WordIn(const nlohmann::json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

bool SaysTheSame(const recipe::Recipe& recipe, const std::string& out) {
  const recipe::LoadResult before = model::Load((fs::path(out) / driver::kResolvedName).string());
  return before.ok() && recipe::Diff(before.recipe, recipe).empty();
}

}  // namespace

absl::Status WriteOrigin(const recipe::Recipe& recipe, const std::string& out) {
  const Place place = PlaceOf(recipe, out);
  const nlohmann::ordered_json json = {{"recipe", place.absolute}, {"recipe_from_here", place.relative}};
  return WriteFile(fs::path(out) / driver::kOriginName, json.dump(1) + "\n");
}

absl::Status CheckOrigin(const recipe::Recipe& recipe, const std::string& out) {
  const std::optional<std::string> held = FindRun(out);
  if (!held) return absl::OkStatus();
  constexpr std::int64_t kMostBytes = 1 << 16;  // two paths
  const std::string path = (fs::path(out) / driver::kOriginName).string();
  const absl::StatusOr<std::string> text = ReadRegular(path, kMostBytes);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  RETURN_IF_ERROR(text.status());
  const absl::StatusOr<nlohmann::json> parsed = ParseJson(*text, path);
  const nlohmann::json json = parsed.ok() ? *parsed : nlohmann::json();
  const std::string before = json.is_object() ? WordIn(json, "recipe") : "";
  if (before.empty()) return absl::OkStatus();
  const Place place = PlaceOf(recipe, out);
  if (before == place.absolute || WordIn(json, "recipe_from_here") == place.relative) return absl::OkStatus();
  if (SaysTheSame(recipe, out)) return absl::OkStatus();
  return FailedPrecondition(
      "{} holds a run of another recipe file of that name: {}, and not {}\n"
      "    hint: --out DIR gives this one a folder of its own; --out {} goes on with that run",
      out, before, place.absolute, out);
}

}  // namespace engine::train
