// What faults do, each by itself (train/fault.h says what they are).
#pragma once

#include <cstdint>

#include "engine/executor/executor.h"
#include "engine/train/fault.h"

namespace engine::train {

// Faults of a process: kill, stop, exit, throw, hang, drop-connection. Returns where the process lives on.
void MakeProcessFault(const Fault& fault);

// Shuts down every TCP connection of this process, in both directions; listening sockets stay.
void DropConnections();

// Makes an element of the fault's tensor NaN, or turns one of its bits, both drawn by the fault's seed. Without a tensor the
// rank's first: its gradient at the update, its weights before. Of what is received: when that comes.
absl::Status SpoilTensor(const Fault& fault, executor::RankExecutor& rank);

}  // namespace engine::train
