#include "engine/metrics/prometheus_textfile.h"

#include "engine/base/write_file.h"

namespace engine::metrics {

absl::Status PrometheusTextfile::Write(const Record& /*record*/) {
  const auto now = std::chrono::steady_clock::now();
  if (now < due_) return absl::OkStatus();
  RETURN_IF_ERROR(WriteText());
  due_ = now + std::chrono::seconds(1);
  return absl::OkStatus();
}

absl::Status PrometheusTextfile::Close(bool /*succeeded*/) { return WriteText(); }

// It is not synced: after a crash of the machine nobody asks for it, and a sync may take long.
absl::Status PrometheusTextfile::WriteText() {
  const std::string text = metrics_.Text();
  return ReplaceFile(path_, Synced::kNo, [&text](const File& file) {
    return file.WriteAt(text.data(), static_cast<std::int64_t>(text.size()), 0);
  });
}

}  // namespace engine::metrics
