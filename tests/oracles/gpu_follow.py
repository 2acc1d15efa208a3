#!/usr/bin/env python3
"""Oracle of whole trainings: PyTorch follows a run of ours from the same initial weights on the same batches, and the
losses of both are compared; or two runs of ours are compared with each other. Exit code 0 if the differences are
within the band (--mean, --largest), else 1.

  gpu_follow.py follow RUN [--checkpoint DIR] [--precision bf16|fp32|fp64] [--device cuda|cpu] [--data PREFIX]
  gpu_follow.py compare RUN RUN          RUN: the folder of `engine run --out`, or a metrics.jsonl (compare only)

`follow` reads RUN/resolved.toml and RUN/metrics.jsonl and needs python3 (3.11 or later) with numpy and PyTorch. The
rest it reproduces from their written definitions: the sample order (engine/data/gpt_index.h), the learning rate
(engine/recipe/learning_rate.h), the model (engine/model/decoder.cpp) and AdamW with decoupled decay; weights and
moments come out of the shards at the offsets that manifest.json gives (docs/checkpoint-format.md). bf16: parameters
and activations in bf16, over fp32 master weights; gradients of the microbatches are summed, clipped and used in fp32.
Dropout has masks of PyTorch's own, so that with it the losses are alike in distribution only (tests/gpu/dropout_curves.py).

Where it starts: a checkpoint whose iterations all had a learning rate of 0 holds the initial weights, so PyTorch
starts at the first iteration with no moments. Any other is a state in mid-training: PyTorch takes its weights and
moments, and follows the iterations after it. Without --checkpoint, it is RUN's first one. GPT-2 124M on real text
(tools/quickstart prepares it), in bf16, for 300 iterations:

  R="recipes/gpt2-124m-1gpu.toml --set data.tokenizer.kind=byte --set data.paths=[\"runs/data/fortunes_text_document\"]
     --set schedule.warmup_fraction=0"
  engine run $R --out runs/start --set training.iterations=1 --set schedule.kind=constant \\
     --set schedule.min_learning_rate=0 --set optimizer.learning_rate=0
  engine run $R --out runs/bf16 --set training.iterations=300 --set schedule.warmup_iterations=30 \\
     --set schedule.decay_iterations=300 --set optimizer.learning_rate=3e-4
  tests/oracles/gpu_follow.py follow runs/bf16 --checkpoint runs/start/checkpoints/iteration_0000001
"""
import argparse
import json
import math
import pathlib
import sys
import time
import tomllib

import numpy as np

SCALAR_TYPES = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "i64": np.int64, "i32": np.int32}
TOKEN_TYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}  # of an .idx
IDX_MAGIC = b"MMIDIDX\0\0"


def fail(message):
    sys.exit(f"gpu_follow: {message}")


# -- what a run left behind
def read_metrics(path):
    """Iteration → its line of metrics.jsonl; lines of evaluations are left out."""
    path = pathlib.Path(path)
    path = path / "metrics.jsonl" if path.is_dir() else path
    if not path.is_file():
        fail(f"{path}: no such file")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["iteration"]: line for line in lines if "loss" in line}


class Checkpoint:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        if not (self.folder / "manifest.json").is_file():
            fail(f"{self.folder}: no checkpoint (manifest.json is missing)")
        self.manifest = json.loads((self.folder / "manifest.json").read_text())
        self.tensors = {tensor["name"]: tensor for tensor in self.manifest["tensors"]}

    def read(self, name):
        """The whole tensor, assembled from the row-major pieces."""
        tensor = self.tensors[name]
        if tensor["dtype"] not in SCALAR_TYPES:
            fail(f"{self.folder}: {name} is {tensor['dtype']}; weights and moments must be fp32")
        whole = np.empty(tensor["shape"], SCALAR_TYPES[tensor["dtype"]])
        for piece in tensor["pieces"]:
            file = self.folder / self.manifest["files"][piece["file"]]["name"]
            data = np.memmap(file, whole.dtype, "r", piece["offset"], tuple(piece["count"]))
            whole[tuple(slice(s, s + n) for s, n in zip(piece["start"], piece["count"]))] = data
        return whole

    def parameters(self):
        prefix = "adam.m/"
        return sorted(name[len(prefix):] for name in self.tensors if name.startswith(prefix))

    def is_initial(self):
        """Whether no iteration so far could change a weight."""
        recipe = tomllib.loads(self.manifest["recipe"])
        batch = recipe["training"]["global_batch"]
        return all(learning_rate(recipe, i * batch) == 0 for i in range(self.manifest["iteration"]))


def first_checkpoint(run):
    found = sorted(pathlib.Path(run, "checkpoints").glob("iteration_*"))
    if not found:
        fail(f"{run}: no checkpoint; give --checkpoint")
    return found[0]


# -- the batches
class Dataset:
    """Megatron's indexed format (engine/data/indexed_dataset.h)."""

    def __init__(self, prefix):
        idx = pathlib.Path(prefix + ".idx").read_bytes()
        if idx[:9] != IDX_MAGIC:
            fail(f"{prefix}.idx: not an index file")
        sequences = int(np.frombuffer(idx, np.int64, 1, 18)[0])
        self.lengths = np.frombuffer(idx, np.int32, sequences, 34)
        offsets = np.frombuffer(idx, np.int64, sequences, 34 + 4 * sequences)
        tokens = np.memmap(prefix + ".bin", TOKEN_TYPES[idx[17]], "r")
        self.starts = offsets // tokens.itemsize
        self.tokens = tokens

    def join(self, order):
        """The tokens of the sequences of `order`, one after the other."""
        pieces = [self.tokens[s:s + n] for s, n in zip(self.starts[order], self.lengths[order])]
        return np.concatenate(pieces)


def train_range(split, sequences):
    shares = [float(share) for share in split.split(",")] + [0.0, 0.0]
    return range(round(shares[0] / sum(shares[:3]) * sequences))


class Samples:
    """The train split in training order: sample i is `stream[row[i] * length : … + length + 1]`."""

    def __init__(self, recipe, prefix):
        data, training = recipe["data"], recipe["training"]
        if len(data["paths"]) != 1 or data["weights"]:
            fail("a blend of data sets cannot be followed; give the run one data set without weights")
        dataset = Dataset(prefix or data["paths"][0])
        self.length = data["sequence_length"]
        wanted = iterations_of(recipe) * training["global_batch"]
        documents = np.array(train_range(data["split"], len(dataset.lengths)), np.int32)
        tokens = int(dataset.lengths[documents].sum())
        epochs = max(1, -(-(wanted * self.length + 1) // tokens))
        before_last = ((epochs - 1) * tokens - 1) // self.length if epochs > 1 else 0
        separate = epochs > 1 and wanted - before_last < int(0.80 * ((tokens - 1) // self.length))
        random = np.random.RandomState(training["seed"])

        def shuffled(array):
            random.shuffle(array)
            return array

        if separate:
            order = np.concatenate([shuffled(np.tile(documents, epochs - 1)), shuffled(documents.copy())])
        else:
            order = shuffled(np.tile(documents, epochs))
        rows = np.arange((epochs * tokens - 1) // self.length, dtype=np.uint32)
        first_part = before_last if separate else len(rows)
        self.rows = np.concatenate([shuffled(rows[:first_part].copy()), shuffled(rows[first_part:].copy())])
        self.stream = dataset.join(order)
        print(f"data: {tokens} tokens, {epochs} epochs, {len(self.rows)} samples of {self.length} + 1 tokens")

    def batch(self, first, count):
        """int64 [count, length + 1]"""
        starts = self.rows[first:first + count].astype(np.int64) * self.length
        return np.stack([self.stream[s:s + self.length + 1] for s in starts]).astype(np.int64)


# -- the recipe
def iterations_of(recipe):
    training = recipe["training"]
    return training["iterations"] or training["samples"] // training["global_batch"]


def learning_rate(recipe, samples):
    """Of the update after `samples` samples; formulas of engine/recipe/learning_rate.h."""
    schedule, batch = recipe["schedule"], recipe["training"]["global_batch"]
    highest, lowest = recipe["optimizer"]["learning_rate"], schedule["min_learning_rate"]

    def length(name):
        return float(schedule[name + "_samples"] or schedule[name + "_iterations"] * batch)

    decay = length("decay") or float(iterations_of(recipe) * batch)
    warmup = schedule["warmup_fraction"] * decay or length("warmup")
    wsd_decay = length("wsd_decay")
    kind = schedule["kind"]
    if warmup > 0 and samples <= warmup:
        return schedule["warmup_init"] + (highest - schedule["warmup_init"]) * samples / warmup
    if kind == "constant":
        return highest
    if samples > decay:
        return lowest
    if kind == "inverse_sqrt":
        return max(lowest, highest * math.sqrt(max(warmup, 1.0)) / math.sqrt(max(samples, 1.0)))
    if kind == "wsd":
        start = decay - wsd_decay
        if samples <= start:
            return highest
        q = (samples - start) / wsd_decay
        left = {"linear": 1.0 - q, "cosine": 0.5 * (1.0 + math.cos(math.pi * q)), "minus_sqrt": 1.0 - math.sqrt(q),
                "exponential": 2.0 * 0.5 ** q - 1.0}[schedule["wsd_decay_kind"]]
        return lowest + left * (highest - lowest)
    r = (samples - warmup) / (decay - warmup)
    left = 1.0 - r if kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * r))
    return lowest + left * (highest - lowest)


# -- the model. B batch, S sequence, D model, H heads, K kv heads, E head dim, V vocabulary
def rotary_angles(attention, head_dim, sequence):
    """float64 [S, E / 2]; Su et al., arXiv:2104.09864, with the scaling of Llama 3.1."""
    scaling = attention["rope_scaling"]
    frequency = attention["rope_base"] ** (-np.arange(0, head_dim, 2) / head_dim)
    if scaling["factor"] != 1.0:
        low, high = scaling["low_frequency_factor"], scaling["high_frequency_factor"]
        turns = scaling["original_max_positions"] * frequency / (2.0 * math.pi)  # in the unscaled context
        kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
        frequency = frequency * (kept + (1.0 - kept) / scaling["factor"])
    return np.outer(np.arange(sequence), frequency)


class Decoder:
    """Pre-norm decoder as a function of its parameters, which have the names and shapes of checkpoints."""

    def __init__(self, torch, model, sequence, device, dtype):
        self.torch, self.f, self.model = torch, torch.nn.functional, model
        attention = model["attention"]
        self.heads = attention["heads"]
        self.kv_heads = attention["kv_heads"] or self.heads
        self.head_dim = attention["head_dim"] or model["hidden"] // self.heads
        self.dropout = model["dropout"]
        self.rotary = None
        if attention["position"] == "rotary":
            angles = torch.from_numpy(rotary_angles(attention, self.head_dim, sequence)).to(device)
            exact = torch.float64 if dtype == torch.float64 else torch.float32
            self.rotary = angles.cos().to(exact), angles.sin().to(exact)
        distance = torch.arange(sequence)[:, None] - torch.arange(sequence)[None, :]
        self.visible = (distance >= 0) & (distance < (attention["window"] or sequence))
        self.visible = self.visible.to(device)

    def norm(self, p, name, x):
        epsilon = self.model["norm"]["epsilon"]
        if self.model["norm"]["kind"] == "layernorm":
            return self.f.layer_norm(x, x.shape[-1:], p[name + ".weight"], p[name + ".bias"], epsilon)
        wide = x.to(self.torch.promote_types(x.dtype, self.torch.float32))
        scale = self.torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
        return (wide * scale).to(x.dtype) * p[name + ".weight"]

    def linear(self, p, name, x):
        """x [B, S, in] · wᵀ (+ b) → [B, S, out], the weight's dims flattened to [out, in]"""
        bias = p.get(name + ".bias")
        weight = p[name + ".weight"]
        return self.f.linear(x, weight.reshape(-1, x.shape[-1]), bias if bias is None else bias.flatten())

    def rotate(self, x):
        """x [B, H, S, E]: the pair (i, i + E / 2) is turned by its angle."""
        cos, sin = self.rotary
        a, b = x.to(cos.dtype).chunk(2, -1)
        return self.torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)

    def attention(self, q, k, v):
        """q, k, v [B, H, S, E]"""
        if hasattr(self.f, "scaled_dot_product_attention") and not self.model["attention"]["window"]:
            return self.f.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout["attention"])
        scores = (q @ k.transpose(-1, -2)).to(self.torch.promote_types(q.dtype, self.torch.float32))
        scores = (scores / math.sqrt(self.head_dim)).masked_fill(~self.visible, -math.inf)
        return self.f.dropout(self.torch.softmax(scores, -1), self.dropout["attention"]).to(q.dtype) @ v

    def drop(self, x, where):
        """With masks of PyTorch's own: the losses of both are equal in distribution."""
        return self.f.dropout(x, self.dropout[where]) if self.dropout[where] > 0 else x

    def attention_block(self, p, name, x):
        batch, sequence, _ = x.shape
        group = self.heads // self.kv_heads
        qkv = self.linear(p, name + ".qkv", self.norm(p, name + ".norm", x))
        qkv = qkv.view(batch, sequence, self.kv_heads, group + 2, self.head_dim)
        q = qkv[:, :, :, :group].reshape(batch, sequence, self.heads, self.head_dim).transpose(1, 2)
        k, v = (qkv[:, :, :, group + i].transpose(1, 2) for i in range(2))
        if self.rotary:
            q, k = self.rotate(q), self.rotate(k)
        k, v = (t.repeat_interleave(group, 1) if group > 1 else t for t in (k, v))
        mixed = self.attention(q, k, v).transpose(1, 2).reshape(batch, sequence, -1)
        return self.linear(p, name + ".proj", mixed)

    def mlp_block(self, p, name, x):
        wide = self.linear(p, name + ".fc1", self.norm(p, name + ".norm", x))
        activation = self.model["mlp"]["activation"]
        if activation == "swiglu":
            gate, up = wide.chunk(2, -1)
            active = self.f.silu(gate) * up
        else:
            active = self.f.gelu(wide, approximate="tanh" if activation == "gelu_tanh" else "none")
        return self.linear(p, name + ".fc2", active)

    def loss_sum(self, p, tokens, labels):
        """Summed cross entropy in nats of tokens and labels [B, S]."""
        x = self.f.embedding(tokens, p["embedding.tokens"])
        if "embedding.positions" in p:
            x = x + p["embedding.positions"][:tokens.shape[1]]
        x = self.drop(x, "embedding")
        for layer in range(self.model["layers"]):
            x = x + self.drop(self.attention_block(p, f"layers.{layer}.attention", x), "hidden")
            x = x + self.drop(self.mlp_block(p, f"layers.{layer}.mlp", x), "hidden")
        head = p["embedding.tokens"] if self.model["tied_embeddings"] else p["head.weight"]
        rows = head.shape[0]
        head = self.f.pad(head, (0, 0, 0, -rows % 128))  # products of odd widths are slow on tensor cores
        logits = self.f.linear(self.norm(p, "final_norm", x), head)[..., :rows].flatten(0, 1)
        wide = logits.to(self.torch.promote_types(logits.dtype, self.torch.float32))
        return self.f.cross_entropy(wide, labels.flatten(), reduction="sum")


class Trainer:
    """Parameters in `dtype` over master weights of at least fp32."""

    def __init__(self, torch, recipe, checkpoint, moments, device, dtype):
        self.torch, self.optimizer_keys = torch, recipe["optimizer"]
        self.wide = torch.promote_types(dtype, torch.float32)

        def load(name):
            return torch.from_numpy(checkpoint.read(name)).to(device, self.wide)

        self.masters = {name: load(name) for name in checkpoint.parameters()}
        self.parameters = {name: m.to(dtype, copy=True).requires_grad_() for name, m in self.masters.items()}
        keys = self.optimizer_keys
        decayed = [n for n, m in self.masters.items() if m.dim() > 1 and not n.endswith(".bias")]
        others = [n for n in self.masters if n not in decayed]
        groups = [{"params": [self.masters[n] for n in names], "weight_decay": decay}
                  for names, decay in ((decayed, keys["weight_decay"]), (others, 0.0)) if names]
        self.optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(keys["beta1"], keys["beta2"]), eps=keys["epsilon"])
        if moments:
            for name, master in self.masters.items():
                self.optimizer.state[master] = {
                    "step": torch.tensor(float(checkpoint.manifest["adam_step"])),
                    "exp_avg": load("adam.m/" + name), "exp_avg_sq": load("adam.v/" + name)}

    def iterate(self, decoder, batch, micro, rate):
        """One iteration on batch [samples, S + 1] → mean loss, gradient norm before clipping."""
        torch, scale = self.torch, 1.0 / (batch.shape[0] * (batch.shape[1] - 1))
        loss = 0.0
        for master in self.masters.values():
            master.grad = torch.zeros_like(master)
        for rows in batch.split(micro):
            part = decoder.loss_sum(self.parameters, rows[:, :-1].contiguous(), rows[:, 1:].contiguous()) * scale
            loss = loss + part.detach()
            gradients = torch.autograd.grad(part, list(self.parameters.values()))
            for master, gradient in zip(self.masters.values(), gradients):
                master.grad += gradient
        norm = torch.stack([m.grad.norm() for m in self.masters.values()]).norm()
        clip = self.optimizer_keys["clip_grad_norm"]
        if clip > 0:
            factor = (clip / (norm + 1e-6)).clamp(max=1.0)
            for master in self.masters.values():
                master.grad *= factor
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        with torch.no_grad():
            for name, master in self.masters.items():
                self.parameters[name].copy_(master)
        return float(loss), float(norm)


# -- the comparison
def report(differences, options, what):
    """differences: (iteration, loss of ours, loss of the other). Returns the exit code."""
    if not differences:
        fail("no iteration in common")
    off = [abs(ours - other) for _, ours, other in differences]
    mean, largest = sum(off) / len(off), max(off)
    worst = differences[off.index(largest)][0]
    tail = differences[-max(1, len(differences) // 5):]
    bias = sum(ours - other for _, ours, other in tail) / len(tail)
    passed = mean <= options.mean and largest <= options.largest
    result = {"iterations": len(differences), "mean": mean, "largest": largest, "largest_at": worst,
              "signed_mean_of_last_fifth": bias, "band_mean": options.mean, "band_largest": options.largest,
              "passed": passed}
    print(f"{what}: {len(differences)} iterations; difference of loss: mean {mean:.3g} (band {options.mean:g}), "
          f"largest {largest:.3g} at iteration {worst} (band {options.largest:g}), signed mean of the last fifth {bias:+.3g}: "
          f"{'within the band' if passed else 'OUTSIDE THE BAND'}")
    if options.json:
        rows = [{"iteration": i, "ours": ours, "other": other} for i, ours, other in differences]
        pathlib.Path(options.json).write_text(json.dumps(result | {"losses": rows}) + "\n")
    return 0 if passed else 1


def follow(options):
    import torch
    if torch.cuda.is_available():
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    recipe = tomllib.loads(pathlib.Path(options.run, "resolved.toml").read_text())
    torch.manual_seed(recipe["training"]["seed"])
    metrics = read_metrics(options.run)
    checkpoint = Checkpoint(options.checkpoint or first_checkpoint(options.run))
    if tomllib.loads(checkpoint.manifest["recipe"])["model"] != recipe["model"]:
        fail(f"{checkpoint.folder} holds another model than {options.run}")
    initial = checkpoint.is_initial()
    done = 0 if initial else checkpoint.manifest["iteration"]
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}[options.precision]
    training = recipe["training"]
    global_batch = training["global_batch"]
    trainer = Trainer(torch, recipe, checkpoint, not initial, options.device, dtype)
    decoder = Decoder(torch, recipe["model"], recipe["data"]["sequence_length"], options.device, dtype)
    samples = Samples(recipe, options.data)
    last = min(max(metrics), done + (options.iterations or len(metrics)))
    print(f"PyTorch {torch.__version__} in {options.precision} on {options.device} against {options.run} "
          f"({recipe['precision']['compute']}), from " + ("the initial weights" if initial else f"iteration {done}"))
    differences = []
    start = time.monotonic()
    for i in range(done, last):
        line = metrics.get(i + 1) or fail(f"{options.run}: metrics.jsonl has no iteration {i + 1}")
        rate = learning_rate(recipe, i * global_batch)
        if not math.isclose(rate, line["learning_rate"], rel_tol=1e-6, abs_tol=1e-15):
            fail(f"iteration {i + 1}: the run's learning rate is {line['learning_rate']}, the schedule's {rate}")
        batch = torch.from_numpy(samples.batch(i * global_batch, global_batch)).to(options.device)
        loss, norm = trainer.iterate(decoder, batch, options.micro or training["micro_batch"], rate)
        differences.append((i + 1, line["loss"], loss))
        if i == done or i + 1 == last or (i + 1) % options.log == 0:
            print(f"iteration {i + 1:6d}: loss ours {line['loss']:.6f}, PyTorch {loss:.6f}, difference "
                  f"{line['loss'] - loss:+.6f}; gradient norm ours {line['grad_norm']:.5f}, PyTorch {norm:.5f}",
                  flush=True)
    print(f"{1e3 * (time.monotonic() - start) / max(1, last - done):.1f} ms an iteration of PyTorch, not compiled")
    return report(differences, options, "ours against PyTorch")


def compare(options):
    first, second = read_metrics(options.run), read_metrics(options.other)
    common = sorted(first.keys() & second.keys())
    return report([(i, first[i]["loss"], second[i]["loss"]) for i in common], options,
                  f"{options.run} against {options.other}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    band = argparse.ArgumentParser(add_help=False)
    band.add_argument("--mean", type=float, default=0.01, help="largest mean of |difference of loss|, in nats")
    band.add_argument("--largest", type=float, default=0.05, help="largest |difference of loss| of an iteration")
    band.add_argument("--json", metavar="FILE", help="write the result and all losses")
    commands = parser.add_subparsers(dest="command", required=True)
    f = commands.add_parser("follow", parents=[band], help="PyTorch repeats a run of ours")
    f.add_argument("run", metavar="RUN")
    f.add_argument("--checkpoint", metavar="DIR", help="where PyTorch starts (default: the run's first checkpoint)")
    f.add_argument("--precision", choices=("bf16", "fp32", "fp64"), default="bf16")
    f.add_argument("--device", default="cuda")
    f.add_argument("--data", metavar="PREFIX", help="the data set, where the recipe's path does not hold")
    f.add_argument("--micro", type=int, default=0, help="samples of a PyTorch microbatch (default: the recipe's)")
    f.add_argument("--iterations", type=int, default=0, help="at most so many (default: all of the run)")
    f.add_argument("--log", type=int, default=25, help="iterations between lines")
    c = commands.add_parser("compare", parents=[band], help="two runs of ours")
    c.add_argument("run", metavar="RUN")
    c.add_argument("other", metavar="RUN")
    options = parser.parse_args()
    try:
        sys.exit(follow(options) if options.command == "follow" else compare(options))
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}")


if __name__ == "__main__":
    main()
