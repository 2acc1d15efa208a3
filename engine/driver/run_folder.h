// Names of the files in a run's folder (docs/metrics.md, docs/architecture.md): what writes them and what reads them
// are different parts of the program.
#pragma once

namespace engine::driver {

inline constexpr const char* kResolvedName = "resolved.toml";           // the recipe, every key written out
inline constexpr const char* kPlanName = "plan.json";                   // driver/plan_document.h
inline constexpr const char* kMetricsName = "metrics.jsonl";            // metrics/jsonl.h
inline constexpr const char* kDeviationsName = "task_deviations.json";  // evaluate/results.h
inline constexpr const char* kCheckpointsName = "checkpoints";          // a folder: checkpoint/layout.h
inline constexpr const char* kTensorBoardName = "tensorboard";          // a folder: metrics/tensorboard.h
inline constexpr const char* kWandbName = "wandb";                      // a folder: metrics/wandb.h
inline constexpr const char* kOriginName = "origin.json";               // train/origin.h
inline constexpr const char* kFaultsName = "faults.jsonl";              // train/fault_kit.h
inline constexpr const char* kOutcomeName = "outcome.json";             // train/outcome.h
inline constexpr const char* kHolderName = "holder.json";               // train/run_lock.h
inline constexpr const char* kGuardName = "guard";                      // a folder: train/guard_notes.h
inline constexpr const char* kBucketRunName = "bucket_run.json";        // train/bucket_claim.h

}  // namespace engine::driver
