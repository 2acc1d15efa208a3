// Event files of TensorBoard: curves by Megatron-LM's names, the run's texts and its hyper-parameters.
//
// A process of a run writes a file of its own, and each file begins with the iteration from which on it replaces what
// earlier ones say: so a run that was killed and resumed shows one line, with the reader that goes by that mark and with the
// one that goes by the steps alone. The mark holds for all curves of a folder. Curves over consumed samples have other
// steps, and so a folder of their own, `samples` in the other, which TensorBoard shows as another run.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/metrics/append_file.h"
#include "engine/metrics/sink.h"

namespace engine::metrics {

class TensorBoard : public Sink {
 public:
  TensorBoard(const std::string& folder, RunDescription run);

  std::string Name() const override { return "tensorboard"; }
  bool ShowsHistograms() const override { return true; }
  absl::Status Write(const Record& record) override;
  absl::Status Close(bool succeeded) override;

 private:
  using Curve = std::pair<std::string, double>;  // tag and value

  // The file's first records: version, first step, texts and settings.
  std::string Beginning(std::int64_t resumed_step, bool with_description) const;
  // Returns the file's size before, in bytes.
  absl::StatusOr<std::int64_t> Append(AppendFile& file, std::int64_t resumed_step, bool with_description,
                                      const std::string& records);

  RunDescription run_;
  AppendFile by_iteration_;
  AppendFile by_samples_;
};

}  // namespace engine::metrics
