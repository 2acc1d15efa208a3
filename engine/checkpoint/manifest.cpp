#include "engine/checkpoint/manifest.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>
#include <set>

#include "engine/base/hash.h"
#include "engine/base/json.h"
#include "engine/base/status.h"
#include "engine/checkpoint/coverage.h"
#include "engine/checkpoint/layout.h"

namespace engine::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFormat = "engine-checkpoint";
constexpr std::int64_t kVersion = 1;
constexpr int kMostDepth = 16;
// Optional: older manifests have none.
constexpr const char* kFingerprints = "fingerprints";
constexpr const char* kScheduleSamples = "schedule_samples";
constexpr const char* kGuard = "guard";
// Versions of draws, which are 1 where they are missing.
constexpr const char* kAttentionDraws = "attention_draws";
constexpr const char* kDropoutDraws = "dropout_draws";
struct Draws {
  const char* key;
  std::int64_t Metadata::*version;
};
constexpr std::array kDraws = {Draws{kAttentionDraws, &Metadata::attention_draws},
                               Draws{kDropoutDraws, &Metadata::dropout_draws}};
constexpr std::size_t kChecksumDigits = 32;
// No JSON string can contain this text: inside one, its quotation marks are escaped.
constexpr std::string_view kChecksumKey = "\"manifest_checksum\": \"";

// ----------------------------------------------------------------------------------------------------
// writing

Json ToJson(const Shape& shape) { return Json(std::vector<std::int64_t>(shape.begin(), shape.end())); }

Json ToJson(const TensorInfo& tensor, const std::vector<Piece>& pieces) {
  Json list = Json::array();
  for (const Piece& piece : pieces) {
    list.push_back({{"file", piece.file},
                    {"dataset", piece.dataset},
                    {"start", ToJson(piece.box.start)},
                    {"count", ToJson(piece.box.count)},
                    {"offset", piece.offset_bytes}});
  }
  return {{"name", tensor.name},
          {"shape", ToJson(tensor.shape)},
          {"dtype", Name(tensor.dtype)},
          {"pieces", list}};
}

Json ToJson(const GuardState& guard) {
  Json left_out = Json::array();
  for (const recipe::IterationRange& range : guard.left_out) left_out.push_back({range.first, range.last});
  return {{"losses", guard.losses},
          {"grad_norms", guard.grad_norms},
          {"left_out", std::move(left_out)},
          {"rewinds", guard.rewinds},
          {"skips", guard.skips}};
}

Json ToJson(const Manifest& manifest) {
  const Metadata& metadata = manifest.metadata;
  Json files = Json::array();
  for (const FileInfo& file : manifest.files) {
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh3_128", file.checksum}});
  }
  Json tensors = Json::array();
  for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
    tensors.push_back(ToJson(manifest.tensors[i], manifest.pieces[i]));
  }
  Json root = {{"format", kFormat},
               {"version", kVersion},
               {"manifest_checksum", std::string(kChecksumDigits, '0')},
               {"iteration", metadata.iteration},
               {"consumed_samples", metadata.consumed_samples},
               {"seed", metadata.seed},
               {"adam_step", metadata.optimizer_steps},
               {"plan_hash", metadata.plan_hash},
               {"recipe", metadata.recipe_toml},
               {"engine_version", metadata.engine_version},
               {"mesh", metadata.mesh},
               {"files", std::move(files)},
               {"tensors", std::move(tensors)}};
  if (metadata.schedule_samples >= 0) root[kScheduleSamples] = metadata.schedule_samples;
  for (const Draws& draws : kDraws) {
    if (metadata.*draws.version > 1) root[draws.key] = metadata.*draws.version;
  }
  if (!metadata.fingerprints.empty()) root[kFingerprints] = metadata.fingerprints;
  if (metadata.guard != GuardState()) root[kGuard] = ToJson(metadata.guard);
  return root;
}

// ----------------------------------------------------------------------------------------------------
// reading

absl::Status CheckKeys(const Json& object, std::initializer_list<std::string_view> keys,
                       const std::string& where, std::initializer_list<std::string_view> optional_keys = {}) {
  if (!object.is_object()) return DataLoss("{} is not an object", where);
  for (std::string_view key : keys) {
    if (!object.contains(key)) return DataLoss("{} has no \"{}\"", where, key);
  }
  for (const auto& [key, value] : object.items()) {
    const auto among = [&key = key](std::initializer_list<std::string_view> names) {
      return std::find(names.begin(), names.end(), key) != names.end();
    };
    if (!among(keys) && !among(optional_keys)) return DataLoss("{} has an unknown key", where);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::int64_t> Integer(const Json& value, const std::string& where) {
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<std::uint64_t>() > kMost)) {
    return DataLoss("{} is not a 64-bit integer", where);
  }
  return value.get<std::int64_t>();
}

absl::StatusOr<std::string> Text(const Json& value, const std::string& where) {
  if (!value.is_string()) return DataLoss("{} is not a string", where);
  return value.get<std::string>();
}

absl::StatusOr<Shape> Integers(const Json& value, const std::string& where) {
  if (!value.is_array()) return DataLoss("{} is not a list", where);
  Shape shape;
  for (const Json& item : value) {
    ASSIGN_OR_RETURN(const std::int64_t number, Integer(item, where));
    shape.push_back(number);
  }
  return shape;
}

absl::StatusOr<std::vector<double>> Numbers(const Json& value, const std::string& where) {
  if (!value.is_array()) return DataLoss("{} is not a list", where);
  std::vector<double> numbers;
  for (const Json& item : value) {
    if (!item.is_number()) return DataLoss("{} has what is not a number", where);
    numbers.push_back(item.get<double>());
  }
  return numbers;
}

absl::StatusOr<GuardState> GuardOf(const Json& root) {
  RETURN_IF_ERROR(CheckKeys(root, {"losses", "grad_norms", "left_out", "rewinds", "skips"}, kGuard));
  GuardState guard;
  ASSIGN_OR_RETURN(guard.losses, Numbers(root["losses"], "guard.losses"));
  ASSIGN_OR_RETURN(guard.grad_norms, Numbers(root["grad_norms"], "guard.grad_norms"));
  if (guard.losses.size() != guard.grad_norms.size())
    return DataLoss("guard has {} losses and {} norms", guard.losses.size(), guard.grad_norms.size());
  if (!root["left_out"].is_array()) return DataLoss("guard.left_out is not a list");
  for (const Json& item : root["left_out"]) {
    ASSIGN_OR_RETURN(const Shape ends, Integers(item, "a range of guard.left_out"));
    if (ends.rank() != 2 || ends[0] < 1 || ends[1] < ends[0])
      return DataLoss("{} of guard.left_out are no iterations from one to another", ends.ToString());
    guard.left_out.push_back({ends[0], ends[1]});
  }
  ASSIGN_OR_RETURN(guard.rewinds, Integer(root["rewinds"], "guard.rewinds"));
  if (guard.rewinds < 0) return DataLoss("guard.rewinds is negative");
  ASSIGN_OR_RETURN(guard.skips, Integer(root["skips"], "guard.skips"));
  if (guard.skips < 0) return DataLoss("guard.skips is negative");
  return guard;
}

absl::StatusOr<Metadata> ParseMetadata(const Json& root) {
  Metadata metadata;
  ASSIGN_OR_RETURN(metadata.iteration, Integer(root["iteration"], "iteration"));
  ASSIGN_OR_RETURN(metadata.consumed_samples, Integer(root["consumed_samples"], "consumed_samples"));
  ASSIGN_OR_RETURN(metadata.seed, Integer(root["seed"], "seed"));
  ASSIGN_OR_RETURN(metadata.optimizer_steps, Integer(root["adam_step"], "adam_step"));
  ASSIGN_OR_RETURN(metadata.plan_hash, Text(root["plan_hash"], "plan_hash"));
  ASSIGN_OR_RETURN(metadata.recipe_toml, Text(root["recipe"], "recipe"));
  ASSIGN_OR_RETURN(metadata.engine_version, Text(root["engine_version"], "engine_version"));
  if (!root["mesh"].is_object()) return DataLoss("mesh is not an object");
  for (const auto& [axis, size] : root["mesh"].items()) {
    ASSIGN_OR_RETURN(metadata.mesh[axis], Integer(size, "a mesh axis"));
  }
  if (root.contains(kFingerprints)) {
    if (!root[kFingerprints].is_object()) return DataLoss("fingerprints is not an object");
    for (const auto& [name, text] : root[kFingerprints].items()) {
      ASSIGN_OR_RETURN(metadata.fingerprints[name], Text(text, "a fingerprint"));
    }
  }
  if (root.contains(kScheduleSamples)) {
    ASSIGN_OR_RETURN(metadata.schedule_samples, Integer(root[kScheduleSamples], kScheduleSamples));
    if (metadata.schedule_samples < 0) return DataLoss("{} is negative", kScheduleSamples);
  }
  if (root.contains(kGuard)) {
    ASSIGN_OR_RETURN(metadata.guard, GuardOf(root[kGuard]));
  }
  for (const Draws& draws : kDraws) {
    if (!root.contains(draws.key)) continue;
    ASSIGN_OR_RETURN(metadata.*draws.version, Integer(root[draws.key], draws.key));
    if (metadata.*draws.version < 1) return DataLoss("{} is less than 1", draws.key);
  }
  RETURN_IF_ERROR(ValidateMetadata(metadata));
  return metadata;
}

absl::StatusOr<std::vector<FileInfo>> ParseFiles(const Json& list) {
  if (!list.is_array()) return DataLoss("files is not a list");
  std::vector<FileInfo> files;
  std::set<std::string> names;
  for (const Json& item : list) {
    const std::string where = fmt::format("files[{}]", files.size());
    RETURN_IF_ERROR(CheckKeys(item, {"name", "bytes", "xxh3_128"}, where));
    FileInfo file;
    ASSIGN_OR_RETURN(file.name, Text(item["name"], where + ".name"));
    ASSIGN_OR_RETURN(file.bytes, Integer(item["bytes"], where + ".bytes"));
    ASSIGN_OR_RETURN(file.checksum, Text(item["xxh3_128"], where + ".xxh3_128"));
    if (!RankOfShardName(file.name) && file.name != kIndexName) {
      return DataLoss("{}.name is neither {} nor {}", where, ShardName(0), kIndexName);
    }
    if (file.bytes < 0) return DataLoss("{}.bytes is negative", where);
    if (file.checksum.size() != kChecksumDigits) return DataLoss("{}.xxh3_128 is not a checksum", where);
    if (!names.insert(file.name).second) return DataLoss("files names {} twice", file.name);
    files.push_back(std::move(file));
  }
  if (!names.contains(std::string(kIndexName))) return DataLoss("files does not name {}", kIndexName);
  return files;
}

absl::StatusOr<Piece> ParsePiece(const Json& item, const TensorInfo& tensor,
                                 const std::vector<FileInfo>& files) {
  const std::string where = fmt::format("a piece of tensor {}", tensor.name);
  RETURN_IF_ERROR(CheckKeys(item, {"file", "dataset", "start", "count", "offset"}, where));
  Piece piece;
  ASSIGN_OR_RETURN(const std::int64_t file, Integer(item["file"], where + ": file"));
  ASSIGN_OR_RETURN(piece.dataset, Text(item["dataset"], where + ": dataset"));
  ASSIGN_OR_RETURN(piece.box.start, Integers(item["start"], where + ": start"));
  ASSIGN_OR_RETURN(piece.box.count, Integers(item["count"], where + ": count"));
  ASSIGN_OR_RETURN(piece.offset_bytes, Integer(item["offset"], where + ": offset"));
  if (file < 0 || file >= static_cast<std::int64_t>(files.size()))
    return DataLoss("{}: no file {}", where, file);
  piece.file = static_cast<int>(file);
  if (!IsInside(piece.box, tensor.shape)) return DataLoss("{} is outside its shape", where);
  const std::int64_t bytes = piece.box.count.elements() * SizeOf(tensor.dtype);
  const std::int64_t file_bytes = files[piece.file].bytes;
  if (piece.offset_bytes < 0 || bytes > file_bytes || piece.offset_bytes > file_bytes - bytes) {
    return DataLoss("{}: bytes [{}, +{}) are outside its file of {} bytes", where, piece.offset_bytes, bytes,
                    file_bytes);
  }
  return piece;
}

absl::Status ParseTensors(const Json& list, Manifest* manifest) {
  if (!list.is_array()) return DataLoss("tensors is not a list");
  for (const Json& item : list) {
    const std::string where = fmt::format("tensors[{}]", manifest->tensors.size());
    RETURN_IF_ERROR(CheckKeys(item, {"name", "shape", "dtype", "pieces"}, where));
    TensorInfo tensor;
    ASSIGN_OR_RETURN(tensor.name, Text(item["name"], where + ".name"));
    ASSIGN_OR_RETURN(tensor.shape, Integers(item["shape"], where + ".shape"));
    ASSIGN_OR_RETURN(const std::string dtype, Text(item["dtype"], where + ".dtype"));
    const std::optional<DType> known = ParseDType(dtype);
    if (!known) return DataLoss("{}.dtype is unknown", where);
    tensor.dtype = *known;
    if (!item["pieces"].is_array()) return DataLoss("{}.pieces is not a list", where);
    manifest->tensors.push_back(std::move(tensor));
  }
  RETURN_IF_ERROR(ValidateTensors(manifest->tensors));
  for (std::size_t i = 0; i < manifest->tensors.size(); ++i) {
    const TensorInfo& tensor = manifest->tensors[i];
    std::vector<Piece>& pieces = manifest->pieces.emplace_back();
    std::vector<Box> boxes;
    for (const Json& item : list[i]["pieces"]) {
      ASSIGN_OR_RETURN(Piece piece, ParsePiece(item, tensor, manifest->files));
      boxes.push_back(piece.box);
      pieces.push_back(std::move(piece));
    }
    RETURN_IF_ERROR(CheckCoverage(tensor.name, tensor.shape, boxes));
  }
  return absl::OkStatus();
}

// Position of the first checksum digit; nullopt where the text is no manifest or is cut short.
std::optional<std::size_t> FindChecksum(std::string_view text) {
  const std::size_t key = text.find(kChecksumKey);
  if (key == std::string_view::npos || text.size() - key < kChecksumKey.size() + kChecksumDigits)
    return std::nullopt;
  return key + kChecksumKey.size();
}

std::string ChecksumAround(std::string_view text, std::size_t digits_at) {
  Hasher hasher;
  hasher.Update(text.substr(0, digits_at));
  hasher.Update(std::string(kChecksumDigits, '0'));
  hasher.Update(text.substr(digits_at + kChecksumDigits));
  return hasher.HexDigest();
}

}  // namespace

absl::StatusOr<std::string> FormatManifest(const Manifest& manifest) {
  std::string text;
  try {
    text = ToJson(manifest).dump(1) + "\n";
  } catch (const Json::exception&) {
    return InvalidArgument("the recipe or another text of the checkpoint is not valid UTF-8");
  }
  const std::optional<std::size_t> digits_at = FindChecksum(text);
  ENGINE_CHECK(digits_at.has_value(), "the manifest has no place for its checksum");
  text.replace(*digits_at, kChecksumDigits, ChecksumAround(text, *digits_at));
  return text;
}

absl::StatusOr<Manifest> ParseManifest(std::string_view text) {
  const std::optional<std::size_t> digits_at = FindChecksum(text);
  if (!digits_at) return DataLoss("no checkpoint manifest, or one cut short");
  if (text.substr(*digits_at, kChecksumDigits) != ChecksumAround(text, *digits_at)) {
    return DataLoss("the manifest's checksum does not match its {} bytes: it was changed or cut short",
                    text.size());
  }
  if (IsNestedDeeper(text, kMostDepth)) return DataLoss("JSON nested deeper than {}", kMostDepth);
  const Json root = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded()) return DataLoss("not valid JSON");
  if (!root.is_object() || !root.contains("format") || root["format"] != kFormat ||
      !root.contains("version")) {
    return DataLoss("not a checkpoint manifest");
  }
  if (root["version"] != kVersion) {
    return DataLoss("format version is not {}, the one this engine reads", kVersion);
  }
  RETURN_IF_ERROR(
      CheckKeys(root,
                {"format", "version", "manifest_checksum", "iteration", "consumed_samples", "seed",
                 "adam_step", "plan_hash", "recipe", "engine_version", "mesh", "files", "tensors"},
                "the manifest", {kFingerprints, kScheduleSamples, kAttentionDraws, kDropoutDraws, kGuard}));
  Manifest manifest;
  ASSIGN_OR_RETURN(manifest.metadata, ParseMetadata(root));
  ASSIGN_OR_RETURN(manifest.files, ParseFiles(root["files"]));
  RETURN_IF_ERROR(ParseTensors(root["tensors"], &manifest));
  return manifest;
}

std::string FormatGuard(const GuardState& guard) { return ToJson(guard).dump() + "\n"; }

absl::StatusOr<GuardState> ParseGuard(std::string_view text) {
  const Json root = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return GuardOf(root);
}

}  // namespace engine::checkpoint
