// How the process of a rank outlives an attempt of its run: it tells the supervisor that it could take part in another one, and
// waits for its place there. What a process has and a new one would have to make, such as a GPU's context with its kernels, stays.
//
// Over a pair of connected stream sockets, one end of which the supervisor gives to each rank (ENGINE_NEXT_PLACE, its number): the
// rank writes one byte; the supervisor answers with a frame, and with it the descriptors (SCM_RIGHTS of unix(7)); or it closes its
// end, and the process ends.
#pragma once

#include <absl/status/statusor.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/launch/socket.h"

namespace engine::launch {

// The variables by which a supervisor tells a rank its place (environment.h), all of them.
inline constexpr const char* kPlaceVariables[] = {
    "ENGINE_RANK",    "ENGINE_WORLD_SIZE", "ENGINE_LOCAL_RANK", "ENGINE_LOCAL_SIZE", "ENGINE_COORDINATOR",
    "ENGINE_TOKEN",   "ENGINE_LISTENER",   "ENGINE_MEMORY",     "ENGINE_COPIES",     "ENGINE_COPIES_AT",
    "ENGINE_RESTART", "ENGINE_FROM_DISK",  "ENGINE_NEXT_PLACE"};

// What a process that is started would be given.
struct NextPlace {
  std::vector<std::string> arguments;  // its name first
  std::vector<std::string> variables;  // NAME=value, of kPlaceVariables; the others are not set
};

// The supervisor's end.
class PlaceGiver {
 public:
  PlaceGiver() = default;
  // Of a rank that is about to be started. Its own end is `theirs`, which the process inherits.
  static absl::StatusOr<PlaceGiver> Make(Descriptor* theirs);

  bool open() const { return socket_.open(); }
  int number() const { return socket_.number(); }
  // Whether the process has said that it waits; it says it once for each attempt.
  bool HasAsked();
  // `out`: its standard output. A descriptor of `shared` has a variable, of place.variables, that says its number in this process; to
  // the other process it is given anew, under the number that it has there. False: the process is gone.
  bool Give(NextPlace place, int out, const std::vector<std::pair<std::string, int>>& shared);
  void Close() { socket_.Close(); }

 private:
  Descriptor socket_;
};

// A rank's process: it could take part in another attempt, and waits until it is given a place there. Then it has the variables, the
// descriptors and the standard output of that place. Returns the arguments; nullopt: there is none, and the process is to end.
// `socket`: ENGINE_NEXT_PLACE.
std::optional<std::vector<std::string>> AwaitNextPlace(int socket);

}  // namespace engine::launch
