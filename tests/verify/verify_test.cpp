#include "engine/verify/verify.h"

#include <doctest/doctest.h>

#include <sstream>
#include <string>
#include <vector>

#include "tests/plan/plans.h"

namespace engine::verify {
namespace {

std::vector<std::string> Words(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

// Keys without a section are of [parallelism].
std::vector<std::string> SettingsOf(const std::string& line) {
  std::vector<std::string> sets;
  for (const std::string& word : Words(line)) {
    sets.push_back(word.find('.') < word.find('=') ? word : "parallelism." + word);
  }
  return sets;
}

}  // namespace

TEST_CASE("verify: good plans of many layouts") {
  const char* layouts[] = {
      "",
      "dp=2",
      "dp=4 zero_stage=1",
      "tp=2",
      "tp=4",
      "tp=2 sequence_parallel=true",
      "tp=4 sequence_parallel=true",
      "cp=2",
      "cp=4",
      "cp=2 zero_stage=1",
      "pp=2",
      "pp=4",
      "pp=8",
      "pp=2 training.global_batch=1",
      "pp=4 training.global_batch=2",
      "pp=2 virtual_stages=2",
      "pp=2 virtual_stages=4",
      "pp=4 virtual_stages=2",
      "pp=4 virtual_stages=2 training.global_batch=4",
      "pp=2 schedule=zero_bubble",
      "pp=4 schedule=zero_bubble training.global_batch=2",
      "pp=8 schedule=zero_bubble recompute.granularity=full",
      "dp=2 pp=4 schedule=zero_bubble zero_stage=1 overlap=on",
      "dp=2 tp=2 pp=2 schedule=zero_bubble sequence_parallel=true recompute.granularity=cheap",
      "tp=2 cp=2 pp=2 schedule=zero_bubble",
      "pp=2 zero_stage=1 dp=2",
      "dp=2 tp=2",
      "dp=2 tp=2 pp=2",
      "dp=2 tp=2 pp=2 sequence_parallel=true zero_stage=1",
      "dp=2 cp=2 pp=2 zero_stage=1",
      "tp=2 cp=2",
      "tp=2 cp=2 sequence_parallel=true",
      "tp=2 cp=2 pp=2 dp=2 sequence_parallel=true zero_stage=1",
      "recompute.granularity=\"full\"",
      "recompute.granularity=\"selective\"",
      "recompute.granularity=\"selective\" recompute.modules=[\"attention\",\"norm\",\"activation\"]",
      "tp=2 sequence_parallel=true recompute.granularity=\"full\"",
      "tp=2 pp=2 recompute.granularity=\"selective\"",
      "cp=2 pp=2 virtual_stages=2 recompute.granularity=\"full\"",
      "dp=2 pp=2 virtual_stages=2 zero_stage=1 sequence_parallel=true tp=2",
      "pp=3 layers_per_stage=[3,3,2]",
      "pp=2 precision.compute=\"bf16\" zero_stage=1 dp=2",
      "pp=2 precision.compute=\"bf16\" precision.gradient_dtype=\"bf16\" zero_stage=1 dp=2",
      "pp=2 precision.compute=\"bf16\" precision.master_dtype=\"bf16\" optimizer.moment_dtype=\"bf16\"",
      "tp=2 dp=2 precision.compute=\"bf16\" precision.gradient_dtype=\"bf16\" "
      "precision.master_dtype=\"bf16\"",
      "tp=2 training.micro_batch=4 model.attention.heads=4 model.attention.kv_heads=2",
      "tp=2 model.tied_embeddings=false pp=2",
      "tp=2 model.tied_embeddings=true pp=2 dp=2 zero_stage=1",
      "dp=2 zero_stage=2",
      "dp=4 zero_stage=2 overlap=on",
      "dp=2 tp=2 cp=2 zero_stage=2 sequence_parallel=true overlap=on",
      "dp=2 pp=2 zero_stage=2 precision.compute=\"bf16\" precision.gradient_dtype=\"bf16\" overlap=on",
      "dp=2 zero_stage=3",
      "dp=4 zero_stage=3 overlap=on recompute.granularity=full",
      "dp=2 tp=2 cp=2 zero_stage=3 sequence_parallel=true overlap=on",
      "dp=2 pp=2 virtual_stages=2 zero_stage=3 precision.compute=\"bf16\" overlap=on",
      "dp=2 zero_stage=3 precision.compute=\"bf16\" precision.master_dtype=\"bf16\" "
      "optimizer.moment_dtype=\"bf16\"",
  };
  for (const bool llama : {false, true}) {
    for (const std::string layout : layouts) {
      CAPTURE(llama);
      CAPTURE(layout);
      const plan::Plan plan = plan::TinyPlan(llama, SettingsOf(layout));
      const absl::Status status = Verify(plan, {});
      CHECK_MESSAGE(status.ok(), Message(status));
    }
  }
}

}  // namespace engine::verify
