// How rows of the table of keys are written (internal to recipe/field_table.cpp and its field_rows_*.cpp).
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "engine/recipe/fields.h"

namespace engine::recipe {

// Sizes that no machine reaches, but whose products of two stay inside 63 bits.
inline constexpr double kMaxSize = 1 << 30;
inline constexpr double kMaxDegree = 1 << 20;
inline constexpr double kMaxCount = 1e15;
inline constexpr double kMaxLossScale = 1e30;
inline constexpr double kMaxSeed = 0xFFFFFFFF;  // of numpy's legacy generator, which orders samples

class Row {
 public:
  Row(const char* key, FieldPointer (*member)(Recipe&)) {
    field_.key = key;
    field_.member = member;
  }
  Row& Required() {
    field_.required = true;
    return *this;
  }
  // The key has a meaning only where that one has this word; of several conditions, all must hold.
  Row& OnlyWhere(const char* key, const char* word) {
    field_.only_where.push_back({key, word});
    return *this;
  }
  // The same, where that one has any value but its default.
  Row& OnlyWith(const char* key) { return OnlyWhere(key, ""); }
  Row& Bytes() {
    field_.bytes = true;
    return Unit("bytes").Between(0, kMaxCount);
  }
  Row& Pattern(const char* pattern) {
    field_.pattern = pattern;
    return *this;
  }
  Row& Unit(const char* unit) {
    field_.unit = unit;
    return *this;
  }
  Row& AtLeast(double min) {
    field_.range.min = min;
    return *this;
  }
  Row& Above(double min) {
    field_.range.min_excluded = true;
    return AtLeast(min);
  }
  Row& Between(double min, double max) {
    field_.range.max = max;
    return AtLeast(min);
  }
  Row& Below(double min, double max) {  // min <= value < max
    field_.range.max_excluded = true;
    return Between(min, max);
  }
  Row& Words(std::initializer_list<const char*> words) {
    field_.words.assign(words.begin(), words.end());
    return *this;
  }
  Row& Words(std::vector<std::string> words) {
    field_.words = std::move(words);
    return *this;
  }
  Field Doc(const char* doc) {
    field_.doc = doc;
    return std::move(field_);
  }

 private:
  Field field_;
};

// The key is the member's own path, so that the two cannot differ.
#define FIELD(path) Row(#path, [](Recipe& recipe) -> FieldPointer { return &recipe.path; })

using Rows = std::vector<Field>;

// Keys of what is trained: field_rows_models.cpp.
Rows ModelRows();
Rows ParallelismRows();
Rows DataRows();
// Keys of how and where it is trained: field_rows_runs.cpp.
Rows OptimizerRows();
Rows TrainingRows();
Rows ClusterRows();

}  // namespace engine::recipe
