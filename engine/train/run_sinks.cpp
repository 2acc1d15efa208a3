#include "engine/train/run_sinks.h"

#include <chrono>
#include <filesystem>
#include <memory>
#include <variant>

#include "engine/base/host_name.h"
#include "engine/base/version.h"
#include "engine/driver/run_folder.h"
#include "engine/metrics/prometheus_listener.h"
#include "engine/metrics/prometheus_textfile.h"
#include "engine/metrics/tensorboard.h"
#include "engine/metrics/wandb.h"
#include "engine/plan/print.h"
#include "engine/recipe/fields.h"
#include "engine/recipe/print.h"

namespace engine::train {
namespace {

namespace fs = std::filesystem;

std::string HostKey(std::int64_t rank) { return fmt::format("host of rank {}", rank); }

// A list as TOML writes it.
struct AsSetting {
  metrics::Setting operator()(std::int64_t value) const { return value; }
  metrics::Setting operator()(double value) const { return value; }
  metrics::Setting operator()(bool value) const { return value; }
  metrics::Setting operator()(const std::string& value) const { return value; }
  template <typename T>
  metrics::Setting operator()(const std::vector<T>& value) const {
    return recipe::ToToml(recipe::FieldValue(value));
  }
};

std::vector<std::pair<std::string, metrics::Setting>> SettingsOf(const recipe::Recipe& recipe) {
  std::vector<std::pair<std::string, metrics::Setting>> settings;
  for (const recipe::Field& field : recipe::Fields()) {
    if (!recipe::Applies(field, recipe)) continue;
    settings.emplace_back(field.key, std::visit(AsSetting(), recipe::Get(field, recipe)));
  }
  return settings;
}

std::string HostTable(const std::vector<std::string>& hosts) {
  std::string table = "| rank | host |\n|---|---|\n";
  for (std::size_t rank = 0; rank < hosts.size(); ++rank)
    table += fmt::format("| {} | {} |\n", rank, hosts[rank]);
  return table;
}

std::string Fenced(const std::string& text, const char* language) {
  return fmt::format("```{}\n{}{}```\n", language, text, text.ends_with('\n') ? "" : "\n");
}

// The folder's name, "runs/x/" and "." too.
std::string NameOf(const std::string& folder) {
  std::error_code error;
  fs::path path = fs::absolute(folder, error).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.filename().string();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> HostsOf(const RunContext& run) {
  const auto world = static_cast<std::size_t>(run.plan.mesh.world());
  if (run.processes == nullptr) return std::vector<std::string>(world, HostName());
  if (!run.Leads()) {
    RETURN_IF_ERROR(run.processes->Set(HostKey(*run.device.rank), HostName()));
    return std::vector<std::string>{};
  }
  std::vector<std::string> keys;
  for (std::size_t rank = 1; rank < world; ++rank) keys.push_back(HostKey(static_cast<std::int64_t>(rank)));
  ASSIGN_OR_RETURN(std::vector<std::string> hosts, run.processes->TakeAll(keys));
  hosts.insert(hosts.begin(), HostName());
  return hosts;
}

metrics::RunDescription DescriptionOf(const RunContext& run, const Position& position,
                                      const std::vector<std::string>& hosts) {
  return {.name = NameOf(run.options.out),
          .resumed_iteration = position.iteration,
          .resumed_samples = position.consumed_samples,
          .begin_unix_seconds =
              std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(),
          .host = HostName(),
          .version = Version(),
          .plan_hash = run.plan.hash,
          .settings = SettingsOf(run.recipe),
          .texts = {{"recipe", Fenced(recipe::ToToml(run.recipe), "toml")},
                    {"plan", Fenced(plan::Summary(run.plan), "")},
                    {"hosts", HostTable(hosts)}}};
}

void AddSinks(const recipe::Logging& logging, const std::string& folder,
              const metrics::RunDescription& description, Reporter& reporter) {
  const fs::path out = folder;
  if (logging.Has("tensorboard")) {
    reporter.Add(
        std::make_unique<metrics::TensorBoard>((out / driver::kTensorBoardName).string(), description),
        logging.sink_interval);
  }
  if (logging.Has("wandb")) {
    const metrics::WandbNames names{
        .project = logging.wandb.project,
        .entity = logging.wandb.entity,
        .name = logging.wandb.name.empty() ? description.name : logging.wandb.name};
    reporter.Add(std::make_unique<metrics::Wandb>((out / driver::kWandbName).string(), names, description),
                 logging.sink_interval);
  }
  if (!logging.Has("prometheus")) return;
  const recipe::Prometheus& prometheus = logging.prometheus;
  if (prometheus.port > 0) {
    const launch::Endpoint endpoint{.host = prometheus.address, .port = static_cast<int>(prometheus.port)};
    reporter.Add(std::make_unique<metrics::PrometheusListener>(endpoint, description), 1);
  }
  if (!prometheus.textfile.empty())
    reporter.Add(std::make_unique<metrics::PrometheusTextfile>(prometheus.textfile, description), 1);
}

}  // namespace engine::train
