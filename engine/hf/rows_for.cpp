// Which of the forms that a family's files come in a folder has.
#include <algorithm>
#include <cctype>

#include "engine/hf/family.h"

namespace engine::hf {
namespace {

// Whether a name is that of a row, of any layer and expert.
bool IsNamed(std::string_view name, std::string_view row) {
  while (!row.empty()) {
    if (row.starts_with("{l}") || row.starts_with("{e}")) {
      const auto* const end = std::find_if(
          name.begin(), name.end(), [](char c) { return std::isdigit(static_cast<unsigned char>(c)) == 0; });
      if (end == name.begin()) return false;
      name.remove_prefix(static_cast<std::size_t>(end - name.begin()));
      row.remove_prefix(3);
      continue;
    }
    if (name.empty() || name[0] != row[0]) return false;
    name.remove_prefix(1);
    row.remove_prefix(1);
  }
  return name.empty();
}

bool IsThere(const WeightRow& row, const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return IsNamed(name, row.theirs[0]); });
}

}  // namespace

std::vector<WeightRow> RowsFor(const ImportedModel& model, const std::vector<std::string>& names) {
  std::vector<WeightRow> rows = model.rows;
  for (WeightRow& row : rows) {
    if (row.theirs.empty() || IsThere(row, names)) continue;
    const auto other =
        std::find_if(model.other_rows.begin(), model.other_rows.end(), [&](const WeightRow& candidate) {
          return candidate.ours == row.ours && !candidate.theirs.empty() && IsThere(candidate, names);
        });
    if (other != model.other_rows.end()) row = *other;
  }
  return rows;
}

}  // namespace engine::hf
