#include "engine/recipe/field_table.h"

#include <utility>

#include "engine/recipe/field_rows.h"

namespace engine::recipe {

std::vector<TableDoc> MakeTables() {
  return {
      {"model", "What is trained."},
      {"model.attention", "The attention of each layer."},
      {"model.attention.rope_scaling", "Llama-3 scaling of the rotary frequencies."},
      {"model.mlp", "The feed-forward block of each layer."},
      {"model.norm", "Normalisation."},
      {"model.dropout", "Dropout probabilities."},
      {"parallelism", "How the world is divided: WORLD_SIZE = DP · TP · PP · CP · EP."},
      {"data", "What it is trained on."},
      {"data.train", "The data sets of training, where splits have data sets of their own."},
      {"data.validation", "Those of validation."},
      {"data.test", "Those of the test."},
      {"data.fim", "Filling in the middle."},
      {"data.tokenizer", "How text becomes tokens."},
      {"optimizer", "How weights are updated."},
      {"schedule", "The learning rate over time."},
      {"training", "Batch and length of the training."},
      {"training.rampup",
       "Growth of the global batch from start to training.global_batch, by the samples consumed "
       "(Megatron-LM's "
       "--rampup-batch-size)."},
      {"lora", "Low-rank adapters (LoRA, Hu et al., arXiv:2106.09685)."},
      {"precision", "Number formats."},
      {"recompute", "Activations that are computed again in the backward pass."},
      {"offload", "What waits in the host's memory, to save that of the device."},
      {"checkpoint", "When checkpoints are written, and how many are kept."},
      {"evaluation", "When the validation loss is measured, and what else the model is asked then."},
      {"generate", "How the model makes text."},
      {"guard", "What is done about numbers that show that something is wrong."},
      {"logging", "Log lines, and other programs that show the run's numbers."},
      {"logging.wandb", "How Weights & Biases files the run."},
      {"logging.prometheus", "Where Prometheus finds the run's numbers."},
      {"cluster", "The machines that the recipe is for."},
      {"launch", "What engine launch asks a scheduler for; training does not depend on it."},
      {"check", "What engine check passes over."},
      {"debug", "What measurements and tests ask for, and no training."},
  };
}

std::vector<Field> MakeFields() {
  std::vector<Field> fields;
  for (Rows (*rows)() : {ModelRows, ParallelismRows, DataRows, OptimizerRows, TrainingRows, ClusterRows}) {
    for (Field& field : rows()) fields.push_back(std::move(field));
  }
  return fields;
}

}  // namespace engine::recipe
