// An offline file of Weights & Biases, which `wandb sync` uploads: FOLDER/offline-run-TIME-ID/run-ID.wandb.
//
// The file is a log in LevelDB's framing (wandb_log.h) of protobuf messages `Record` (wandb/proto/wandb_internal.proto). A run
// has one file, whichever process writes it: one that is resumed finds it by its name, cuts off what will run again, and goes on
// with its own description of the run and its configuration, which replace the earlier ones.
// All that is said of one iteration is one row of its history; it is written when the iteration's checkpoint is, or the next
// iteration's first record comes.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/metrics/append_file.h"
#include "engine/metrics/protobuf.h"
#include "engine/metrics/sink.h"

namespace engine::metrics {

struct WandbNames {
  std::string project;
  std::string entity;  // empty: that of whoever uploads it
  std::string name;    // of the run
};

class Wandb : public Sink {
 public:
  Wandb(std::string folder, WandbNames names, RunDescription run)
      : folder_(std::move(folder)), names_(std::move(names)), run_(std::move(run)), file_("") {}

  std::string Name() const override { return "wandb"; }
  absl::Status Write(const Record& record) override;
  absl::Status Close(bool succeeded) override;

 private:
  // Opens the run's file, or makes it; as often as it is called.
  absl::Status Open();
  // The content of a Record: the number of its field, and the message in it.
  using Content = std::pair<int, ProtoMessage>;

  // Appends a Record for each content, all of them or none.
  absl::Status Append(std::span<const Content> contents);
  // The row that is not yet written, where there is one.
  std::vector<Content> Row() const;
  // Appends the row and what `more` gives; the row is then written.
  absl::Status AppendRow(const std::vector<Content>& more = {});
  Content Summary() const;
  ProtoMessage RunMessage() const;
  ProtoMessage ConfigMessage() const;

  std::string folder_;
  WandbNames names_;
  RunDescription run_;
  std::string id_;
  AppendFile file_;
  std::int64_t records_ = 0;   // in the file
  bool is_described_ = false;  // the file has the run and the configuration of this process
  std::int64_t row_iteration_ = 0;
  std::map<std::string, std::string> row_;     // value by tag, as JSON; not yet written
  std::map<std::string, std::string> latest_;  // of all rows
};

}  // namespace engine::metrics
