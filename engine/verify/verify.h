// The verifier: is this plan right? Every check is a function of its own, reads nothing but the plan, and
// derives anew what must hold instead of asking the pass that made it. An error names the steps and
// instructions that contradict each other:
//   stage 1 backward.1 #17 layers.3.mlp.fc1        instruction 17 of the segment backward.1
//   stage 0 train step 12 (send …, microbatch 3)   step 12 of the stage's largest training program
// A broken plan is our bug (Internal); one that does not fit the device is the recipe's (ResourceExhausted).
#pragma once

#include <cstdint>
#include <string>

#include "engine/base/status.h"
#include "engine/plan/plan.h"

namespace engine::verify {

struct VerifyOptions {
  std::int64_t memory_bytes = 0;    // of one device; 0: not limited
  std::int64_t reserved_bytes = 0;  // of them, outside the arena
};

// All checks below, in that order; the first error.
absl::Status Verify(const plan::Plan& plan, const VerifyOptions& options);

// Every stage has all programs of the plan; those of a kind are of growing sizes, each of whole microbatches (of all
// halves), up to the plan's global batch; and there are segments for the kinds that there are programs of. What the other
// checks rely on.
absl::Status VerifyPrograms(const plan::Plan& plan);

// Every layer lies in one chunk and every chunk on one stage; the shards of every parameter cover it exactly
// once; a parameter is held by the stages that read it, tied over all of them, and owned by that of its first
// reader; optimizer shards cover each bucket.
absl::Status VerifyCoverage(const plan::Plan& plan);

// Every state has one buffer, is moved by one node or by the one update of all scales, and in training alone; its copies on
// several stages start alike.
absl::Status VerifyStates(const plan::Plan& plan);

// Every op's placements are one of its signatures along every axis; every conversion is the collective that
// its two placements call for, over the right group and with the right reduction. Parameters and states lie the same way in
// all programs.
absl::Status VerifyPlacements(const plan::Plan& plan);

// Every gradient is summed exactly once over every axis on which it is partial, tied ones once over the
// holders of their copies, before anything reads it; each bucket is updated once, and gathered again where it was updated
// in shards; loss and norm count every logical number once.
absl::Status VerifyGradients(const plan::Plan& plan);

// Gradients and parameters of which a rank keeps a shard: in every pass, each bucket has the buffer that it
// takes in turn with others until its sums are reduced once, over the axes along which its shards lie, and
// added to the shard once; and until its parameters, gathered and waited for, are read for the last time.
absl::Status VerifyShards(const plan::Plan& plan);

// Inside a segment: every read finds the value that it names, written before and not overwritten since; what
// later segments read survives; instructions write only where they may; all buffers lie in the arena, apart.
absl::Status VerifySegments(const plan::Plan& plan);

// Across steps and streams: a microbatch passes each chunk once forward, once backward and, where the chunk
// has a weights segment, once through that, in this order and in one slot; pipeline buffers, and
// what is sent from a slot or relayed, are not overwritten before they were sent or read. Order counts where the stage's own streams (first in, first out)
// and waits give it.
absl::Status VerifySteps(const plan::Plan& plan);

// Values go to neighbouring chunks, and come to a chunk once. Every send has its receive, with equal bytes, in the same order; collectives over stages are entered alike;
// walking all stages in program order, with sends that complete when they are received, comes to an end.
absl::Status VerifyCommunication(const plan::Plan& plan);

// The largest arena fits the device.
absl::Status VerifyMemory(const plan::Plan& plan, const VerifyOptions& options);

// Why a stage's arena is too large for so many bytes, and what would help: "the arena is parameters 1.00 GiB,
// …; zero_stage = 1 would save …".
std::string ArenaText(const plan::Plan& plan, const plan::StagePlan& stage, std::int64_t usable_bytes);

}  // namespace engine::verify
