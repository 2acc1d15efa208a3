// Keys of the model, its layout over ranks, and its data.
#include "engine/recipe/field_rows.h"

namespace engine::recipe {

Rows ModelRows() {
  return {
      FIELD(model.family)
          .Words({kDecoderFamily, kTextFamily})
          .Doc("Kind of model: a causal decoder, of which GPT, Llama and Mistral are settings; or one whose "
               "steps the recipe has in model.main, which need not be said."),
      FIELD(model.layers)
          .OnlyWhere(kModelFamilyKey, kDecoderFamily)
          .Required()
          .Between(1, 2000)
          .Unit("layers")
          .Doc("Number of transformer layers."),
      FIELD(model.hidden)
          .OnlyWhere(kModelFamilyKey, kDecoderFamily)
          .Required()
          .Between(1, kMaxSize)
          .Unit("features")
          .Doc("Width of the residual stream."),
      FIELD(model.vocab)
          .OnlyWhere(kModelFamilyKey, kDecoderFamily)
          .Required()
          .Between(1, kMaxSize)
          .Unit("tokens")
          .Doc("Vocabulary size of the tokenizer, unpadded."),
      FIELD(model.vocab_multiple)
          .Between(1, kMaxDegree)
          .Unit("tokens")
          .Doc("The embedding is padded to a multiple of vocab_multiple × tp."),
      FIELD(model.max_positions)
          .OnlyWhere(kModelFamilyKey, kDecoderFamily)
          .Required()
          .Between(1, kMaxSize)
          .Unit("tokens")
          .Doc("Longest sequence that the model is made for; rows of a learned position table."),
      FIELD(model.tied_embeddings)
          .OnlyWhere(kModelFamilyKey, kDecoderFamily)
          .Doc("Whether the output layer uses the token embedding's weights."),
      FIELD(model.init_std)
          .Between(0, 10)
          .Doc("Standard deviation of the initial weights; projections into the residual stream are divided "
               "by sqrt(2 × layers)."),
      FIELD(model.attention.heads)
          .OnlyWhere(kModelFamilyKey, kDecoderFamily)
          .Required()
          .Between(1, kMaxDegree)
          .Unit("heads")
          .Doc("Query heads."),
      FIELD(model.attention.kv_heads)
          .OnlyWhere(kModelFamilyKey, kDecoderFamily)
          .Between(0, kMaxDegree)
          .Unit("heads")
          .Doc("Key and value heads (grouped-query attention); 0: as many as heads."),
      FIELD(model.attention.head_dim)
          .OnlyWhere(kModelFamilyKey, kDecoderFamily)
          .Between(0, kMaxDegree)
          .Unit("features")
          .Doc("Width of one head; 0: hidden / heads."),
      FIELD(model.attention.position)
          .OnlyWhere(kModelFamilyKey, kDecoderFamily)
          .Words({"learned", "rotary", "none"})
          .Doc("Position encoding: a learned table added to the embeddings, rotation of queries and keys, or "
               "none."),
      FIELD(model.attention.rope_base)
          .OnlyWhere(kModelFamilyKey, kDecoderFamily)
          .OnlyWhere("model.attention.position", "rotary")
          .Between(1, kMaxCount)
          .Doc("Base of the rotary frequencies."),
      FIELD(model.attention.window)
          .OnlyWhere(kModelFamilyKey, kDecoderFamily)
          .Between(0, kMaxSize)
          .Unit("tokens")
          .Doc("Sliding attention window; 0: none."),
      FIELD(model.attention.bias)
          .OnlyWhere(kModelFamilyKey, kDecoderFamily)
          .Doc("Whether the attention projections have biases."),
      FIELD(model.attention.rope_scaling.factor)
          .OnlyWhere(kModelFamilyKey, kDecoderFamily)
          .Between(1, kMaxDegree)
          .Doc("Llama-3 frequency scaling: low frequencies are divided by this; 1: no scaling."),
      FIELD(model.attention.rope_scaling.low_frequency_factor)
          .OnlyWhere(kModelFamilyKey, kDecoderFamily)
          .OnlyWith("model.attention.rope_scaling.factor")
          .Above(0)
          .Doc("Wavelengths over original_max_positions / this are scaled in full."),
      FIELD(model.attention.rope_scaling.high_frequency_factor)
          .OnlyWhere(kModelFamilyKey, kDecoderFamily)
          .OnlyWith("model.attention.rope_scaling.factor")
          .Above(0)
          .Doc("Wavelengths under original_max_positions / this are not scaled."),
      FIELD(model.attention.rope_scaling.original_max_positions)
          .OnlyWhere(kModelFamilyKey, kDecoderFamily)
          .OnlyWith("model.attention.rope_scaling.factor")
          .Between(1, kMaxSize)
          .Unit("tokens")
          .Doc("Context length of the model before scaling."),
      FIELD(model.mlp.hidden)
          .OnlyWhere(kModelFamilyKey, kDecoderFamily)
          .Between(0, kMaxSize)
          .Unit("features")
          .Doc("Width of the feed-forward layer; 0: 4 × hidden, or floor(8 × hidden / 3 / 64) × 64 for "
               "swiglu."),
      FIELD(model.mlp.activation)
          .OnlyWhere(kModelFamilyKey, kDecoderFamily)
          .Words({"gelu_tanh", "gelu_erf", "squared_relu", "swiglu"})
          .Doc("Activation: GELU in its tanh approximation, exact GELU, max(x, 0)², or SwiGLU (gated)."),
      FIELD(model.mlp.bias)
          .OnlyWhere(kModelFamilyKey, kDecoderFamily)
          .Doc("Whether the feed-forward projections have biases."),
      FIELD(model.norm.kind)
          .OnlyWhere(kModelFamilyKey, kDecoderFamily)
          .Words({"layernorm", "rmsnorm"})
          .Doc("Normalisation before each block and before the output layer."),
      FIELD(model.norm.epsilon)
          .OnlyWhere(kModelFamilyKey, kDecoderFamily)
          .Above(0)
          .Doc("Added to the variance (layernorm) or the mean square (rmsnorm)."),
      FIELD(model.dropout.embedding)
          .OnlyWhere(kModelFamilyKey, kDecoderFamily)
          .Below(0, 1)
          .Unit("probability")
          .Doc("Dropout after the sum of token and position embeddings."),
      FIELD(model.dropout.hidden)
          .OnlyWhere(kModelFamilyKey, kDecoderFamily)
          .Below(0, 1)
          .Unit("probability")
          .Doc("Dropout on each residual branch."),
      FIELD(model.dropout.attention)
          .OnlyWhere(kModelFamilyKey, kDecoderFamily)
          .Below(0, 1)
          .Unit("probability")
          .Doc("Dropout on the attention probabilities."),
  };
}

Rows ParallelismRows() {
  return {
      FIELD(parallelism.dp)
          .Between(1, kMaxDegree)
          .Unit("ranks")
          .Doc("Data parallelism: copies of the model that share the batch."),
      FIELD(parallelism.tp)
          .Between(1, kMaxDegree)
          .Unit("ranks")
          .Doc("Tensor parallelism: ranks that share each weight."),
      FIELD(parallelism.pp)
          .Between(1, kMaxDegree)
          .Unit("ranks")
          .Doc("Pipeline parallelism: ranks that share the layers."),
      FIELD(parallelism.cp)
          .Between(1, kMaxDegree)
          .Unit("ranks")
          .Doc("Context parallelism: ranks that share each sequence."),
      FIELD(parallelism.ep)
          .Between(1, kMaxDegree)
          .Unit("ranks")
          .Doc("Expert parallelism. A factor of the world size here (WORLD_SIZE = DP · TP · PP · CP · EP), "
               "unlike in Megatron and torchtitan: it splits the experts, and samples as dp does. Must be 1 "
               "for a model "
               "without experts, and divide their number."),
      FIELD(parallelism.sequence_parallel)
          .Doc("Whether the residual stream's sequence is split over tp between the blocks; needs tp > 1."),
      FIELD(parallelism.virtual_stages)
          .Between(1, 1e6)
          .Unit("chunks")
          .Doc("Model chunks of each pipeline rank; more than 1 needs the interleaved schedule."),
      FIELD(parallelism.schedule)
          .Words({"auto", "1f1b", "interleaved", "zero_bubble"})
          .Doc(
              "Pipeline schedule; auto: interleaved if virtual_stages > 1, else 1f1b. zero_bubble: 1f1b with "
              "gradients of weights put off into the bubble (ZB-H1); each stage then holds pp microbatches."),
      FIELD(parallelism.layers_per_stage)
          .Between(0, 1e6)
          .Unit("layers")
          .Doc("Layers of each chunk in pipeline order (pp × virtual_stages entries); empty: balanced by the "
               "planner."),
      FIELD(parallelism.zero_stage)
          .Between(0, 3)
          .Doc("ZeRO: 0 nothing, 1 optimizer state is sharded over dp, 2 gradients of the blocks' "
               "matrices too, 3 these matrices too."),
      FIELD(parallelism.overlap)
          .Words({"auto", "on", "off"})
          .Doc("Exchange behind computation: over tp and cp by halves of each microbatch that run in turns "
               "(an even micro_batch), gradients as soon as a layer's are whole. auto: on GPUs."),
      FIELD(parallelism.exchange)
          .Words({"auto", "nccl", "push"})
          .Doc("How GPUs exchange activations: nccl: NCCL; push: copy engines write into each other's "
               "memory, on one host; auto: push where it is possible, but a sum of two ranks that nothing "
               "is computed behind is read by the norm that follows, from the other's memory."),
      FIELD(parallelism.expert_tp)
          .Between(0, kMaxDegree)
          .Unit("ranks")
          .Doc(
              "Ranks of tp that share an expert's matrices: tp, or 1, so that each has whole experts and, by "
              "sequence_parallel, tokens of its own; 0: tp. Must be 0 for a model without experts."),
      FIELD(parallelism.expert_rows)
          .Between(0, 1e6)
          .Unit("× even load")
          .Doc("How many rows of experts a rank's buffers hold, as a multiple of what it gets where all "
               "experts are "
               "chosen alike (1.25); rows beyond cost further passes, and no tokens or memory. 0: those of "
               "the worst "
               "load. Must be 0 for a model without experts."),
  };
}

Rows DataRows() {
  return {
      FIELD(data.source)
          .Words({"files", kRandomSource})
          .Doc("Where samples come from: indexed data sets (paths), or tokens drawn uniformly from the "
               "vocabulary, a pure function of seed and sample, which needs no files; the loss of a model "
               "that is trained on these stays at ln vocab."),
      FIELD(data.paths)
          .Doc(
              "Prefixes of indexed data sets (PREFIX.bin and PREFIX.idx), relative to the working directory, "
              "or as s3://BUCKET/PREFIX or http(s)://HOST/PREFIX, which split divides among training, "
              "validation and test. Not needed with data.source = "
              "\"random\", nor where [data.train] and its like name data sets of their own."),
      FIELD(data.weights)
          .Above(0)
          .Doc("Share of each path in the samples, in any unit; empty: by size, or by epochs."),
      FIELD(data.epochs)
          .Between(1, kMaxSize)
          .Unit("epochs")
          .Doc("How often training goes through each path, one number a path or one for all, instead of "
               "weights; empty: with one path or weights as often as the run needs, else once."),
      FIELD(data.split)
          .Pattern(
              R"(^[ \t]*([0-9]+\.?[0-9]*|\.[0-9]+)[ \t]*(,[ \t]*([0-9]+\.?[0-9]*|\.[0-9]+)[ \t]*){0,2}$)")
          .Doc("Shares of training, validation and test, as Megatron writes them: numbers separated by "
               "commas."),
      FIELD(data.sequence_length).Required().Between(1, kMaxSize).Unit("tokens").Doc("Tokens of one sample."),
      FIELD(data.documents)
          .Words({"across", "masked"})
          .Doc("across: attention sees all documents of a sample. masked: it sees its own alone, and "
               "positions "
               "begin again with each (docs/documents.md)."),
      FIELD(data.mask_end_of_document_loss)
          .Doc("Whether what is predicted behind an end-of-document token, the next document's beginning, "
               "does "
               "not count in the loss (Megatron-LM's --eod-mask-loss)."),
      FIELD(data.packing)
          .Words({"none", "best_fit"})
          .Doc(
              "How samples are made of documents. none: all tokens one behind the other are cut into "
              "samples. best_fit: whole documents are put together so that they fill samples, and what stays "
              "empty does not count in the loss; needs documents = \"masked\" (docs/documents.md)."),
      FIELD(data.long_documents)
          .Words({"cut", "drop"})
          .OnlyWhere("data.packing", "best_fit")
          .Doc("What becomes of documents that are longer than a sample. cut: they are cut into pieces that "
               "fill a sample, and a rest. drop: they are left out."),
      FIELD(data.index_cache)
          .Doc(
              "Folder in which the order of samples is kept, for the other processes of a host and for later "
              "runs; empty: the folder indices of the run."),
      FIELD(data.train.paths).Doc("Prefixes of the data sets of training, which are used whole."),
      FIELD(data.train.weights).Above(0).Doc("As data.weights, of these."),
      FIELD(data.train.epochs).Between(1, kMaxSize).Unit("epochs").Doc("As data.epochs, of these."),
      FIELD(data.validation.paths).Doc("Prefixes of the data sets of validation, which are used whole."),
      FIELD(data.validation.weights).Above(0).Doc("As data.weights, of these."),
      FIELD(data.validation.epochs).Between(1, kMaxSize).Unit("epochs").Doc("As data.epochs, of these."),
      FIELD(data.test.paths).Doc("Prefixes of the data sets of the test, which are used whole."),
      FIELD(data.test.weights).Above(0).Doc("As data.weights, of these."),
      FIELD(data.test.epochs).Between(1, kMaxSize).Unit("epochs").Doc("As data.epochs, of these."),
      FIELD(data.fim.rate)
          .Between(0, 1)
          .Doc("Share of documents that are rearranged to be filled in in the middle (Bavarian et al., "
               "arXiv:2207.14255); 0: none."),
      FIELD(data.fim.spm_rate)
          .OnlyWith("data.fim.rate")
          .Between(0, 1)
          .Doc("Share of these in which the suffix stands before the prefix (SPM); of the others the prefix "
               "comes first (PSM)."),
      FIELD(data.fim.prefix_token)
          .OnlyWith("data.fim.rate")
          .Doc("The token before the prefix, as the tokenizer's files write it."),
      FIELD(data.fim.middle_token).OnlyWith("data.fim.rate").Doc("The token before the middle."),
      FIELD(data.fim.suffix_token).OnlyWith("data.fim.rate").Doc("The token before the suffix."),
      FIELD(data.fim.split_token)
          .OnlyWith("data.fim.rate")
          .Doc("A token between the parts of a document, as between the files of a repository: they are "
               "rearranged each by itself, and the token stays (Megatron-LM's --fim-split-sample); empty: "
               "documents are rearranged whole."),
      FIELD(data.fim.fragment_rate)
          .OnlyWith("data.fim.rate")
          .Between(0, 1)
          .Doc("Share of the parts that split_token makes which are rearranged, in the documents that rate "
               "chooses (Megatron-LM's --fim-fragment-rate)."),
      FIELD(data.fim.no_prefix)
          .OnlyWith("data.fim.rate")
          .Doc("A document or part of one whose text begins with this stays as it is (Megatron-LM's "
               "--fim-no-prefix); empty: none does."),
      FIELD(data.tokenizer.kind)
          .Words({"byte", "gpt2", "file", "none"})
          .Doc("Tokenizer: bytes with one end-of-document token (257 ids), GPT-2's byte-level BPE, the one "
               "of a "
               "file or folder (path), or none: the files of data.paths hold the ids of another program's."),
      FIELD(data.tokenizer.vocab_file).Doc("Path of vocab.json (gpt2)."),
      FIELD(data.tokenizer.merges_file).Doc("Path of merges.txt (gpt2)."),
      FIELD(data.tokenizer.path)
          .Doc("A tokenizer.json, SentencePiece model, file of tiktoken's ranks, or a Hugging Face folder "
               "with one "
               "(file)."),
      FIELD(data.tokenizer.beginning_of_document)
          .Doc(
              "The token that begins a document (file), as the file writes it; empty: the one that its files "
              "tell, if they do. Data sets begin their documents with it where `engine data build "
              "--prepend-bos` made them."),
      FIELD(data.tokenizer.end_of_document)
          .Doc("The token that ends a document (file), as the file writes it; empty: the one that its files "
               "tell."),
  };
}

}  // namespace engine::recipe
