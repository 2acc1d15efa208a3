#include "engine/view/status_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/view/words.h"

namespace engine::view {
namespace {

using State = RunView::State;

Style StyleOf(State state) {
  switch (state) {
    case State::kRunning:
    case State::kFinished:
      return Style::kGood;
    case State::kFailed:
      return Style::kBad;
    case State::kSilent:
    case State::kStopped:
      return Style::kWarning;
    default:
      return Style::kPlain;
  }
}

Line Warning(const std::string& text, Style style = Style::kWarning) { return {{Printable(text), style}}; }

// How many bytes at the beginning of all these paths are the same folders.
std::size_t CommonFolders(const std::vector<std::string>& paths) {
  std::size_t same = paths[0].size();
  for (const std::string& path : paths) {
    const auto unlike = std::mismatch(path.begin(), path.end(), paths[0].begin(), paths[0].end());
    same = std::min(same, static_cast<std::size_t>(unlike.first - path.begin()));
  }
  const std::size_t slash = paths[0].substr(0, same).rfind('/');
  return slash == std::string::npos ? 0 : slash + 1;
}

}  // namespace

Span StateSpan(const RunView& view, double now_unix_s) {
  const State state = view.StateAt(now_unix_s);
  if (state != State::kSilent) return {Name(state), StyleOf(state)};
  return {fmt::format("silent for {}", Duration(now_unix_s - view.last_sign_unix_s)), StyleOf(state)};
}

std::vector<Line> Warnings(const RunView& view) {
  std::vector<Line> warnings;
  if (view.outcome && view.outcome->outcome == "failed") {
    const char* again = view.outcome->retryable ? " (another try may go well)" : "";
    warnings.push_back(Warning(fmt::format("failed: {}{}", view.outcome->reason, again), Style::kBad));
  }
  if (view.nan_iteration > 0) {
    warnings.push_back(Warning(
        fmt::format("iteration {}: loss or gradient norm is not finite", view.nan_iteration), Style::kBad));
  }
  for (const std::string& note : view.notes) warnings.push_back(Warning(note));
  return warnings;
}

std::vector<std::string> NamesOf(const std::vector<const RunView*>& views) {
  std::vector<std::string> names;
  for (const RunView* view : views) {
    std::vector<std::string> alike;
    for (const RunView* other : views) {
      if (other->name == view->name) alike.push_back(other->folder);
    }
    names.push_back(Printable(alike.size() > 1 ? view->folder.substr(CommonFolders(alike)) : view->name));
  }
  return names;
}

std::optional<CheckpointView> NewestCheckpoint(const RunView& view) {
  std::optional<CheckpointView> newest;
  if (!view.checkpoint_records.empty()) newest = view.checkpoint_records.back();
  if (!view.kept_checkpoints.empty() && (!newest || view.kept_checkpoints.back() > newest->iteration))
    newest = CheckpointView{.iteration = view.kept_checkpoints.back()};
  return newest;
}

}  // namespace engine::view
