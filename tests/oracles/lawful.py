#!/usr/bin/python3
"""Whether a recipe is lawful: the arithmetic of recipes once more, in plain Python and apart from engine/.

Written from docs/recipe-reference.md and docs/architecture.md: keys, types and ranges; world size; divisibilities; the
batch equation; lengths of training and schedule; number formats; a lower bound of the memory. TOML is read by Python's
tomllib. What needs a plan (placements, the exact arena) is not decided here.
usage: lawful.py FILE…     prints each file's reasons, or "lawful"; exit code 1 if one has any
"""
import math
import pathlib
import re
import sys
import tomllib

SIZE, DEGREE, COUNT = 1 << 30, 1 << 20, 10**15
INF = math.inf


def whole(low, high=INF):
    return ("whole", low, high)


def real(low=-INF, high=INF, above=False, below=False):
    return ("real", low, high, above, below)


def word(*words):
    return ("word", words)


TEXT, FLAG, BYTES = ("text",), ("flag",), ("bytes",)

KEYS = {
    "model": {
        "family": word("decoder"), "layers": whole(1, 2000), "hidden": whole(1, SIZE), "vocab": whole(1, SIZE),
        "vocab_multiple": whole(1, DEGREE), "max_positions": whole(1, SIZE), "tied_embeddings": FLAG,
        "init_std": real(0, 10)},
    "model.attention": {
        "heads": whole(1, DEGREE), "kv_heads": whole(0, DEGREE), "head_dim": whole(0, DEGREE),
        "position": word("learned", "rotary", "none"), "rope_base": real(1, 1e15), "window": whole(0, SIZE), "bias": FLAG},
    "model.attention.rope_scaling": {
        "factor": real(1, DEGREE), "low_frequency_factor": real(0, above=True),
        "high_frequency_factor": real(0, above=True), "original_max_positions": whole(1, SIZE)},
    "model.mlp": {"hidden": whole(0, SIZE), "activation": word("gelu_tanh", "gelu_erf", "squared_relu", "swiglu"), "bias": FLAG},
    "model.norm": {"kind": word("layernorm", "rmsnorm"), "epsilon": real(0, above=True)},
    "model.dropout": {key: real(0, 1, below=True) for key in ("embedding", "hidden", "attention")},
    "parallelism": {
        **{axis: whole(1, DEGREE) for axis in ("dp", "tp", "pp", "cp", "ep")}, "sequence_parallel": FLAG,
        "virtual_stages": whole(1, 10**6), "schedule": word("auto", "1f1b", "interleaved", "zero_bubble"),
        "layers_per_stage": ("list", whole(0, 10**6)), "zero_stage": whole(0, 3), "overlap": word("auto", "on", "off"),
        "exchange": word("auto", "nccl", "push"), "expert_tp": whole(0, DEGREE),
        "expert_rows": real(0, 1e6)},
    "data": {
        "paths": ("list", TEXT), "weights": ("list", real(0, above=True)), "split": TEXT,
        "sequence_length": whole(1, SIZE), "documents": word("across", "masked"), "packing": word("none", "best_fit"),
        "mask_end_of_document_loss": FLAG},
    "data.tokenizer": {"kind": word("byte", "gpt2", "none"), "vocab_file": TEXT, "merges_file": TEXT},
    "optimizer": {
        "kind": word("adamw", "sgd"), "learning_rate": real(0, 1e6), "beta1": real(0, 1, below=True),
        "beta2": real(0, 1, below=True), "epsilon": real(0, above=True), "momentum": real(0, 1, below=True),
        "weight_decay": real(0, 1e6),
        "clip_grad_norm": real(0, 1e15), "moment_dtype": word("fp32", "bf16")},
    "schedule": {
        "kind": word("constant", "linear", "cosine", "inverse_sqrt", "wsd"), "min_learning_rate": real(0, 1e6),
        "warmup_init": real(0, 1e6), "warmup_iterations": whole(0, COUNT), "warmup_samples": whole(0, COUNT),
        "warmup_fraction": real(0, 1, below=True), "decay_iterations": whole(0, COUNT), "decay_samples": whole(0, COUNT),
        "wsd_decay_iterations": whole(0, COUNT), "wsd_decay_samples": whole(0, COUNT),
        "wsd_decay_kind": word("linear", "cosine", "exponential", "minus_sqrt")},
    "training": {
        "global_batch": whole(1, SIZE), "micro_batch": whole(1, SIZE), "pad_batch": FLAG, "iterations": whole(0, COUNT),
        "samples": whole(0, COUNT), "seed": whole(0, 2**32 - 1), "weights_from": TEXT,
        "weights_match": word("all", "some"), "upcycle": FLAG, "logits_bytes": ("bytes", 1)},
    "training.rampup": {"start": whole(0, SIZE), "increment": whole(0, SIZE), "samples": whole(0, COUNT)},
    "precision": {
        "compute": word("fp32", "bf16", "fp16", "fp8"), "gradient_dtype": word("fp32", "bf16"),
        "master_dtype": word("fp32", "bf16"), "fp8_gradients": word("e4m3", "e5m2"),
        "fp8_scaling": word("delayed", "current"), "fp8_head": FLAG, "deterministic": FLAG, "attention": word("fast", "reference")},
    "recompute": {
        "granularity": word("none", "cheap", "selective", "full"),
        "modules": ("list", word("attention", "norm", "activation"))},
    "checkpoint": {"interval": whole(0, COUNT), "keep": whole(0, 10**6)},
    "lora": {"rank": whole(0, 2**16), "alpha": real(0, INF, above=True), "targets": ("list", TEXT)},
    "evaluation": {"interval": whole(0, COUNT), "iterations": whole(1, SIZE)},
    "logging": {
        "interval": whole(1, COUNT), "sinks": ("list", word("tensorboard", "wandb", "prometheus")),
        "sink_interval": whole(1, COUNT)},
    "logging.wandb": {"project": TEXT, "entity": TEXT, "name": TEXT},
    "logging.prometheus": {"port": whole(0, 65535), "address": TEXT, "textfile": TEXT},
    "cluster": {
        "name": TEXT, "device": word("cpu", "a100", "h100", "h200", "b200"), "nodes": whole(0, DEGREE),
        "devices_per_node": whole(0, DEGREE), "memory_bytes": BYTES, "reserved_bytes": BYTES,
        **{rate: real(0, 1e24) for rate in ("matmul_flops", "peak_flops", "memory_bandwidth", "intra_node_bandwidth",
                                            "inter_node_bandwidth")}},
    "check": {"allow": ("list", ("word", None))},  # the legal words are given by the caller
}

REQUIRED = ["model.layers", "model.hidden", "model.vocab", "model.max_positions", "model.attention.heads", "data.paths",
            "data.sequence_length", "optimizer.learning_rate", "training.global_batch", "training.micro_batch"]

DEFAULTS = {
    "model.vocab_multiple": 128, "model.tied_embeddings": True, "model.attention.kv_heads": 0,
    "model.attention.head_dim": 0, "model.attention.position": "learned",
    "model.attention.rope_scaling.factor": 1.0, "model.attention.rope_scaling.low_frequency_factor": 1.0,
    "model.attention.rope_scaling.high_frequency_factor": 4.0, "model.mlp.hidden": 0,
    "model.mlp.activation": "gelu_tanh", "parallelism.sequence_parallel": False, "parallelism.virtual_stages": 1,
    "parallelism.schedule": "auto", "parallelism.layers_per_stage": [], "parallelism.zero_stage": 0,
    "parallelism.overlap": "auto", "parallelism.exchange": "auto", "parallelism.expert_tp": 0, "parallelism.expert_rows": 0.0, "data.weights": [],
    "data.documents": "across", "data.packing": "none", "data.mask_end_of_document_loss": False,
    "data.split": "969,30,1", "data.tokenizer.kind": "byte", "data.tokenizer.vocab_file": "",
    "data.tokenizer.merges_file": "", "optimizer.kind": "adamw", "optimizer.moment_dtype": "fp32", "schedule.kind": "cosine",
    "schedule.min_learning_rate": 0.0, "schedule.warmup_init": 0.0, "schedule.warmup_iterations": 0,
    "schedule.warmup_samples": 0, "schedule.warmup_fraction": 0.0, "schedule.decay_iterations": 0,
    "schedule.decay_samples": 0, "schedule.wsd_decay_iterations": 0, "schedule.wsd_decay_samples": 0,
    "training.iterations": 0, "training.samples": 0, "training.rampup.start": 0, "training.rampup.increment": 0,
    "training.rampup.samples": 0, "precision.compute": "fp32", "precision.gradient_dtype": "fp32",
    "logging.sinks": [], "logging.prometheus.port": 0, "logging.prometheus.textfile": "",
    "precision.master_dtype": "fp32", "precision.fp8_head": False, "recompute.granularity": "none",
    "recompute.modules": ["attention"], "training.upcycle": False, "training.pad_batch": False, "evaluation.interval": 0, "cluster.device": "cpu",
    "cluster.nodes": 0, "cluster.devices_per_node": 0, "cluster.memory_bytes": 0, "cluster.reserved_bytes": 0,
    **{f"parallelism.{axis}": 1 for axis in ("dp", "tp", "pp", "cp", "ep")},
}

UNITS = {"": 1, "B": 1, **{p + "B": 1000**i for i, p in enumerate("KMGTP", 1)},
         **{p + "iB": 1024**i for i, p in enumerate("KMGTP", 1)}}


def to_bytes(text):
    """The size that a text such as "141 GB" means; None if it means none."""
    match = re.fullmatch(r"(\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+) *([KMGTP]?i?B?)", text)
    if not match or match[2] not in UNITS:
        return None
    size = round(float(match[1]) * UNITS[match[2]])
    return size if size < 2**63 else None


def is_int(value):
    return isinstance(value, int) and not isinstance(value, bool) and -2**63 <= value < 2**63


def fits(value, kind, words):
    """Whether a value is of a key's type and in its range."""
    name = kind[0]
    if name == "whole":
        return is_int(value) and kind[1] <= value <= kind[2]
    if name == "real":
        low, high, above, below = kind[1:]
        if not (is_int(value) or isinstance(value, float) and math.isfinite(value)):
            return False
        return (value > low if above else value >= low) and (value < high if below else value <= high)
    if name == "bytes":
        size = to_bytes(value) if isinstance(value, str) else value
        return is_int(size) and (kind[1] if len(kind) > 1 else 0) <= size <= COUNT
    if name == "word":
        return isinstance(value, str) and value in (words if kind[1] is None else kind[1])
    if name == "list":
        return isinstance(value, list) and all(fits(item, kind[1], words) for item in value)
    return isinstance(value, bool if name == "flag" else str)


def flatten(tables, words, prefix="", top=True):
    """({dotted key: value}, reasons): keys that are not known and values that do not fit are reasons."""
    values, reasons = {}, []
    for name, value in tables.items():
        path = f"{prefix}{name}"
        known = "." not in name
        if top and name == "extends":
            if not (isinstance(value, str) or isinstance(value, list) and all(isinstance(v, str) for v in value)):
                reasons.append("extends is no path")
        elif known and path in KEYS:
            if isinstance(value, dict):
                inner, found = flatten(value, words, path + ".", False)
                values.update(inner)
                reasons += found
            else:
                reasons.append(f"{path} is no table")
        elif known and prefix and name in KEYS.get(prefix[:-1], {}):
            kind = KEYS[prefix[:-1]][name]
            if fits(value, kind, words):
                values[path] = to_bytes(value) if kind[0] == "bytes" and isinstance(value, str) else value
            else:
                reasons.append(f"{path} has a value that it cannot have")
        else:
            reasons.append(f"unknown key {path}")
    return values, reasons


def split_shares(text):
    parts = [part.strip(" \t") for part in text.split(",")]
    if parts[-1] == "" and len(parts) == 4:
        parts.pop()
    if len(parts) > 3 or not all(re.fullmatch(r"\d+\.?\d*|\.\d+", part) for part in parts):
        return None
    shares = [float(part) for part in parts] + [0.0] * (3 - len(parts))
    return shares if sum(shares) > 0 else None


class Recipe:
    """Values by dotted key, defaults filled in, and what follows from them."""

    def __init__(self, values):
        self.said, self.values = values, {**DEFAULTS, **values}
        at = self.values.__getitem__
        self.heads, self.hidden = at("model.attention.heads"), at("model.hidden")
        self.kv_heads = at("model.attention.kv_heads") or self.heads
        self.dp, self.tp, self.pp, self.cp, self.ep = (at(f"parallelism.{a}") for a in ("dp", "tp", "pp", "cp", "ep"))
        self.world = self.dp * self.tp * self.pp * self.cp * self.ep
        self.chunks = self.pp * at("parallelism.virtual_stages")
        self.sequence, self.micro = at("data.sequence_length"), at("training.micro_batch")
        self.batch, self.step = at("training.global_batch"), self.micro * self.dp * self.ep
        head_dim = at("model.attention.head_dim")
        self.head_dim = head_dim or (self.hidden // self.heads if self.hidden % self.heads == 0 else None)
        swiglu = at("model.mlp.activation") == "swiglu"
        self.ffn = at("model.mlp.hidden") or (self.hidden * 8 // 3 // 64 * 64 if swiglu else 4 * self.hidden)
        multiple = at("model.vocab_multiple") * self.tp
        self.rows = -(-at("model.vocab") // multiple) * multiple
        self.swiglu = swiglu

        self.start, self.increment, self.over = (at(f"training.rampup.{n}") for n in ("start", "increment", "samples"))
        given = self.start > 0 and self.increment > 0 and self.over > 0
        self.grows = given and self.start < self.batch and (self.batch - self.start) % self.increment == 0
        self.grows = self.grows and (self.batch - self.start) // self.increment < 2_000_000
        if self.grows:
            self.steps = (self.batch - self.start) // self.increment

    def run(self, most_iterations, most_samples):
        """Iterations and samples of a growing batch, as far as whole iterations get."""
        iterations = consumed = 0
        while True:
            size, count = self.batch, INF
            if consumed < self.over:
                step = consumed * self.steps // self.over
                size = self.start + step * self.increment
                count = -(-(-(-(step + 1) * self.over // self.steps) - consumed) // size)
            count = min(count, most_iterations - iterations, (most_samples - consumed) // size)
            if count <= 0:
                return iterations, consumed
            iterations, consumed = iterations + count, consumed + count * size

    def length(self):
        """The training's samples."""
        iterations = self("training.iterations")
        if self.grows and iterations:
            return self.run(iterations, 2**63)[1]
        return iterations * self.batch or self("training.samples")

    def __call__(self, key):
        return self.values[key]

    def samples(self, name):
        """A length of the schedule in samples."""
        return self(f"schedule.{name}_iterations") * self.batch or self(f"schedule.{name}_samples")


def of_model(r):
    if r.head_dim is None:
        yield "heads do not divide hidden"
    else:
        if r("model.attention.position") == "rotary" and r.head_dim % 2:
            yield "rotary positions need an even head_dim"
        if r.head_dim > 512:
            yield "head_dim is over 512"
    if r.heads % r.kv_heads:
        yield "kv_heads do not divide heads"
    factor = r("model.attention.rope_scaling.factor")
    if factor != 1:
        if r("model.attention.position") != "rotary":
            yield "rope scaling without rotary positions"
        scaling = "model.attention.rope_scaling."
        if r(scaling + "low_frequency_factor") >= r(scaling + "high_frequency_factor"):
            yield "rope factors out of order"
    if r.ffn == 0:
        yield "no feed-forward width"
    if r("model.attention.position") != "none" and r.sequence > r("model.max_positions"):
        yield "sequence over max_positions"
    if r("recompute.granularity") == "selective" and not r("recompute.modules"):
        yield "selective recompute of nothing"


def of_size(r):
    """What the engine counts in 63 bits, with room for sums."""
    if r.head_dim is None:
        return
    layers, heads = float(r("model.layers")), float(r.heads) * r.head_dim
    vocab = float(r("model.vocab")) + float(r("model.vocab_multiple")) * r.tp
    parameters = layers * r.hidden * (4 * heads + 3.0 * r.ffn) + r.hidden * (2 * vocab + r("model.max_positions"))
    tokens = float(r.micro) * r.dp * r.ep * r.sequence
    if parameters > 2.0**50:
        yield "too many parameters to count"
    elif tokens * max(3 * heads, 2.0 * r.ffn, vocab, r.hidden) * layers > 2.0**59:
        yield "too many activations to count"


def of_layout(r):
    if r.kv_heads % r.tp:
        yield "tp does not divide the heads"
    if r.ffn % r.tp:
        yield "tp does not divide the feed-forward width"
    if r.ep > 1 or r("parallelism.expert_tp") or r("parallelism.expert_rows"):
        yield "experts without experts"
    if r("training.upcycle"):
        yield "upcycling without experts"
    if r.world >= 2**63:
        yield "the world overflows"
    nodes, each = r("cluster.nodes"), r("cluster.devices_per_node")
    if nodes and each and r.world != nodes * each:
        yield "the world is not the cluster"
    if nodes and not each and r.world % nodes:
        yield "the world does not fill the nodes"
    if each and not nodes and r.world > each and r.world % each:
        yield "the world does not fill whole nodes"
    zero, schedule = r("parallelism.zero_stage"), r("parallelism.schedule")
    has_shards = r("parallelism.dp") * r("parallelism.cp") * r("parallelism.ep") > 1
    if zero > 1 and schedule == "zero_bubble" and has_shards or zero > 2 and r("precision.compute") == "fp8":
        yield "zero_stage is not built for this"
    if r("parallelism.sequence_parallel") and r.tp == 1:
        yield "sequence parallel without tp"
    if r.cp > 1 and r.sequence % (2 * r.cp):
        yield "2 cp do not divide the sequence"
    elif r("parallelism.sequence_parallel") and r.sequence // r.cp % r.tp:
        yield "tp does not divide the sequence"
    if r("parallelism.exchange") == "push" and r("cluster.device") != "cpu" and each:
        span = r.tp
        if r.tp > 1 and each % span or r.cp > 1 and each % (span * r.cp):
            yield "push beyond a host"


def of_pipeline(r):
    virtual, schedule, stages = r("parallelism.virtual_stages"), r("parallelism.schedule"), r("parallelism.layers_per_stage")
    if virtual > 1 and (r.pp == 1 or schedule in ("1f1b", "zero_bubble")):
        yield "virtual stages without an interleaved pipeline"
    if virtual == 1 and schedule == "interleaved":
        yield "an interleaved pipeline of one chunk"
    if schedule == "zero_bubble" and r.pp == 1:
        yield "zero bubble without a pipeline"
    if r("model.layers") < r.chunks:
        yield "fewer layers than chunks"
    if stages and (len(stages) != r.chunks or 0 in stages or sum(stages) != r("model.layers")):
        yield "layers_per_stage does not add up"


def of_batch(r):
    padded, interleaved = r("training.pad_batch"), r("parallelism.virtual_stages") > 1 and r.pp > 1
    if r.batch % r.step and not padded:
        yield "the batch is not whole microbatches"
    else:
        microbatches = -(-r.batch // r.step)
        sizes = r.steps + 1 if r.grows else 1
        if sizes * ((r.start if r.grows else r.batch) + r.batch) // r.step * r.chunks // 2 > 2_000_000:
            yield "too many turns"
        if interleaved and not padded and microbatches % r.pp:
            yield "interleaved microbatches do not fill the pipeline"
    iterations, samples = r("training.iterations"), r("training.samples")
    if (iterations > 0) == (samples > 0):
        yield "the length is not said once"
    if max(r.length(), samples, r.over if r.grows else 0) > 2**32 - 3:
        yield "more samples than an index holds"
    if samples % r.batch if not r.grows else samples != r.run(INF, samples)[1]:
        yield "the samples are not whole batches"
    if (r.start or r.increment or r.over) and not r.grows:
        yield "the ramp does not lead to the batch"
    group = r.step * (r.pp if r("parallelism.virtual_stages") > 1 else 1)
    if r.grows and not padded and (r.start % group or r.increment % group):
        yield "a size of the ramp is not whole microbatches"
    if r.grows and padded and interleaved:
        yield "padded sizes of the ramp may not fill the pipeline"
    if 0 < r("cluster.memory_bytes") <= r("cluster.reserved_bytes"):
        yield "the reserve leaves no memory"


def of_schedule(r):
    if sum(r(f"schedule.warmup_{name}") > 0 for name in ("iterations", "samples", "fraction")) > 1:
        yield "the warm-up is said twice"
    if r("schedule.decay_iterations") and r("schedule.decay_samples"):
        yield "the decay is said twice"
    if r.grows and any(r(f"schedule.{name}_iterations") for name in ("warmup", "decay", "wsd_decay")):
        yield "the schedule of a growing batch counts iterations"
    decay = r.samples("decay") or r.length()
    fraction = r("schedule.warmup_fraction")
    warmup = fraction * decay if fraction else r.samples("warmup")
    if decay and warmup >= decay:
        yield "the warm-up outlasts the decay"
    if r("schedule.kind") == "wsd":
        if (r("schedule.wsd_decay_iterations") > 0) == (r("schedule.wsd_decay_samples") > 0):
            yield "wsd's last phase is not said once"
        elif decay and warmup + r.samples("wsd_decay") > decay:
            yield "wsd's last phase is too long"
    if max(r("schedule.min_learning_rate"), r("schedule.warmup_init")) > r("optimizer.learning_rate"):
        yield "a rate above the highest"


def of_optimizer(r):
    kinds = {"beta1": "adamw", "beta2": "adamw", "epsilon": "adamw", "momentum": "sgd"}
    if any(f"optimizer.{key}" in r.said and kind != r("optimizer.kind") for key, kind in kinds.items()):
        yield "a number of another optimizer"


def of_precision(r):
    compute = r("precision.compute")
    if r("precision.gradient_dtype") == "bf16" and compute not in ("bf16", "fp8"):
        yield "bf16 gradients of others"
    if r("precision.master_dtype") == "bf16" and compute != "bf16":
        yield "bf16 masters of others"
    narrow = [key for key in ("precision.gradient_dtype", "precision.master_dtype", "optimizer.moment_dtype")
              if r(key) != "fp32"]
    if r("cluster.device") == "cpu" and (compute != "fp32" or narrow):
        yield "the CPU computes in fp32"
    if not r("precision.fp8_head"):
        return
    if compute != "fp8" or r.tp > 1:
        yield "an fp8 head without fp8 or with tp"
        return
    halves = r.cp > 1 and r.pp == 1 and r("parallelism.overlap") != "off" and r.micro % 2 == 0
    tokens = r.micro * r.sequence // (2 * r.cp if halves else r.cp)
    if r.hidden % 16 or r.rows % 16 or tokens % 16:
        yield "an fp8 head of odd sizes"


def of_data(r):
    paths, weights = r("data.paths"), r("data.weights")
    if not paths:
        yield "no data"
    if weights and (len(weights) != len(paths) or sum(weights) == 0):
        yield "weights do not match paths"
    shares = split_shares(r("data.split"))
    if shares is None or shares[0] == 0:
        yield "a split without training data"
    elif r("evaluation.interval") and shares[1] == 0:
        yield "evaluation without validation data"
    files = r("data.tokenizer.vocab_file"), r("data.tokenizer.merges_file")
    if r("data.tokenizer.kind") == "gpt2" and not all(files):
        yield "gpt2 without its files"
    if r("data.tokenizer.kind") == "byte" and r("model.vocab") < 257:
        yield "a vocabulary without the bytes"
    tokenizer = r.said.get("data.tokenizer.kind")  # the default may be another one than that of the data
    if r("data.documents") == "masked" and tokenizer is None:
        yield "masked documents of a tokenizer that is not said"
    if r("data.packing") != "none" and r("data.documents") != "masked":
        yield "packed documents that see each other"
    if r("data.mask_end_of_document_loss") and tokenizer in (None, "none"):
        yield "a loss masked by a tokenizer that is not said"


def of_logging(r):
    textfile = r("logging.prometheus.textfile")
    if "prometheus" in r("logging.sinks") and not r("logging.prometheus.port") and not textfile:
        yield "prometheus without a port and a textfile"
    if textfile and not textfile.endswith(".prom"):
        yield "a textfile that the node exporter does not read"


def of_memory(r):
    """Weights alone, evenly over all ranks that could share them: more than that no layout saves."""
    room = r("cluster.memory_bytes") - r("cluster.reserved_bytes")
    if r("cluster.memory_bytes") == 0 or r.head_dim is None:
        return
    matrices = 2 * r.heads * r.head_dim + 2 * r.kv_heads * r.head_dim + (3 if r.swiglu else 2) * r.ffn
    elements = r("model.layers") * r.hidden * matrices
    width = 4 if r("precision.compute") == "fp32" else 2
    if elements * width > room * r.world:
        yield "the weights alone do not fit"


def of_lora(r):
    if "lora.rank" not in r.said and ("lora.alpha" in r.said or "lora.targets" in r.said):
        yield "adapters without a rank"


RULES = [of_model, of_size, of_layout, of_pipeline, of_batch, of_schedule, of_optimizer, of_precision, of_data, of_logging, of_memory, of_lora]


def merge(under, over):
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(under.get(key), dict):
            merge(under[key], value)
        else:
            under[key] = value
    return under


def load(path):
    """The tables of a file on top of all that it extends."""
    own = tomllib.loads(path.read_text())
    extends = own.pop("extends", [])
    tables = {}
    for entry in [extends] if isinstance(extends, str) else extends:
        merge(tables, load(path.parent / entry))
    return merge(tables, own)


def reasons_of_tables(tables, words=()):
    values, reasons = flatten(tables, words)
    reasons += [f"{key} is missing" for key in REQUIRED if key not in values]
    if reasons:
        return reasons
    recipe = Recipe(values)
    return [reason for rule in RULES for reason in rule(recipe)]


def reasons_of_text(text, words=()):
    """Why a recipe that extends nothing is unlawful; empty if it is lawful."""
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        return [f"no TOML: {error}"]
    return reasons_of_tables(tables, words)


def main():
    failed = False
    for name in sys.argv[1:]:
        reasons = reasons_of_tables(load(pathlib.Path(name)), words=[f"W{n}" for n in range(100, 500)])
        print(f"{name}: {'; '.join(reasons) or 'lawful'}")
        failed |= bool(reasons)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
