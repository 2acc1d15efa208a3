// Keys of the optimizer, of training and all that goes with a run, and of the cluster.
#include "engine/recipe/codes.h"
#include "engine/recipe/field_rows.h"

namespace engine::recipe {

Rows OptimizerRows() {
  return {
      FIELD(optimizer.kind)
          .Words({"adamw", "sgd"})
          .Doc("Optimizer: Adam with decoupled weight decay, or stochastic gradient descent with momentum. "
               "Biases and one-dimensional parameters are not decayed."),
      FIELD(optimizer.learning_rate).Required().Between(0, 1e6).Doc("Highest learning rate of the schedule."),
      FIELD(optimizer.beta1)
          .Below(0, 1)
          .OnlyWhere("optimizer.kind", "adamw")
          .Doc("Decay rate of the first moment."),
      FIELD(optimizer.beta2)
          .Below(0, 1)
          .OnlyWhere("optimizer.kind", "adamw")
          .Doc("Decay rate of the second moment."),
      FIELD(optimizer.epsilon)
          .Above(0)
          .OnlyWhere("optimizer.kind", "adamw")
          .Doc("Added to the root of the second moment."),
      FIELD(optimizer.momentum)
          .Below(0, 1)
          .OnlyWhere("optimizer.kind", "sgd")
          .Doc("Share of the last step's direction that the next one keeps; 0: none."),
      FIELD(optimizer.weight_decay)
          .Between(0, 1e6)
          .Doc("Weight decay, multiplied by the learning rate: adamw takes that share of a weight off it, "
               "sgd adds it to the gradient, so that it goes through the momentum."),
      FIELD(optimizer.clip_grad_norm)
          .Between(0, 1e15)
          .Doc("Largest global norm of the gradient; 0: no clipping."),
      FIELD(optimizer.moment_dtype)
          .Words({"fp32", "bf16"})
          .Doc("Format in which the optimizer's moments (of sgd: the momentum) are kept; bf16 is rounded "
               "stochastically and halves their memory."),
      FIELD(schedule.kind)
          .Words({"constant", "linear", "cosine", "inverse_sqrt", "wsd"})
          .Doc("Shape of the learning rate after the warm-up."),
      FIELD(schedule.min_learning_rate).Between(0, 1e6).Doc("Learning rate at the end of the decay."),
      FIELD(schedule.warmup_init).Between(0, 1e6).Doc("Learning rate at step 0, if there is a warm-up."),
      FIELD(schedule.warmup_iterations)
          .Between(0, kMaxCount)
          .Unit("iterations")
          .Doc("Length of the linear warm-up; at most one of the three warmup_* lengths is set."),
      FIELD(schedule.warmup_samples)
          .Between(0, kMaxCount)
          .Unit("samples")
          .Doc("Length of the warm-up in samples."),
      FIELD(schedule.warmup_fraction)
          .Below(0, 1)
          .Doc("Length of the warm-up as a fraction of the decay length."),
      FIELD(schedule.decay_iterations)
          .Between(0, kMaxCount)
          .Unit("iterations")
          .Doc("End of the decay, counted from step 0; 0: the length of the training; at most one of the two "
               "decay_* lengths is set."),
      FIELD(schedule.decay_samples).Between(0, kMaxCount).Unit("samples").Doc("End of the decay in samples."),
      FIELD(schedule.wsd_decay_iterations)
          .Between(0, kMaxCount)
          .Unit("iterations")
          .Doc("Length of wsd's last phase; wsd needs one of the two."),
      FIELD(schedule.wsd_decay_samples)
          .Between(0, kMaxCount)
          .Unit("samples")
          .Doc("Length of wsd's last phase in samples."),
      FIELD(schedule.wsd_decay_kind)
          .Words({"linear", "cosine", "exponential", "minus_sqrt"})
          .Doc("Shape of wsd's last phase."),
  };
}

Rows TrainingRows() {
  return {
      FIELD(training.global_batch)
          .Required()
          .Between(1, kMaxSize)
          .Unit("samples")
          .Doc("Samples of one iteration: micro_batch × microbatches × dp × ep. With [training.rampup]: of "
               "the "
               "iterations behind the ramp."),
      FIELD(training.micro_batch)
          .Required()
          .Between(1, kMaxSize)
          .Unit("samples")
          .Doc("Samples of one microbatch on one data-parallel rank."),
      FIELD(training.pad_batch)
          .Doc("Where micro_batch × dp × ep does not divide the global batch, its last microbatches have "
               "samples that are "
               "empty: none of their tokens counts, so that the batch, its data and its loss are those of "
               "any other layout. "
               "Of models without experts."),
      FIELD(training.iterations)
          .Between(0, kMaxCount)
          .Unit("iterations")
          .Doc("Length of the training; this or samples, not both."),
      FIELD(training.samples)
          .Between(0, kMaxCount)
          .Unit("samples")
          .Doc("Length of the training in samples, a multiple of global_batch; with [training.rampup], the "
               "end of an "
               "iteration."),
      FIELD(training.rampup.start)
          .Between(0, kMaxSize)
          .Unit("samples")
          .Doc("Samples of the first iteration; 0: the global batch does not grow."),
      FIELD(training.rampup.increment)
          .Between(0, kMaxSize)
          .Unit("samples")
          .Doc("Samples that each step adds; global_batch − start is a multiple of it. Start and increment "
               "are multiples "
               "of micro_batch × dp × ep, as global_batch is."),
      FIELD(training.rampup.samples)
          .Between(0, kMaxCount)
          .Unit("samples")
          .Doc("Consumed samples over which the steps are spread evenly; from there on iterations have "
               "global_batch "
               "samples."),
      FIELD(training.logits_bytes)
          .Bytes()
          .AtLeast(1)
          .Doc("Budget of the logits where the device runs head and loss over chunks of tokens: smaller "
               "chunks take "
               "less memory and a little more time."),
      FIELD(training.seed).Between(0, kMaxSeed).Doc("Seed of weights, dropout and sample order."),
      FIELD(training.weights_from)
          .Doc("Folder that a new run takes its first weights from, relative to the working directory: that "
               "of a run, of which the newest whole checkpoint counts, of one checkpoint, or of a Hugging "
               "Face model. It begins at iteration 0 and with a new optimizer; a run that is resumed goes on "
               "from its own checkpoint. Empty: weights are drawn."),
      FIELD(training.weights_match)
          .Words({"all", "some"})
          .Doc("Whether model and weights_from must have the same tensors, or some may be missing on either "
               "side: those of the model are drawn as in any new run, and rows of a larger vocabulary are "
               "the mean of the others. The log lists them."),
      FIELD(training.upcycle)
          .Doc("Whether experts begin as copies of the dense feed-forward part that weights_from has in "
               "their place; routers are drawn."),
      FIELD(lora.rank)
          .Between(0, 1 << 16)
          .Unit("features")
          .Doc("Width of low-rank adapters beside linear steps; 0: there are none. All other parameters are "
               "frozen then, but those to which an [[optimizer.group]] gives frozen = false."),
      FIELD(lora.alpha).Above(0).Doc("What an adapter adds is multiplied by alpha / rank."),
      FIELD(lora.targets)
          .Doc("Patterns of names of linear steps that have an adapter (\"*.qkv\"; * stands for any "
               "characters, ? for one), among those of stacks."),
      FIELD(precision.compute)
          .Words({"fp32", "bf16", "fp16", "fp8"})
          .Doc("Number format of products and activations."),
      FIELD(precision.gradient_dtype)
          .Words({"fp32", "bf16"})
          .Doc("Format in which gradients of matrices are summed over microbatches and ranks; bf16 goes with "
               "compute bf16 or fp8. Gradients of biases and norms are fp32."),
      FIELD(precision.master_dtype)
          .Words({"fp32", "bf16"})
          .Doc("Format of the copies of 16-bit matrices that the optimizer moves. bf16: no copies, the "
               "matrices "
               "themselves are moved and rounded stochastically; goes with compute bf16. Biases and norms "
               "keep "
               "fp32."),
      FIELD(precision.fp8_gradients)
          .OnlyWhere("precision.compute", "fp8")
          .Words({"e4m3", "e5m2"})
          .Doc("Format of the gradients that fp8 products take: e5m2 (range) or e4m3 (precision); "
               "activations and "
               "weights are e4m3."),
      FIELD(precision.fp8_scaling)
          .OnlyWhere("precision.compute", "fp8")
          .Words({"delayed", "current"})
          .Doc(
              "What scales a tensor to fp8: its largest absolute value in the iteration before (delayed), or "
              "its own (current), which costs a pass over each tensor more."),
      FIELD(precision.fp8_head)
          .Doc("Whether the products of the head take fp8 operands too, where compute is fp8. Needs tp 1; "
               "hidden size, vocabulary rows and a rank's tokens of a microbatch must be multiples of 16."),
      FIELD(precision.loss_scale)
          .Between(0, kMaxLossScale)
          .Doc(
              "Factor of the loss in the backward pass where compute is fp16, the same for the whole run; 0: "
              "it moves, as the four keys that follow say."),
      FIELD(precision.initial_loss_scale)
          .Between(1, kMaxLossScale)
          .Doc("Loss scale of fp16 at the start of a run."),
      FIELD(precision.min_loss_scale).Between(1, kMaxLossScale).Doc("Smallest loss scale of fp16."),
      FIELD(precision.loss_scale_window)
          .Between(1, kMaxCount)
          .Unit("iterations")
          .Doc("Iterations in a row without an overflow after which the loss scale of fp16 is doubled."),
      FIELD(precision.loss_scale_hysteresis)
          .Between(1, kMaxCount)
          .Unit("overflows")
          .Doc("Overflows at which the loss scale of fp16 is halved, counted since it was last doubled; each "
               "overflow after that halves it again."),
      FIELD(precision.deterministic)
          .Doc("Whether only kernels are used that give the same bits in each run; those of the CPU always "
               "do."),
      FIELD(precision.attention)
          .Words({"fast", "reference"})
          .Doc("Kernels of attention in 16 bits on GPUs: fast ones, without which a recipe is refused, or "
               "the reference "
               "ones, which take everything and make an iteration up to tens of times as long."),
      FIELD(recompute.granularity)
          .Words({"none", "cheap", "selective", "full"})
          .Doc(
              "What the backward pass computes again instead of keeping: nothing, norms and activations, the "
              "listed modules, or whole layers."),
      FIELD(recompute.modules)
          .Words({"attention", "norm", "activation"})
          .Doc("Modules that selective recomputes."),
      FIELD(offload.activation_layers)
          .Between(0, 1e6)
          .Unit("layers")
          .Doc("Layers, the first ones of each chunk of a pipeline, whose saved activations wait in the "
               "host's memory "
               "between the forward and the backward pass of a microbatch, copied there and back behind "
               "computation."),
      FIELD(checkpoint.interval)
          .Between(0, kMaxCount)
          .Unit("iterations")
          .Doc("Iterations between checkpoints; 0: only at the end."),
      FIELD(checkpoint.keep)
          .Between(0, 1e6)
          .Unit("checkpoints")
          .Doc("Newest checkpoints that are kept; 0: all."),
      FIELD(checkpoint.upload)
          .Doc("Where checkpoints are kept, as s3://BUCKET/KEY, instead of the run's folder, which then has "
               "the newest "
               "alone; a run that finds none in its folder goes on from there. Empty: they are kept in the "
               "folder. "
               "`engine run --checkpoints` overrides it."),
      FIELD(checkpoint.background)
          .Doc("Whether checkpoints between iterations are written while training goes on, from a copy of "
               "each "
               "rank's state in the host's memory. The copy is made beside the next iteration, whose update "
               "waits for it. Without it training waits until the checkpoint is on disk."),
      FIELD(checkpoint.required)
          .Doc("Whether a checkpoint between iterations that cannot be written, as the disk is full or does "
               "not "
               "answer, ends the run. Without it the failure is a warning, and training goes on to the next "
               "checkpoint; the one at the end must be written."),
      FIELD(checkpoint.final_patience)
          .Between(0, 1e6)
          .Unit("s")
          .Doc(
              "How long the checkpoint at a run's end, or at its stop by a signal, is tried again where the "
              "disk is full, or the disk or the bucket does not answer, before the run ends with an error "
              "and the iterations since the checkpoint before are lost. A second signal ends the wait. 0: it "
              "is not tried again."),
      FIELD(checkpoint.memory)
          .Doc("Whether each rank's whole state is copied into its host's memory, too, where it outlives the "
               "rank: "
               "ranks that `engine run --processes --max-restarts N` starts again after a failure go on from "
               "there, "
               "and lose the iterations since alone. It takes two copies of the state."),
      FIELD(checkpoint.memory_interval)
          .Between(0, kMaxCount)
          .Unit("iterations")
          .Doc("Iterations between copies into the host's memory; 0: as few as training is predicted to get "
               "slower by 1 % at most, or 10 where the cluster has no rates to predict by."),
      FIELD(checkpoint.memory_partner)
          .Doc("Whether each of these copies also goes to the memory of another host, for a host that is "
               "lost and "
               "comes back, or that a spare stands in for. Where data-parallel copies on another host have "
               "all of a "
               "rank's state, nothing is sent. Each host needs the memory twice."),
      FIELD(evaluation.interval)
          .Between(0, kMaxCount)
          .Unit("iterations")
          .Doc("Iterations between evaluations; 0: never."),
      FIELD(evaluation.iterations)
          .Between(1, kMaxSize)
          .Unit("global batches")
          .Doc("Length of one evaluation."),
      FIELD(evaluation.tasks)
          .Doc("What else each evaluation asks the model: FORM=FILE with the form perplexity, wikitext, "
               "wikitext103, "
               "lambada or multiple_choice, or the name of a TOML file that describes a task "
               "(docs/evaluation.md); "
               "relative to the working directory. They need a tokenizer."),
      FIELD(generate.invariant)
          .Doc(
              "Whether a token's logits have the same bits wherever they are computed on one kind of device: "
              "in training, in "
              "evaluation, in a prompt, and token by token beside any other sequences. Products and "
              "attention "
              "then add up in one "
              "order, which costs time (docs/generation.md)."),
      FIELD(generate.cache_dtype)
          .Words({"auto", "fp8"})
          .Doc("What generation keeps keys and values as (MLA's latents likewise): auto, the format of "
               "precision.compute; "
               "fp8, e4m3 without scales, half the bytes of 16 bits, where numbers beyond 448 become that "
               "and three bits of "
               "fraction are left."),
      FIELD(guard.on_nonfinite)
          .Words({"stop", "skip", "rewind"})
          .Doc("What is done where a loss or the norm of a gradient is not finite: the run ends; the update "
               "is left out; or the run "
               "goes back to a checkpoint and leaves out the data from there to this iteration "
               "(docs/bad-numbers.md)."),
      FIELD(guard.on_spike)
          .Words({"none", "skip", "rewind"})
          .Doc("What is done where a loss or the norm of a gradient is far above those before it: nothing; "
               "the run goes back to the "
               "last checkpoint and leaves this one iteration out; or it goes back and leaves out the data "
               "from there to this "
               "iteration."),
      FIELD(guard.spike_loss)
          .Between(0, 1e6)
          .Unit("standard deviations")
          .Doc("How far above the mean of the iterations before it a loss is a spike; 0: losses are not "
               "judged."),
      FIELD(guard.spike_grad_norm)
          .Between(0, 1e6)
          .Doc("A gradient's norm is a spike above this times the median of the iterations before it; 0: "
               "norms are not judged."),
      FIELD(guard.spike_window)
          .Between(2, 1e6)
          .Unit("iterations")
          .Doc("Iterations before it with which one is compared; until there are so many, none is judged."),
      FIELD(guard.rewind_iterations)
          .Between(0, kMaxCount)
          .Unit("iterations")
          .Doc("Least distance of the checkpoint that a rewind goes back to; 0: the last one."),
      FIELD(guard.skip_batches)
          .Between(0, kMaxCount)
          .Unit("iterations")
          .Doc("Iterations behind the bad one that a rewind leaves out too."),
      FIELD(guard.max_rewinds)
          .Between(0, 1e6)
          .Doc("How often a training goes back before it ends with an error instead."),
      FIELD(guard.max_skips)
          .Between(0, kMaxCount)
          .Unit("updates")
          .Doc("How many updates in a row may be skipped, for gradients that are not finite, before the run "
               "ends "
               "with an error, as nothing is trained any more; 0: any number. Also in fp16, whose loss scale "
               "skips updates."),
      FIELD(guard.skip_iterations)
          .Doc("Iterations that are left out, one (\"350\") or from one to another (\"101-120\"): their data "
               "is consumed, and "
               "nothing is trained."),
      FIELD(guard.rerun)
          .Doc("Whether a run that meets a bad iteration first trains it once more from the last checkpoint: "
               "other bits than before "
               "are a fault of the machine, and end the run; the same are the model's or the data's doing, "
               "and the keys above say "
               "what is done."),
      FIELD(guard.trace)
          .Doc("Whether ranks hash all that they give to each other and get, so that rerun names the rank, "
               "or the exchange, where other bits came from. No program with exchange is recorded then, and "
               "no sum is left to "
               "the kernel that reads it."),
      FIELD(guard.hash_interval)
          .Between(0, kMaxCount)
          .Unit("iterations")
          .Doc("Iterations between comparisons of the copies of weights that several ranks have, which are "
               "equal to the bit unless "
               "a machine is at fault; also before each checkpoint. 0: they are not compared."),
      FIELD(logging.interval)
          .Between(1, kMaxCount)
          .Unit("iterations")
          .Doc("Iterations between log lines; metrics.jsonl has every iteration."),
      FIELD(logging.sinks)
          .Words({"tensorboard", "wandb", "prometheus"})
          .Doc("Where a run's numbers go beside metrics.jsonl: event files of TensorBoard in "
               "RUN/tensorboard, an "
               "offline file of Weights & Biases in RUN/wandb, Prometheus (docs/monitoring.md)."),
      FIELD(logging.sink_interval)
          .Between(1, kMaxCount)
          .Unit("iterations")
          .Doc("Iterations between those that tensorboard and wandb get."),
      FIELD(logging.histogram_interval)
          .Between(0, kMaxCount)
          .Unit("iterations")
          .Doc("Iterations between histograms of all weights and of their gradients, which tensorboard gets; "
               "0: "
               "none. Training stands still while they are counted."),
      FIELD(logging.wandb.project).Doc("Project of the run."),
      FIELD(logging.wandb.entity).Doc("User or team of the project; empty: that of whoever uploads the run."),
      FIELD(logging.wandb.name).Doc("Name of the run; empty: that of its folder."),
      FIELD(logging.prometheus.port)
          .Between(0, 65535)
          .Doc("Port on which rank 0's process answers GET /metrics; 0: none."),
      FIELD(logging.prometheus.address)
          .Doc("Address of that host to listen on. Whoever reaches it can read the numbers: no one else by "
               "default; 0.0.0.0: "
               "everyone."),
      FIELD(logging.prometheus.textfile)
          .Pattern(R"(^(.*\.prom)?$)")
          .Doc("File, *.prom, that is written for the textfile collector of Prometheus' node exporter; "
               "empty: none."),
  };
}

Rows ClusterRows() {
  return {
      FIELD(cluster.name).Doc("Name for reports."),
      FIELD(cluster.device).Words({"cpu", "a100", "h100", "h200", "b200"}).Doc("Kind of device."),
      FIELD(cluster.nodes)
          .Between(0, kMaxDegree)
          .Unit("nodes")
          .Doc("Number of nodes; 0: as many as the world needs."),
      FIELD(cluster.devices_per_node)
          .Between(0, kMaxDegree)
          .Unit("devices")
          .Doc("Devices of each node; 0: not limited."),
      FIELD(cluster.memory_bytes).Bytes().Doc("Memory of one device; 0: not limited."),
      FIELD(cluster.reserved_bytes)
          .Bytes()
          .Doc("Memory of one device that the arena cannot have: context, libraries."),
      FIELD(cluster.matmul_flops)
          .Between(0, 1e24)
          .Unit("FLOP/s")
          .Doc("Sustained rate of matrix products of one device, in bf16 (CPU: fp32, of the whole machine); "
               "0: unknown."),
      FIELD(cluster.peak_flops)
          .Between(0, 1e24)
          .Unit("FLOP/s")
          .Doc("Peak rate of dense 16-bit products of one device, as its data sheet has it: what MFU is a "
               "share of; 0: unknown."),
      FIELD(cluster.memory_bandwidth)
          .Between(0, 1e24)
          .Unit("bytes/s")
          .Doc("Memory bandwidth of one device (CPU: of the whole machine), read and write together, as "
               "large copies reach it; 0: unknown."),
      FIELD(cluster.intra_node_bandwidth)
          .Between(0, 1e24)
          .Unit("bytes/s")
          .Doc("Bandwidth between devices of a node, per device and direction, as large copies reach it; 0: "
               "unknown."),
      FIELD(cluster.inter_node_bandwidth)
          .Between(0, 1e24)
          .Unit("bytes/s")
          .Doc("Bandwidth between nodes, per device and direction, of the network's data sheet; 0: unknown."),
      FIELD(launch.name)
          .Pattern("^([a-z]([-a-z0-9]{0,42}[a-z0-9])?)?$")
          .Doc("Name of the job: small letters, digits and hyphens, at most 44; empty: the recipe's file "
               "name, without its ending."),
      FIELD(launch.command).Doc("The program, as the job finds it."),
      FIELD(launch.recipe)
          .Doc("The recipe's file, as the job finds it; empty: as engine launch was given it."),
      FIELD(launch.out).Doc("The run's folder, as the job finds it; empty: runs/ and the job's name."),
      FIELD(launch.image).Doc("Container image that has the program (docs/kubernetes.md); SLURM needs none."),
      FIELD(launch.kubernetes_namespace)
          .Doc("Namespace of the Kubernetes object; empty: whoever applies it says."),
      FIELD(launch.queue).Doc("SLURM: partition. Kubernetes: Kueue's local queue. Empty: none is named."),
      FIELD(launch.account).Doc("SLURM: account; empty: the user's own."),
      FIELD(launch.priority)
          .Doc("SLURM: quality of service. Kubernetes: priority class. Empty: none is named."),
      FIELD(launch.volumes)
          .Doc("Kubernetes: claims and where they are mounted, as in fsx-claim:/fsx. Recipe, data and the "
               "run's folder lie there."),
      FIELD(launch.token_secret)
          .Doc("Kubernetes: the secret whose entry `token` is what the run's processes know each other by."),
      FIELD(launch.shared_memory_bytes)
          .Bytes()
          .Doc("Kubernetes: size of /dev/shm, which is 64 MiB without; NCCL needs more."),
      FIELD(launch.host_memory_bytes)
          .Bytes()
          .Doc("Memory of a node that is asked for; 0: all (SLURM), or none is named (Kubernetes)."),
      FIELD(launch.network)
          .Words({"none", "efa", "infiniband"})
          .Doc("Network between the nodes: which settings of NCCL and which permissions it needs."),
      FIELD(launch.network_resource)
          .Doc("Kubernetes: what the network's devices are called as a resource; empty: "
               "vpc.amazonaws.com/efa for efa."),
      FIELD(launch.network_devices)
          .Between(0, 1024)
          .Unit("devices")
          .Doc("Kubernetes: network devices of a node; 0: none are asked for."),
      FIELD(launch.grace_period_s)
          .Between(1, 86400)
          .Unit("s")
          .Doc("Time from the signal that asks the run to stop until it is killed: at least an iteration and "
               "a save."),
      FIELD(launch.time_limit_s)
          .Between(0, kMaxCount)
          .Unit("s")
          .Doc("Longest time of the job, before whose end it saves; SLURM then queues it again. 0: none."),
      FIELD(launch.retries)
          .Between(0, kMaxDegree)
          .Unit("times")
          .Doc("How often the job starts again after a failure that another try may cure, or after a stop; "
               "0: never."),
      FIELD(launch.max_restarts)
          .Between(0, kMaxDegree)
          .Unit("times")
          .Doc("How often the ranks start again within the job, from the newest checkpoint, after one was "
               "lost: "
               "engine run --max-restarts. 0: the job ends, and the scheduler starts it again."),
      FIELD(launch.spares)
          .Between(0, kMaxDegree)
          .Unit("nodes")
          .Doc("Nodes beside those of the layout, which stand in for lost ones: engine run --spares. Fewer "
               "than "
               "the layout's; with max_restarts."),
      FIELD(launch.min_nodes)
          .Between(0, kMaxDegree)
          .Unit("nodes")
          .Doc(
              "How few nodes the run goes on with, on fewer data-parallel ranks, where nodes are lost and no "
              "spare is left: engine run --min-nodes. More than half of all; with max_restarts. 0: all of "
              "the "
              "layout's."),
      FIELD(check.allow)
          .Words(WarningCodes())
          .Doc("Warnings of engine check that are meant: it does not give them (docs/warnings.md)."),
      FIELD(debug.router)
          .Words({"model", "even", "zipf"})
          .Doc("Which experts tokens go to, whatever a router says: even, each expert equally often; zipf, "
               "expert "
               "e about as (e + 1)^-0.7. For measurements of speed alone; model: those that routers choose."),
      FIELD(debug.faults)
          .Doc("Whether engine run takes --fault, which makes faults on purpose to test what a run does of "
               "them "
               "(docs/faults.md)."),
  };
}

}  // namespace engine::recipe
