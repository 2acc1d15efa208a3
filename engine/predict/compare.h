// What a plan comes to in numbers, and which of them differ between two plans.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "engine/base/status.h"
#include "engine/predict/predict.h"

namespace engine::predict {

enum class Section : std::uint8_t { kWork, kMemory, kCommunication, kSchedule, kPrediction };
enum class Unit : std::uint8_t { kCount, kBytes, kFlops, kSeconds, kShare, kWord };
const char* Name(Section section);  // "memory"

// What is compared with what.
struct FactKey {
  Section section = Section::kWork;
  std::int64_t stage = -1;  // of a pipeline; −1: of the whole
  std::int64_t order = 0;   // within the section
  std::string name;
  bool operator==(const FactKey&) const = default;
  bool operator<(const FactKey& other) const {
    return std::tie(section, stage, order, name) <
           std::tie(other.section, other.stage, other.order, other.name);
  }
};

struct Fact {
  FactKey key;
  Unit unit = Unit::kCount;
  nlohmann::json value;  // a number; of kWord a string
};

// Of a plan as ToJson writes it (plan/json.h), with what PredictionToJson gives as "prediction" where there
// is one. Bytes are of one rank. Error: the text is no such plan.
absl::StatusOr<std::vector<Fact>> FactsOf(const nlohmann::json& plan);

// Times and shares are null, and stages empty, where the cluster's rates are not known or the program does
// not end; mfu is null without the device's peak, too.
nlohmann::ordered_json PredictionToJson(const Prediction& prediction);

struct Effect {
  FactKey key;
  Unit unit = Unit::kCount;
  nlohmann::json before, after;  // null: that plan has no such number
};

// The facts that differ, in order of their keys, whichever plan comes first.
std::vector<Effect> Compare(const std::vector<Fact>& before, const std::vector<Fact>& after);

}  // namespace engine::predict
