#include "engine/train/fault_kit.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "engine/base/file_io.h"
#include "engine/base/json.h"
#include "engine/base/print.h"
#include "engine/base/write_observer.h"
#include "engine/checkpoint/layout.h"
#include "engine/driver/run_folder.h"
#include "engine/train/fault_acts.h"

namespace engine::train {
namespace {

namespace fs = std::filesystem;
using executor::Moment;
using FaultPlace = Fault::At;
using Kind = Fault::Kind;

FaultPlace FaultPlaceOf(Moment moment) {
  switch (moment) {
    case Moment::kData:
      return FaultPlace::kData;
    case Moment::kForward:
      return FaultPlace::kForward;
    case Moment::kExchange:
      return FaultPlace::kExchange;
    case Moment::kUpdate:
      return FaultPlace::kUpdate;
  }
  return FaultPlace::kForward;
}

// Appends a line, on disk when this returns: what comes next may kill the process, or the machine.
absl::Status AppendSynced(const std::string& path, const std::string& line) {
  const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor < 0) return Unavailable("{}: cannot be opened: {}", path, std::strerror(errno));
  const File file(descriptor, path);
  if (write(descriptor, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
    return Unavailable("{}: cannot be written: {}", path, std::strerror(errno));
  return file.Sync();
}

}  // namespace

FaultKit::FaultKit(const std::vector<Fault>& faults, const std::string& out)
    : path_((fs::path(out) / driver::kFaultsName).string()) {
  for (const Fault& fault : faults) planned_.push_back({.fault = fault, .text = TextOf(fault)});
}

FaultKit::~FaultKit() { SetWriteObserver(nullptr); }

absl::StatusOr<std::unique_ptr<FaultKit>> FaultKit::Open(const std::vector<Fault>& faults,
                                                         const std::string& out) {
  std::unique_ptr<FaultKit> kit(new FaultKit(faults, out));
  RETURN_IF_ERROR(kit->TakeDone());
  for (const Planned& planned : kit->planned_) {
    if (planned.fault.at != FaultPlace::kSave) continue;
    SetWriteObserver([raw = kit.get()](const std::string& path) { return raw->OnWrite(path); });
    break;
  }
  return kit;
}

absl::Status FaultKit::TakeDone() {
  std::set<std::string> made;
  std::ifstream file(path_);
  std::int64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(line, path_, ++number));
    if (const auto found = json.find("fault"); found != json.end() && found->is_string())
      made.insert(found->get<std::string>());
  }
  for (Planned& planned : planned_) planned.done = planned.fault.every == 0 && made.contains(planned.text);
  return absl::OkStatus();
}

absl::Status FaultKit::Record(const Planned& planned, std::int64_t iteration) const {
  const nlohmann::ordered_json line = {{"fault", planned.text},
                                       {"rank", planned.fault.rank},
                                       {"iteration", iteration},
                                       {"timestamp", static_cast<std::int64_t>(std::time(nullptr))}};
  Print(stderr, "note: fault {} is made in iteration {}\n", planned.text, iteration);
  std::fflush(stderr);
  return AppendSynced(path_, line.dump() + "\n");
}

absl::StatusOr<bool> FaultKit::Claim(Planned& planned, std::int64_t iteration) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (planned.done || planned.made_in == iteration || !planned.fault.IsDue(iteration)) return false;
  const bool is_first = planned.made_in == 0;
  planned.made_in = iteration;
  planned.done = planned.fault.every == 0;
  if (is_first) RETURN_IF_ERROR(Record(planned, iteration));
  return true;
}

absl::Status FaultKit::At(executor::RankExecutor& rank, Moment moment, std::int64_t iteration) {
  for (Planned& planned : planned_) {
    const Fault& fault = planned.fault;
    if (fault.rank != rank.rank()) continue;
    if (moment == Moment::kUpdate && std::exchange(planned.slows, false)) {
      RETURN_IF_ERROR(rank.backend().Synchronize());  // the passes end when the device is done
      const auto passes = std::chrono::steady_clock::now() - planned.passes_began;
      std::this_thread::sleep_for(passes * (fault.number - 1));
    }
    if (fault.at != FaultPlaceOf(moment)) continue;
    ASSIGN_OR_RETURN(const bool is_due, Claim(planned, iteration));
    if (!is_due) continue;
    if (fault.kind == Kind::kSlow) {
      planned.slows = true;
      planned.passes_began = std::chrono::steady_clock::now();
    } else if (fault.IsOfTensor()) {
      RETURN_IF_ERROR(SpoilTensor(fault, rank));
    } else {
      MakeProcessFault(fault);
    }
  }
  return absl::OkStatus();
}

void FaultKit::TellMissed(std::int64_t rank) const {
  for (const Planned& planned : planned_) {
    if (planned.fault.rank != rank || planned.done || planned.made_in > 0) continue;
    const bool saves = planned.fault.at == FaultPlace::kSave;
    Print(stderr, "warning: fault {} was not made: {}\n", planned.text,
          saves ? "the rank wrote no part of that checkpoint, as others have all that it has"
                : "the rank did not come there");
  }
}

int FaultKit::OnWrite(const std::string& path) {
  const fs::path file(path);
  const auto folder = checkpoint::ParseLeftoverName(file.parent_path().filename().string());
  if (!folder || folder->kind != checkpoint::LeftoverKind::kWriting) return 0;
  for (Planned& planned : planned_) {
    const Fault& fault = planned.fault;
    const bool is_its_shard = file.filename() == checkpoint::ShardName(static_cast<int>(fault.rank));
    if (fault.at != FaultPlace::kSave || !is_its_shard) continue;
    const absl::StatusOr<bool> is_due = Claim(planned, folder->iteration);
    if (!is_due.ok()) Print(stderr, "warning: {}\n", Message(is_due.status()));
    if (!is_due.ok() || !*is_due) continue;
    if (fault.kind == Kind::kEnospc) return ENOSPC;
    MakeProcessFault(fault);
  }
  return 0;
}

}  // namespace engine::train
