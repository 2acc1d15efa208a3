// The engine with an oracle's weights, tokens and labels, and what it gives, next to what the oracle says.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/train/oracle_file.h"
#include "tests/train/testing.h"

namespace engine::train::testing {

// The model that texts/NAME.toml tells, as tests/oracles/torch_texts.py has it. A failure ends the test.
recipe::Recipe TextOf(const std::string& name);

// Gives a rank that holds whole parameters those of the oracle.
void UploadParameters(const plan::Plan& plan, const OracleGroup& group, executor::RankExecutor& rank);

// One rank on the CPU, in float32. A failure ends the test.
class OracleEngine {
 public:
  OracleEngine(const recipe::Recipe& recipe, const OracleGroup& group);

  executor::RankExecutor& rank() { return *ranks_->executors()[0]; }
  std::int32_t parameters() const { return static_cast<std::int32_t>(plan_.parameters.size()); }
  const std::string& Name(std::int32_t p) const { return Parameter(p).name; }
  double tokens() const { return static_cast<double>(plan_.global_batch * plan_.sequence); }

  double Evaluate() { return Metric("loss"); }  // the mean loss
  double Metric(const std::string& name);       // of an evaluation: a loss of the model by its name
  // Of a result: a loss of the model by its name.
  double MetricOf(const executor::IterationResult& result, const std::string& name) const;
  executor::IterationResult Train(int iteration);
  std::vector<float> Logits();  // [batch, sequence, vocab], the padded classes cut off
  std::vector<float> Gradient(std::int32_t parameter);
  std::vector<float> Weight(std::int32_t parameter);

 private:
  const plan::PlanParameter& Parameter(std::int32_t p) const {
    return plan_.parameters[static_cast<size_t>(p)];
  }

  double learning_rate_;
  state::Device device_;
  plan::Plan plan_;
  std::unique_ptr<state::Ranks> ranks_;
  executor::FeedFunction feed_;
};

// A float32 evaluation is off from the true value by its roundings. PyTorch's own float32 run shows their
// size for each result (float32_max_error: the largest of a tensor); the engine sums in other orders, so it
// draws other roundings from the same distribution. The largest of two such draws differ by a small factor, 4
// here. A tensor of few elements may have been lucky, so a floor is added: one product of length n is off by
// about √n·ε of the terms' size, and so many products lie between a parameter and the loss, forward (as many again
// backward are already in the gradient's own distribution): √(n·products)·ε of the tensor's size, `scale`.
struct OracleBound {
  double longest_product;  // n
  double products;

  double Of(double float32_max_error, double scale) const;
};

double LargestOf(const std::vector<float>& values);
// The float32_max_error of a result.
double ErrorOf(const OracleGroup& group, const std::string& name);
void CheckClose(const std::vector<float>& expected, const std::vector<float>& actual, double bound);
// The loss, the logits and the gradient of each parameter, after one evaluation and one iteration.
void CheckForwardAndBackward(const OracleGroup& group, const OracleBound& bound, OracleEngine* engine);

}  // namespace engine::train::testing
