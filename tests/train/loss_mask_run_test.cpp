// Runs whose labels do not all count.
#include "tests/train/documents.h"
#include "tests/train/run_testing.h"

namespace engine::train::testing {

// A run with all of it, killed and resumed: its metrics are those of one that was not.
TEST_CASE("loss masks: a run with packing and masks evaluates, and goes on exactly") {
  const TempDir folder;
  WriteDocuments(folder / "text", true);
  const std::vector<std::string> sets = {"data.documents=masked",    "data.packing=best_fit",
                                         "data.tokenizer.kind=byte", "data.mask_end_of_document_loss=true",
                                         "evaluation.interval=2",    "checkpoint.interval=2",
                                         "parallelism.dp=2",         "training.micro_batch=2"};
  MustRun(RunRecipe(folder, sets), folder / "whole");
  MustRun(RunRecipe(folder, sets), folder / "parts");
  for (const std::int64_t iteration : {4, 5})
    std::filesystem::remove_all(checkpoint::IterationPath(CheckpointRoot(folder / "parts"), iteration));
  CHECK(Contains(MustRun(RunRecipe(folder, sets), folder / "parts"), "after iteration 2"));
  CHECK(TimelessMetrics(folder / "whole") == TimelessMetrics(folder / "parts"));
  CHECK(Contains(TimelessMetrics(folder / "whole"), "validation_loss"));
  // Other options are told.
  std::vector<std::string> other = sets;
  other.insert(other.end(), {"data.long_documents=drop", "data.mask_end_of_document_loss=false",
                             "training.iterations=6", "checkpoint.interval=6"});
  const RunResult told = MustRunAndNote(RunRecipe(folder, other), folder / "parts");
  CHECK(Contains(told.notes + told.output, "data.long_documents: \"cut\" → \"drop\""));
  CHECK(Contains(told.notes + told.output, "data.mask_end_of_document_loss: true → false"));
  for (const nlohmann::json& line : LossMetrics(folder / "whole")) {
    if (line.contains("loss")) CHECK(line.at("data_wait_ms").get<double>() >= 0);
  }
}

}  // namespace engine::train::testing
