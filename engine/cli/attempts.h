// The attempts of a run, as one host takes part in them: when its ranks are started, in which place, and when that ends.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/cli/launch_options.h"
#include "engine/cli/restarts.h"
#include "engine/cli/smaller_layouts.h"
#include "engine/launch/roster.h"

namespace engine::cli {

// Whether the hosts of a run keep in touch (launch/roster.h), so that they begin again together and spares stand in for lost ones.
bool KeepInTouch(const LaunchOptions& options);

class Attempts {
 public:
  // `whole`: the size that the recipe says. `layouts`: of fewer hosts; they outlive this. `has_finished`: whether
  // the run's folder shows that there is nothing left to train. `listener`: at the coordinator's address, where
  // this is host 0 of hosts that keep in touch. `copies_port`: where this host keeps copies of states; 0: it keeps none.
  Attempts(const LaunchOptions& options, const launch::AttemptSize& whole, SmallerLayouts& layouts,
           const launch::Endpoint& coordinator, const std::string& token, const std::string& out,
           std::function<bool()> has_finished, launch::Descriptor listener, int copies_port);

  // `end`: how the attempt before ended here; says what becomes of that. Waits for the next one, or until the run is over.
  launch::Roster::Turn Next(const std::optional<launch::HostEnd>& end);

 private:
  launch::Roster::Turn NextHere(const std::optional<launch::HostEnd>& end);

  const std::int64_t node_;
  const launch::AttemptSize whole_;
  const launch::Endpoint coordinator_;
  const std::function<bool()> has_finished_;
  const launch::Milliseconds meets_within_;  // hosts that are there
  Restarts restarts_;
  std::int64_t attempts_ = 0;               // of a host alone
  std::unique_ptr<launch::Roster> roster_;  // null: this host decides by itself
};

}  // namespace engine::cli
