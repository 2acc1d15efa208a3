// What experts make of a plan: rows, the memory and the exchange that they take, and the time of an iteration where some
// experts are chosen more than others.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/predict/predict.h"
#include "engine/recipe/recipe.h"

namespace engine::predict {

// Of one stage; bytes and rows are those of a rank.
struct StageExperts {
  std::int64_t layers = 0;       // that have experts
  std::int64_t saved_bytes = 0;  // of rows that wait for the backward pass, of all microbatches in flight
  std::int64_t other_bytes = 0;  // of rows that a pass has at once beside those
  // What a rank sends over ep in a layer, forward and backward, for a microbatch.
  std::int64_t exchange_bytes = 0;
};

// The experts of a plan. Numbers are those of its layer with most rows.
struct ExpertUse {
  std::int64_t experts = 0;  // of a layer; 0: the plan has none
  std::int64_t here = 0;     // of them on a rank
  std::int64_t top_k = 0;
  std::int64_t ranks = 1;  // that share experts (ep)
  // Rows of a microbatch, or of half of one that is cut in two: where all experts are chosen alike, and that there is room for.
  double mean_rows = 0;
  std::int64_t row_bound = 0;
  std::vector<StageExperts> stages;

  // Rows for one expert, the mean.
  double rows_of_expert() const { return here > 0 ? mean_rows / static_cast<double>(here) : 0; }
};

ExpertUse ExpertsOf(const plan::Plan& plan);

// As `engine plan --json` has them under "experts".
nlohmann::ordered_json ExpertsToJson(const ExpertUse& use);

// Expert e is chosen in proportion to 1 / (e + 1)^kZipf, which is how the loads of untrained routers look.
inline constexpr double kZipf = 0.7;

// How many times the mean the rows of the fullest rank are, at loads of this exponent, where each token chooses `top_k`
// different ones of the experts and consecutive experts are on one rank. 1 where every rank has all experts.
double FullestRank(const ExpertUse& use, double exponent);
// The same where all tokens choose experts of one rank.
double FullestRankAtWorst(const ExpertUse& use);

// Seconds of an iteration where the fullest rank has so many times the mean rows, and all wait for it; 0: the program does not
// come to its end. Exchange does not depend on loads.
double PredictAtLoad(const plan::Plan& plan, const recipe::Cluster& cluster, double times_mean_rows);

// For people, as `engine plan` prints it; empty without experts.
std::string ExpertsText(const plan::Plan& plan, const recipe::Cluster& cluster, const Prediction& prediction);

}  // namespace engine::predict
