#include "engine/state/shard_exchange.h"

#include <filesystem>

#include "engine/base/json.h"
#include "engine/base/status.h"

namespace engine::state {
namespace {

constexpr std::size_t kMostAtOnce = std::size_t{1} << 19;  // half of what the rendezvous takes

std::string PartKey(const std::string& key, int rank, std::size_t part) {
  return fmt::format("{} of rank {}, part {}", key, rank, part);
}

Shape ShapeIn(const nlohmann::json& json) {
  Shape shape;
  for (const nlohmann::json& size : json) shape.push_back(size.get<std::int64_t>());
  return shape;
}

// The record of the shard that was written, as text; empty where the rank has no pieces.
absl::StatusOr<std::string> WriteShard(const std::string& folder, int rank,
                                       const std::vector<checkpoint::TensorInfo>& tensors,
                                       const std::vector<checkpoint::PieceToWrite>& pieces) {
  if (pieces.empty()) return std::string();
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    return FailedPrecondition(
        "{}, where rank 0 writes the checkpoint, is not there for rank {}; all hosts must share its file "
        "system",
        folder, rank);
  }
  ASSIGN_OR_RETURN(const checkpoint::ShardRecord record,
                   InMemory([&] { return checkpoint::WriteShardFile(folder, rank, tensors, pieces); }));
  return ToText(record);
}

absl::Status AddShard(int rank, const std::string& text, checkpoint::Writer* writer) {
  ASSIGN_OR_RETURN(checkpoint::ShardRecord record, ShardRecordOf(text));
  const std::filesystem::path file = std::filesystem::path(writer->folder()) / record.file.name;
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(file, error);
  if (error || bytes != static_cast<std::uintmax_t>(record.file.bytes)) {
    return FailedPrecondition(
        "rank {} has written its shard of the checkpoint, but {} is not there for rank 0, or is not all "
        "there; all hosts must share its file system",
        rank, file.string());
  }
  return writer->AddShard(std::move(record));
}

}  // namespace

std::string ToText(const absl::StatusOr<std::string>& told) {
  const bool is_there = told.ok();
  const std::string text = is_there ? *told : Message(told.status());
  // A message may have the name of a file, which is bytes.
  return nlohmann::json{static_cast<int>(told.status().code()), text}.dump(
      -1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<std::string> Told(const std::string& text) try {
  ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text, "what a rank tells of a checkpoint"));
  const auto code = static_cast<absl::StatusCode>(json.at(0).get<int>());
  auto said = json.at(1).get<std::string>();
  if (code == absl::StatusCode::kOk) return said;
  return absl::Status(code, said);
} catch (const nlohmann::json::exception& error) {
  return DataLoss("what a rank tells of a checkpoint cannot be read: {}", error.what());
}

std::string ToText(const checkpoint::ShardRecord& record) {
  nlohmann::json pieces = nlohmann::json::array();
  for (std::size_t i = 0; i < record.pieces.size(); ++i) {
    const checkpoint::Piece& piece = record.pieces[i];
    pieces.push_back({record.tensors[i], piece.dataset,
                      std::vector<std::int64_t>(piece.box.start.begin(), piece.box.start.end()),
                      std::vector<std::int64_t>(piece.box.count.begin(), piece.box.count.end()),
                      piece.offset_bytes});
  }
  return nlohmann::json{record.file.name, record.file.bytes, record.file.checksum, pieces}.dump();
}

absl::StatusOr<checkpoint::ShardRecord> ShardRecordOf(const std::string& text) try {
  ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text, "the record of a shard"));
  checkpoint::ShardRecord record;
  record.file = {json.at(0).get<std::string>(), json.at(1).get<std::int64_t>(),
                 json.at(2).get<std::string>()};
  for (const nlohmann::json& item : json.at(3)) {
    record.tensors.push_back(item.at(0).get<int>());
    checkpoint::Piece& piece = record.pieces.emplace_back();
    piece.dataset = item.at(1).get<std::string>();
    piece.box = {ShapeIn(item.at(2)), ShapeIn(item.at(3))};
    piece.offset_bytes = item.at(4).get<std::int64_t>();
  }
  return record;
} catch (const nlohmann::json::exception& error) {
  return DataLoss("a shard's record cannot be read: {}", error.what());
}

absl::Status SendShard(const std::string& folder, int rank,
                       const std::vector<checkpoint::TensorInfo>& tensors,
                       const std::vector<checkpoint::PieceToWrite>& pieces, const std::string& key,
                       launch::Client& processes) {
  const absl::StatusOr<std::string> written = WriteShard(folder, rank, tensors, pieces);
  if (!written.ok())
    return processes.Set(PartKey(key, rank, 0),
                         ToText(WithContext(written.status(), fmt::format("rank {}", rank))));
  const std::size_t parts = (written->size() + kMostAtOnce - 1) / kMostAtOnce;
  for (std::size_t part = 0; part < parts; ++part) {
    RETURN_IF_ERROR(
        processes.Set(PartKey(key, rank, part + 1), written->substr(part * kMostAtOnce, kMostAtOnce)));
  }
  return processes.Set(PartKey(key, rank, 0), ToText(std::to_string(parts)));
}

absl::Status ReceiveShard(int rank, const std::string& key, launch::Client& processes,
                          checkpoint::Writer* writer, absl::Status* failure) {
  ASSIGN_OR_RETURN(const std::string told, processes.Take(PartKey(key, rank, 0)));
  const absl::StatusOr<std::string> parts = Told(told);
  if (!parts.ok()) {
    failure->Update(parts.status());
    return absl::OkStatus();
  }
  std::string text;
  for (std::size_t part = 1; part <= std::stoull(*parts); ++part) {
    ASSIGN_OR_RETURN(const std::string piece, processes.Take(PartKey(key, rank, part)));
    text += piece;
  }
  if (!text.empty()) failure->Update(AddShard(rank, text, writer));
  return absl::OkStatus();
}

}  // namespace engine::state
