// What single instructions and transfers take on the devices and links of a [cluster], without a device. How
// they overlap is predict/predict.h's.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/recipe/recipe.h"

namespace engine::predict {

// Rates that the cluster does not give are those of an H200, or of two cores of a CPU: then only proportions
// count.
class CostModel {
 public:
  // What does the work of instructions that a device carries out slowly (Instruction::slow).
  enum class Kernels : std::uint8_t { kAsPlanned, kFast };

  // Both must outlive it. kFast: as if a fast kernel did their work.
  CostModel(const plan::Plan& plan, const recipe::Cluster& cluster, Kernels kernels = Kernels::kAsPlanned);

  // From here on kernels of experts work on so many times the mean rows (graph/rows.h).
  void ScaleRows(double times) { rows_ = times; }

  // Of a kernel or a collective, alone on its stream.
  double Seconds(const plan::Instruction& instruction) const;
  // Of a copy between the device and its host's memory.
  double HostCopySeconds(std::int64_t bytes) const;
  // Of what a rank sends from its host's memory to another host's.
  double LinkSeconds(std::int64_t bytes) const;
  // What a pushed sum leaves to compute: the parts that arrived are added up.
  double FinishSeconds(const plan::Instruction& instruction) const;
  // Share of its speed that computation loses beside an exchange.
  static double BesideShare(const plan::Instruction& instruction);
  // What computation stands still, at least, where it waits for exchange beside it.
  double AwaitSeconds() const;
  double TransferSeconds(const plan::Transfer& transfer) const;

  // Keys of [cluster] that are needed and 0.
  std::vector<std::string> Missing() const;

 private:
  // How the ranks of a group reach each other.
  struct Link {
    double members = 1;
    double nodes = 1;
    double bandwidth = 0;  // bytes a second that a rank sends
    bool known = false;
  };
  double KernelSeconds(const plan::Instruction& instruction) const;
  // Read and written once each; of rows of experts those that a balanced load fills.
  double Bytes(const plan::Instruction& instruction) const;
  double Bytes(const plan::BufferRef& ref) const;
  void NoteRows(const plan::Instruction& place);
  bool HasRows(const plan::Instruction& instruction) const;
  Link LinkOf(const plan::Group& group) const;
  Link MakeLink(const std::vector<std::int64_t>& ranks) const;

  const plan::Plan& plan_;
  const recipe::Cluster& given_;
  Kernels kernels_;
  bool cpu_ = false;
  double rows_ = 1;  // times the mean
  // Of a rank, gaps filled.
  double matmul_flops_ = 0, memory_bandwidth_ = 0, intra_node_bandwidth_ = 0, inter_node_bandwidth_ = 0;
  std::int64_t ranks_per_node_ = 1;
  mutable std::array<Link, 32> links_;  // by bits of the axes
  // By the bound of a rank's rows (graph/rows.h): the share that is filled where all experts are chosen alike. Kernels
  // leave the rest alone.
  absl::flat_hash_map<std::int64_t, double> filled_;
};

}  // namespace engine::predict
