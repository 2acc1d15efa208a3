#!/usr/bin/python3
"""Oracle of the families that Hugging Face's folders hold: of each a small model with odd sizes, as a config.json, tensors
under the hub's names, and logits in float64. Written in NumPy from the papers and from the documentation of the formats;
it shares nothing with the engine, and reads each model from its config.json as any other program would.

usage: hf_families.py tests/oracles/hf_families.json        writes the file
       hf_families.py --check tests/oracles/hf_families.json  exits 1 if it would be another

The file holds no weights: element i (row-major) of a tensor is a formula of its case's salt and its name,

    z = splitmix64(fnv1a64(salt + "/" + name) + i)            both of 64 bits, + modulo 2^64
    value = bfloat16(float32(offset + scale · ((z >> 40) / 2^23 − 1)))      rounded to nearest even

so that files in float32 and in bfloat16 hold the same numbers. `offset` is 1 for gains that norms multiply by, else 0.

  cases.<name>.config    what config.json holds
  cases.<name>.salt      text
  cases.<name>.tensors   name → [shape, offset, scale]
  cases.<name>.logits    [sample][place in `positions`][vocabulary]
  tokens, positions      of all cases: ids [sample][column], and the columns whose logits are kept
"""
import json
import math
import sys

try:
    import numpy as np
except ImportError:
    sys.exit(77)  # ctest counts it as skipped

SAMPLES, SEQUENCE, POSITIONS, VOCAB = 2, 17, [0, 5, 16], 131
SMALLEST_GAP = 3e-4  # between the last chosen and the first not chosen of what a router compares


# Weights

def fnv1a64(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    return value


def splitmix64(x):
    z = x + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def bfloat16(values):
    bits = values.astype(np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) & np.uint32(0xFFFF0000)).view(np.float32)


def numbers(salt, name, shape, offset, scale):
    count = math.prod(shape)
    with np.errstate(over="ignore"):
        z = splitmix64(np.uint64(fnv1a64(f"{salt}/{name}")) + np.arange(count, dtype=np.uint64))
    unit = (z >> np.uint64(40)).astype(np.float64) / 2**23 - 1
    return bfloat16(offset + scale * unit).astype(np.float64).reshape(shape)


class Weights:
    """A model's tensors; the first use of a name sets its shape. Also the smallest gap of its routers' choices."""

    def __init__(self, salt):
        self.salt, self.tensors, self.gap = salt, {}, math.inf

    def __call__(self, name, *shape, offset=0, scale=0.35):
        description = [list(shape), offset, scale]
        assert self.tensors.setdefault(name, description) == description, name
        return numbers(self.salt, name, shape, offset, scale)

    def gain(self, name, width):
        return self(name, width, offset=1, scale=0.3)

    def largest(self, scores, count):
        """True at the `count` largest of the last dim."""
        order = np.argsort(-scores, axis=-1, kind="stable")
        ranked = np.take_along_axis(scores, order, -1)
        if count < scores.shape[-1]:
            self.gap = min(self.gap, float((ranked[..., count - 1] - ranked[..., count]).min()))
        chosen = np.zeros(scores.shape, dtype=bool)
        np.put_along_axis(chosen, order[..., :count], True, -1)
        return chosen


# Parts

def linear(w, name, x, out, bias=False):
    """x [..., in] times a stored [out, in]."""
    y = x @ w(name + ".weight", out, x.shape[-1]).T
    return y + w(name + ".bias", out) if bias else y


def conv1d(w, name, x, out):
    """GPT-2's: stored [in, out]."""
    return x @ w(name + ".weight", x.shape[-1], out) + w(name + ".bias", out)


def layer_norm(w, name, x, epsilon):
    centred = x - x.mean(-1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    return normed * w.gain(name + ".weight", x.shape[-1]) + w(name + ".bias", x.shape[-1])


def rms_norm(w, name, x, epsilon):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * w.gain(name + ".weight", x.shape[-1])


def gemma_norm(w, name, x, epsilon):
    """The stored numbers are the gains less 1."""
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * (1 + w(name + ".weight", x.shape[-1], scale=0.3))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_new": gelu_tanh, "gelu_fast": gelu_tanh, "gelu_pytorch_tanh": gelu_tanh,
    "silu": lambda x: x * sigmoid(x),
    "relu": lambda x: np.maximum(x, 0),
}


class Rope:
    """Frequencies [width / 2] by the rule that a config names, and the factor of cosine and sine. The keys are those of
    transformers 5 (rope_parameters) or of 4 (rope_theta, rope_scaling, partial_rotary_factor)."""

    def __init__(self, config, head, theta=10000.0, settings=None):
        if settings is None:
            settings = config.get("rope_parameters") or config.get("rope_scaling") or {}
        settings = {"partial_rotary_factor": config.get("partial_rotary_factor", 1.0),
                    "rope_theta": config.get("rope_theta", theta), **settings}
        kind = settings.get("rope_type", settings.get("type", "default"))
        width = int(head * settings["partial_rotary_factor"])
        assert width % 2 == 0
        theta = settings["rope_theta"]
        longest = config["max_position_embeddings"]
        original = config.get("original_max_position_embeddings",
                              settings.get("original_max_position_embeddings", longest))
        self.factor = 1.0
        self.inverse = theta ** (-np.arange(0, width, 2) / width)
        stretch = settings.get("factor", 1.0)
        if kind == "linear":
            self.inverse = self.inverse / stretch
        elif kind == "llama3":
            low, high = settings["low_freq_factor"], settings["high_freq_factor"]
            wave = 2 * math.pi / self.inverse
            smooth = (original / wave - low) / (high - low)
            between = (1 - smooth) * self.inverse / stretch + smooth * self.inverse
            bands = wave > original / low, wave < original / high
            assert bands[0].any() and bands[1].any() and not (bands[0] | bands[1]).all()
            self.inverse = np.where(bands[0], self.inverse / stretch, np.where(bands[1], self.inverse, between))
        elif kind == "yarn":
            def index_of(turns):
                return width * math.log(original / (2 * math.pi * turns)) / (2 * math.log(theta))
            low = max(math.floor(index_of(settings.get("beta_fast", 32))), 0)
            high = min(math.ceil(index_of(settings.get("beta_slow", 1))), width - 1)
            high = high + 0.001 if high == low else high
            ramp = np.clip((np.arange(width // 2) - low) / (high - low), 0, 1)
            self.inverse = self.inverse * (1 - ramp) + self.inverse / stretch * ramp
            mscale, all_dim = settings.get("mscale"), settings.get("mscale_all_dim")
            if mscale and all_dim:
                self.factor = yarn_size(stretch, mscale) / yarn_size(stretch, all_dim)
            else:
                self.factor = yarn_size(stretch, 1)
        elif kind == "longrope":
            divisors = settings["long_factor" if SEQUENCE > original else "short_factor"]
            assert len(divisors) == width // 2
            self.inverse = self.inverse / np.array(divisors)
            stretch = longest / original
            self.factor = math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
        else:
            assert kind == "default", kind

    def __call__(self, x, interleaved=False):
        """x [sample, column, head, feature]; pairs are of feature i and i + width/2, or neighbours; the rest passes."""
        half = len(self.inverse)
        angle = (np.arange(x.shape[1])[:, None] * self.inverse)[None, :, None, :]
        cos, sin = self.factor * np.cos(angle), self.factor * np.sin(angle)
        turned = x.copy()
        first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
        turned[..., first] = x[..., first] * cos - x[..., second] * sin
        turned[..., second] = x[..., second] * cos + x[..., first] * sin
        return turned


def yarn_size(stretch, weight):
    return 0.1 * weight * math.log(stretch) + 1 if stretch > 1 else 1.0


def attention(q, k, v, scale=None, window=None, cap=None):
    """[sample, column, heads, feature] each; k and v may have fewer heads. Causal; of `window` the key itself is one."""
    group = q.shape[2] // k.shape[2]
    k, v = np.repeat(k, group, axis=2), np.repeat(v, group, axis=2)
    scores = np.einsum("bihe,bjhe->bhij", q, k) * (q.shape[-1]**-0.5 if scale is None else scale)
    if cap is not None:
        scores = cap * np.tanh(scores / cap)
    distance = np.arange(q.shape[1])[:, None] - np.arange(q.shape[1])[None, :]
    hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
    mixed = np.einsum("bhij,bjhe->bihe", softmax(np.where(hidden, -np.inf, scores)), v)
    return mixed.reshape(*mixed.shape[:2], -1)


def heads(x, width):
    return x.reshape(*x.shape[:2], -1, width)


# GPT-2, GPT-NeoX, GPT-J, OPT, Falcon

def gpt2(w, c, tokens, prefix="transformer."):
    width, ffn = c["n_embd"], c.get("n_inner") or 4 * c["n_embd"]
    epsilon, act = c["layer_norm_epsilon"], ACTIVATIONS[c["activation_function"]]
    table = w(prefix + "wte.weight", c["vocab_size"], width)
    x = table[tokens] + w(prefix + "wpe.weight", c["n_positions"], width)[:tokens.shape[1]]
    for i in range(c["n_layer"]):
        at = f"{prefix}h.{i}."
        qkv = conv1d(w, at + "attn.c_attn", layer_norm(w, at + "ln_1", x, epsilon), 3 * width)
        q, k, v = (heads(part, width // c["n_head"]) for part in np.split(qkv, 3, axis=-1))
        x = x + conv1d(w, at + "attn.c_proj", attention(q, k, v), width)
        inner = act(conv1d(w, at + "mlp.c_fc", layer_norm(w, at + "ln_2", x, epsilon), ffn))
        x = x + conv1d(w, at + "mlp.c_proj", inner, width)
    return layer_norm(w, prefix + "ln_f", x, epsilon) @ table.T


def gpt2_bare(w, c, tokens):
    """The first release's file: no prefix, and masks that are no parameters among the tensors."""
    for i in range(c["n_layer"]):
        w(f"h.{i}.attn.bias", 1, 1, c["n_positions"], c["n_positions"])
    return gpt2(w, c, tokens, prefix="")


def gpt_neox(w, c, tokens):
    width, epsilon, act = c["hidden_size"], c["layer_norm_eps"], ACTIVATIONS[c["hidden_act"]]
    head = width // c["num_attention_heads"]
    if "rotary_pct" in c:
        rope = Rope(c, head, settings={"partial_rotary_factor": c["rotary_pct"], "rope_theta": c["rotary_emb_base"]})
    else:
        rope = Rope(c, head)
    x = w("gpt_neox.embed_in.weight", c["vocab_size"], width)[tokens]
    for i in range(c["num_hidden_layers"]):
        at = f"gpt_neox.layers.{i}."
        qkv = linear(w, at + "attention.query_key_value", layer_norm(w, at + "input_layernorm", x, epsilon), 3 * width,
                     bias=True)
        packed = qkv.reshape(*qkv.shape[:2], -1, 3, head)  # of each head its query, key, value
        mixed = attention(rope(packed[..., 0, :]), rope(packed[..., 1, :]), packed[..., 2, :])
        mixed = linear(w, at + "attention.dense", mixed, width, bias=True)
        before = x if c["use_parallel_residual"] else x + mixed
        inner = linear(w, at + "mlp.dense_h_to_4h", layer_norm(w, at + "post_attention_layernorm", before, epsilon),
                       c["intermediate_size"], bias=True)
        x = x + mixed + linear(w, at + "mlp.dense_4h_to_h", act(inner), width, bias=True)
    return linear(w, "embed_out", layer_norm(w, "gpt_neox.final_layer_norm", x, epsilon), c["vocab_size"])


def gptj(w, c, tokens):
    width, epsilon, act = c["n_embd"], c["layer_norm_epsilon"], ACTIVATIONS[c["activation_function"]]
    head, ffn = width // c["n_head"], c["n_inner"] or 4 * c["n_embd"]
    rope = Rope({"max_position_embeddings": c["n_positions"]}, c["rotary_dim"])
    x = w("transformer.wte.weight", c["vocab_size"], width)[tokens]
    for i in range(c["n_layer"]):
        at = f"transformer.h.{i}."
        normed = layer_norm(w, at + "ln_1", x, epsilon)
        q, k, v = (heads(linear(w, f"{at}attn.{part}_proj", normed, width), head) for part in "qkv")
        mixed = attention(rope(q, interleaved=True), rope(k, interleaved=True), v)
        mixed = linear(w, at + "attn.out_proj", mixed, width)
        inner = linear(w, at + "mlp.fc_in", normed, ffn, bias=True)
        x = x + mixed + linear(w, at + "mlp.fc_out", act(inner), width, bias=True)
    return linear(w, "lm_head", layer_norm(w, "transformer.ln_f", x, epsilon), c["vocab_size"], bias=True)


def opt(w, c, tokens):
    width, act, at = c["hidden_size"], ACTIVATIONS[c["activation_function"]], "model.decoder."
    head = width // c["num_attention_heads"]
    table = w(at + "embed_tokens.weight", c["vocab_size"], width)
    positions = w(at + "embed_positions.weight", c["max_position_embeddings"] + 2, width)
    x = table[tokens] + positions[2:2 + tokens.shape[1]]  # the first two rows are of no position
    for i in range(c["num_hidden_layers"]):
        at = f"model.decoder.layers.{i}."
        normed = layer_norm(w, at + "self_attn_layer_norm", x, 1e-5)
        q, k, v = (heads(linear(w, f"{at}self_attn.{part}_proj", normed, width, bias=True), head) for part in "qkv")
        x = x + linear(w, at + "self_attn.out_proj", attention(q, k, v), width, bias=True)
        inner = linear(w, at + "fc1", layer_norm(w, at + "final_layer_norm", x, 1e-5), c["ffn_dim"], bias=True)
        x = x + linear(w, at + "fc2", act(inner), width, bias=True)
    return layer_norm(w, "model.decoder.final_layer_norm", x, 1e-5) @ table.T


def falcon(w, c, tokens):
    width, epsilon, bias = c["hidden_size"], c["layer_norm_epsilon"], c["bias"]
    head = width // c["num_attention_heads"]
    grouped = c["new_decoder_architecture"]
    kv = c["num_kv_heads"] if grouped else 1 if c["multi_query"] else c["num_attention_heads"]
    rope = Rope(c, head)
    table = w("transformer.word_embeddings.weight", c["vocab_size"], width)
    x = table[tokens]
    for i in range(c["num_hidden_layers"]):
        at = f"transformer.h.{i}."
        for_mlp = None
        if grouped:
            normed, for_mlp = layer_norm(w, at + "ln_attn", x, epsilon), layer_norm(w, at + "ln_mlp", x, epsilon)
        else:
            normed = layer_norm(w, at + "input_layernorm", x, epsilon)
        qkv = linear(w, at + "self_attention.query_key_value", normed, width + 2 * kv * head, bias=bias)
        packed = qkv.reshape(*qkv.shape[:2], kv, -1, head)  # of each group its queries, key, value
        q = packed[..., :-2, :].reshape(*qkv.shape[:2], -1, head)
        mixed = attention(rope(q), rope(packed[..., -2, :]), packed[..., -1, :])
        mixed = linear(w, at + "self_attention.dense", mixed, width, bias=bias)
        if not grouped:
            for_mlp = normed if c["parallel_attn"] else layer_norm(w, at + "post_attention_layernorm", x + mixed, epsilon)
        inner = ACTIVATIONS["gelu"](linear(w, at + "mlp.dense_h_to_4h", for_mlp, c.get("ffn_hidden_size", 4 * width), bias=bias))
        x = x + mixed + linear(w, at + "mlp.dense_4h_to_h", inner, width, bias=bias)
    normed = layer_norm(w, "transformer.ln_f", x, epsilon)
    return normed @ table.T if c.get("tie_word_embeddings", True) else linear(w, "lm_head", normed, c["vocab_size"])


# Llama and those that differ from it by little

def embedded(w, c, tokens):
    return w("model.embed_tokens.weight", c["vocab_size"], c["hidden_size"])[tokens]


def head_of(w, c, x, tied=False):
    if c.get("tie_word_embeddings", tied):
        return x @ w("model.embed_tokens.weight", c["vocab_size"], c["hidden_size"]).T
    return linear(w, "lm_head", x, c["vocab_size"])


def gated(w, at, x, width, act="silu", bias=False):
    gate, up = (linear(w, f"{at}.{part}_proj", x, width, bias=bias) for part in ("gate", "up"))
    return linear(w, at + ".down_proj", ACTIVATIONS[act](gate) * up, x.shape[-1], bias=bias)


def projections(w, c, at, x, head, bias=False):
    """Queries, keys and values, not rotated."""
    for part, count in (("q", "num_attention_heads"), ("k", "num_key_value_heads"), ("v", "num_key_value_heads")):
        yield heads(linear(w, f"{at}.{part}_proj", x, c[count] * head, bias=bias), head)


def head_width(c):
    return c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]


def skeleton(w, c, tokens, mlp=None, theta=10000.0, qkv_bias=False, o_bias=False, windows=None, head_norm=False,
             whole_norm=False, norm=rms_norm, epsilon=None):
    """Llama, with what its relatives do otherwise. mlp(i, x): the feed-forward part; windows: of each layer."""
    head, width = head_width(c), c["hidden_size"]
    epsilon = c["rms_norm_eps"] if epsilon is None else epsilon
    rope = Rope(c, head, theta)
    x = embedded(w, c, tokens)
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}.self_attn"
        normed = norm(w, f"model.layers.{i}.input_layernorm", x, epsilon)
        q, k, v = projections(w, c, at, normed, head, bias=qkv_bias)
        if head_norm:
            q, k = rms_norm(w, at + ".q_norm", q, epsilon), rms_norm(w, at + ".k_norm", k, epsilon)
        if whole_norm:
            q, k = (heads(rms_norm(w, f"{at}.{name}_norm", part.reshape(*part.shape[:2], -1), epsilon), head)
                    for name, part in (("q", q), ("k", k)))
        mixed = attention(rope(q), rope(k), v, window=windows[i] if windows else None)
        x = x + linear(w, at + ".o_proj", mixed, width, bias=o_bias)
        normed = norm(w, f"model.layers.{i}.post_attention_layernorm", x, epsilon)
        if mlp is None:
            x = x + gated(w, f"model.layers.{i}.mlp", normed, c["intermediate_size"], c["hidden_act"], c.get("mlp_bias", False))
        else:
            x = x + mlp(i, normed)
    return head_of(w, c, norm(w, "model.norm", x, epsilon))


def llama(w, c, tokens):
    bias = c.get("attention_bias", False)
    return skeleton(w, c, tokens, qkv_bias=bias, o_bias=bias)


def mistral(w, c, tokens):
    return skeleton(w, c, tokens, windows=[c["sliding_window"]] * c["num_hidden_layers"])


def qwen2_windows(c):
    if not c["use_sliding_window"]:
        return None
    return [c["sliding_window"] if i >= c["max_window_layers"] else None for i in range(c["num_hidden_layers"])]


def qwen2(w, c, tokens):
    return skeleton(w, c, tokens, qkv_bias=True, windows=qwen2_windows(c))


def qwen3(w, c, tokens):
    return skeleton(w, c, tokens, head_norm=True, windows=qwen2_windows(c))


def stablelm(w, c, tokens):
    return skeleton(w, c, tokens, qkv_bias=c["use_qkv_bias"], norm=layer_norm, epsilon=c["layer_norm_eps"])


def olmo2(w, c, tokens):
    """Norms of what the branches give, and of the whole queries and keys."""
    head, width, epsilon = head_width(c), c["hidden_size"], c["rms_norm_eps"]
    rope = Rope(c, head)
    x = embedded(w, c, tokens)
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        q, k, v = projections(w, c, at + "self_attn", x, head)
        q, k = (heads(rms_norm(w, f"{at}self_attn.{name}_norm", part.reshape(*part.shape[:2], -1), epsilon), head)
                for name, part in (("q", q), ("k", k)))
        mixed = linear(w, at + "self_attn.o_proj", attention(rope(q), rope(k), v), width)
        x = x + rms_norm(w, at + "post_attention_layernorm", mixed, epsilon)
        x = x + rms_norm(w, at + "post_feedforward_layernorm", gated(w, at + "mlp", x, c["intermediate_size"]), epsilon)
    return head_of(w, c, rms_norm(w, "model.norm", x, epsilon))


def gemma(w, c, tokens):
    head, epsilon = c["head_dim"], c["rms_norm_eps"]
    rope = Rope(c, head)
    x = embedded(w, c, tokens) * math.sqrt(c["hidden_size"])
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        q, k, v = projections(w, c, at + "self_attn", gemma_norm(w, at + "input_layernorm", x, epsilon), head)
        x = x + linear(w, at + "self_attn.o_proj", attention(rope(q), rope(k), v), c["hidden_size"])
        normed = gemma_norm(w, at + "post_attention_layernorm", x, epsilon)
        x = x + gated(w, at + "mlp", normed, c["intermediate_size"], c["hidden_activation"])
    return head_of(w, c, gemma_norm(w, "model.norm", x, epsilon), tied=True)


def gemma2(w, c, tokens, head_norms=False):
    """Gemma 2 and 3: norms before and after each branch, every layer with its own window."""
    head, epsilon = c["head_dim"], c["rms_norm_eps"]
    if head_norms:
        pattern = c.get("sliding_window_pattern", 6)
        kinds = c.get("layer_types") or ["full_attention" if (i + 1) % pattern == 0 else "sliding_attention"
                                         for i in range(c["num_hidden_layers"])]
        if "rope_parameters" in c:
            ropes = {kind: Rope(c, head, settings=settings) for kind, settings in c["rope_parameters"].items()}
        else:
            ropes = {"full_attention": Rope(c, head),
                     "sliding_attention": Rope(c, head, settings={"rope_theta": c["rope_local_base_freq"]})}
    else:
        kinds = c.get("layer_types") or ["full_attention" if i % 2 else "sliding_attention"
                                         for i in range(c["num_hidden_layers"])]
        ropes = dict.fromkeys(("full_attention", "sliding_attention"), Rope(c, head))
    assert len(set(kinds)) == 2
    x = embedded(w, c, tokens) * math.sqrt(c["hidden_size"])
    for i, kind in enumerate(kinds):
        at, rope = f"model.layers.{i}.", ropes[kind]
        q, k, v = projections(w, c, at + "self_attn", gemma_norm(w, at + "input_layernorm", x, epsilon), head)
        if head_norms:
            q, k = (gemma_norm(w, f"{at}self_attn.{name}_norm", part, epsilon) for name, part in (("q", q), ("k", k)))
        mixed = attention(rope(q), rope(k), v, scale=c["query_pre_attn_scalar"]**-0.5,
                          window=c["sliding_window"] if kind == "sliding_attention" else None,
                          cap=c.get("attn_logit_softcapping"))
        mixed = linear(w, at + "self_attn.o_proj", mixed, c["hidden_size"])
        x = x + gemma_norm(w, at + "post_attention_layernorm", mixed, epsilon)
        branch = gated(w, at + "mlp", gemma_norm(w, at + "pre_feedforward_layernorm", x, epsilon), c["intermediate_size"],
                       c["hidden_activation"])
        x = x + gemma_norm(w, at + "post_feedforward_layernorm", branch, epsilon)
    logits = head_of(w, c, gemma_norm(w, "model.norm", x, epsilon), tied=True)
    cap = c.get("final_logit_softcapping")
    return cap * np.tanh(logits / cap) if cap else logits


def gemma3(w, c, tokens):
    return gemma2(w, c, tokens, head_norms=True)


def phi3(w, c, tokens):
    """One product of all queries, all keys and all values; one of the gate and the other half."""
    head, width, epsilon = head_width(c), c["hidden_size"], c["rms_norm_eps"]
    rope = Rope(c, head)
    queries, keys = c["num_attention_heads"] * head, c["num_key_value_heads"] * head
    x = embedded(w, c, tokens)
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        qkv = linear(w, at + "self_attn.qkv_proj", rms_norm(w, at + "input_layernorm", x, epsilon), queries + 2 * keys)
        q, k, v = (heads(part, head) for part in np.split(qkv, [queries, queries + keys], axis=-1))
        x = x + linear(w, at + "self_attn.o_proj", attention(rope(q), rope(k), v, window=c["sliding_window"]), width)
        both = linear(w, at + "mlp.gate_up_proj", rms_norm(w, at + "post_attention_layernorm", x, epsilon),
                      2 * c["intermediate_size"])
        gate, up = np.split(both, 2, axis=-1)
        x = x + linear(w, at + "mlp.down_proj", ACTIVATIONS["silu"](gate) * up, width)
    return head_of(w, c, rms_norm(w, "model.norm", x, epsilon))


# Experts

def experts(w, x, weights, width, names):
    """All experts on all tokens, times the weights [sample, column, expert]. names(e): of gate, up, down."""
    result = np.zeros_like(x)
    for e in range(weights.shape[-1]):
        gate, up, down = names(e)
        inner = ACTIVATIONS["silu"](linear(w, gate, x, width)) * linear(w, up, x, width)
        result = result + weights[..., e, None] * linear(w, down, inner, x.shape[-1])
    return result


def fused_experts(w, at, x, weights, width):
    """As transformers 5 holds them: [expert, gate rows then up rows, in], [expert, out, in]."""
    count = weights.shape[-1]
    wide = w(at + ".gate_up_proj", count, 2 * width, x.shape[-1])
    narrow = w(at + ".down_proj", count, x.shape[-1], width)
    gate, up = np.split(np.einsum("bsd,xfd->bsxf", x, wide), 2, axis=-1)
    return np.einsum("bsxf,xdf,bsx->bsd", ACTIVATIONS["silu"](gate) * up, narrow, weights)


def softmax_route(w, name, x, count, chosen, normalised):
    probabilities = softmax(linear(w, name, x, count))
    weights = np.where(w.largest(probabilities, chosen), probabilities, 0)
    return weights / weights.sum(-1, keepdims=True) if normalised else weights


def named(at):
    return lambda e: [f"{at}.{e}.{part}_proj" for part in ("gate", "up", "down")]


def mixtral(w, c, tokens):
    def mlp(i, x):
        at = f"model.layers.{i}.block_sparse_moe"
        weights = softmax_route(w, at + ".gate", x, c["num_local_experts"], c["num_experts_per_tok"], True)
        return experts(w, x, weights, c["intermediate_size"], lambda e: [f"{at}.experts.{e}.{part}" for part in ("w1", "w3", "w2")])
    return skeleton(w, c, tokens, mlp, windows=[c["sliding_window"]] * c["num_hidden_layers"])


def olmoe(w, c, tokens):
    def mlp(i, x):
        at = f"model.layers.{i}.mlp"
        weights = softmax_route(w, at + ".gate", x, c["num_experts"], c["num_experts_per_tok"], c["norm_topk_prob"])
        return experts(w, x, weights, c["intermediate_size"], named(at + ".experts"))
    return skeleton(w, c, tokens, mlp, whole_norm=True)


def qwen_mlp(w, c, fused=False):
    def mlp(i, x):
        at = f"model.layers.{i}.mlp"
        if i in c.get("mlp_only_layers", []) or (i + 1) % c["decoder_sparse_step"] != 0:
            return gated(w, at, x, c["intermediate_size"])
        weights = softmax_route(w, at + ".gate", x, c["num_experts"], c["num_experts_per_tok"], c["norm_topk_prob"])
        if fused:
            y = fused_experts(w, at + ".experts", x, weights, c["moe_intermediate_size"])
        else:
            y = experts(w, x, weights, c["moe_intermediate_size"], named(at + ".experts"))
        if "shared_expert_intermediate_size" in c:
            shared = gated(w, at + ".shared_expert", x, c["shared_expert_intermediate_size"])
            y = y + sigmoid(linear(w, at + ".shared_expert_gate", x, 1)) * shared
        return y
    return mlp


def qwen2_moe(w, c, tokens):
    return skeleton(w, c, tokens, qwen_mlp(w, c), qkv_bias=True, windows=qwen2_windows(c))


def qwen3_moe(w, c, tokens):
    return skeleton(w, c, tokens, qwen_mlp(w, c), head_norm=True)


def qwen3_moe_fused(w, c, tokens):
    return skeleton(w, c, tokens, qwen_mlp(w, c, fused=True), head_norm=True)


# DeepSeek

def latent_attention(w, c, at, x, rope, scale):
    nope, turned, value, latent = (c[key] for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank"))
    count = c["num_attention_heads"]
    if c["q_lora_rank"]:
        low = rms_norm(w, at + ".q_a_layernorm", linear(w, at + ".q_a_proj", x, c["q_lora_rank"]), c["rms_norm_eps"])
        q = linear(w, at + ".q_b_proj", low, count * (nope + turned))
    else:
        q = linear(w, at + ".q_proj", x, count * (nope + turned))
    q_nope, q_turned = np.split(heads(q, nope + turned), [nope], axis=-1)
    both = linear(w, at + ".kv_a_proj_with_mqa", x, latent + turned)
    low = rms_norm(w, at + ".kv_a_layernorm", both[..., :latent], c["rms_norm_eps"])
    k_nope, v = np.split(heads(linear(w, at + ".kv_b_proj", low, count * (nope + value)), nope + value), [nope], axis=-1)
    k_turned = rope(both[..., None, latent:], interleaved=True)
    q = np.concatenate([q_nope, rope(q_turned, interleaved=True)], axis=-1)
    k = np.concatenate([k_nope, np.broadcast_to(k_turned, (*k_nope.shape[:3], turned))], axis=-1)
    return linear(w, at + ".o_proj", attention(q, k, v, scale=scale), c["hidden_size"])


def groups_of(w, scores, c, group_score):
    """True for the experts of the groups that may be chosen from."""
    by_group = scores.reshape(*scores.shape[:-1], c["n_group"], -1)
    return np.repeat(w.largest(group_score(by_group), c["topk_group"]), by_group.shape[-1], axis=-1)


def v2_route(w, c, at, x):
    scores = softmax(linear(w, at + ".gate", x, c["n_routed_experts"]))
    ranked = scores
    if c["topk_method"] == "group_limited_greedy":
        ranked = np.where(groups_of(w, scores, c, lambda g: g.max(-1)), scores, 0)
    return c["routed_scaling_factor"] * np.where(w.largest(ranked, c["num_experts_per_tok"]), scores, 0)


def v3_route(w, c, at, x):
    scores = sigmoid(linear(w, at + ".gate", x, c["n_routed_experts"]))
    choice = scores + w(at + ".gate.e_score_correction_bias", c["n_routed_experts"], scale=0.2)
    allowed = groups_of(w, choice, c, lambda g: np.sort(g, axis=-1)[..., -2:].sum(-1))
    weights = np.where(w.largest(np.where(allowed, choice, 0), c["num_experts_per_tok"]), scores, 0)
    assert not (weights[~allowed] > 0).any()
    if c["norm_topk_prob"]:
        weights = weights / (weights.sum(-1, keepdims=True) + 1e-20)
    return weights * c["routed_scaling_factor"]


def deepseek(w, c, tokens, route):
    epsilon, settings = c["rms_norm_eps"], c.get("rope_scaling") or {}
    rope = Rope(c, c["qk_rope_head_dim"])
    scale = (c["qk_nope_head_dim"] + c["qk_rope_head_dim"])**-0.5
    if settings.get("mscale_all_dim"):
        scale *= yarn_size(settings["factor"], settings["mscale_all_dim"])**2
    x = embedded(w, c, tokens)
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        x = x + latent_attention(w, c, at + "self_attn", rms_norm(w, at + "input_layernorm", x, epsilon), rope, scale)
        normed = rms_norm(w, at + "post_attention_layernorm", x, epsilon)
        at += "mlp"
        if i < c["first_k_dense_replace"]:
            x = x + gated(w, at, normed, c["intermediate_size"])
            continue
        each = c["moe_intermediate_size"]
        y = experts(w, normed, route(w, c, at, normed), each, named(at + ".experts"))
        x = x + y + gated(w, at + ".shared_experts", normed, each * c["n_shared_experts"])
    return head_of(w, c, rms_norm(w, "model.norm", x, epsilon))


def deepseek_v2(w, c, tokens):
    return deepseek(w, c, tokens, v2_route)


def deepseek_v3(w, c, tokens):
    return deepseek(w, c, tokens, v3_route)


# Configs, with the keys that the hub's files of each family hold

def decoder(model_type, architecture, width=40, count=5, kv=1, ffn=37, layers=3, **more):
    return {"architectures": [architecture], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
            "hidden_size": width, "initializer_range": 0.02, "intermediate_size": ffn, "max_position_embeddings": 29,
            "model_type": model_type, "num_attention_heads": count, "num_hidden_layers": layers, "num_key_value_heads": kv,
            "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
            "transformers_version": "4.51.0", "use_cache": True, "vocab_size": VOCAB, **more}


def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


def llama_config(**more):
    return decoder("llama", "LlamaForCausalLM", **{"attention_bias": False, "mlp_bias": False, "pretraining_tp": 1,
                                                   "rope_scaling": None, **more})


def gemma_config(model_type, architecture, **more):
    return without(decoder(model_type, architecture, attention_bias=False, hidden_activation="gelu_pytorch_tanh", pad_token_id=0,
                           **{"hidden_act": "gelu_pytorch_tanh", "head_dim": 12, **more}), "tie_word_embeddings")


def old_decoder(model_type, architecture, **more):
    return {"activation_function": "gelu_new", "architectures": [architecture], "attn_pdrop": 0.1, "bos_token_id": 130,
            "embd_pdrop": 0.1, "eos_token_id": 130, "initializer_range": 0.02, "layer_norm_epsilon": 1e-5, "model_type": model_type,
            "n_embd": 40, "n_head": 5, "n_inner": 37, "n_layer": 3, "n_positions": 29, "resid_pdrop": 0.1,
            "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
            "summary_type": "cls_index", "summary_use_proj": True, "vocab_size": VOCAB, **more}


def falcon_config(**more):
    return {"alibi": False, "apply_residual_connection_post_layernorm": False, "architectures": ["FalconForCausalLM"],
            "attention_dropout": 0.0, "bias": False, "bos_token_id": 11, "eos_token_id": 11, "hidden_dropout": 0.0,
            "hidden_size": 40, "initializer_range": 0.02, "layer_norm_epsilon": 1e-5, "max_position_embeddings": 29,
            "model_type": "falcon", "multi_query": True, "new_decoder_architecture": False, "num_attention_heads": 5,
            "num_hidden_layers": 3, "parallel_attn": True, "rope_theta": 10000.0, "torch_dtype": "bfloat16",
            "transformers_version": "4.27.4", "use_cache": True, "vocab_size": VOCAB, **more}


def phi3_config(**more):
    return decoder("phi3", "Phi3ForCausalLM", **{"attention_bias": False, "embd_pdrop": 0.0, "original_max_position_embeddings": 29,
                                                 "pad_token_id": 0, "resid_pdrop": 0.0, "rms_norm_eps": 1e-5,
                                                 "rope_scaling": None, "sliding_window": 5, **more})


def neox_config(**more):
    return {"architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu", "hidden_size": 40,
            "initializer_range": 0.02, "intermediate_size": 37, "layer_norm_eps": 1e-5, "max_position_embeddings": 29,
            "model_type": "gpt_neox", "num_attention_heads": 5, "num_hidden_layers": 3, "tie_word_embeddings": False,
            "torch_dtype": "float16", "transformers_version": "4.24.0", "use_cache": True, "use_parallel_residual": True,
            "vocab_size": VOCAB, **more}


def qwen_config(model_type, architecture, **more):
    return decoder(model_type, architecture, **{"max_window_layers": 3, "use_sliding_window": False, "sliding_window": 5, **more})


def deepseek_config(model_type, architecture, **more):
    return decoder(model_type, architecture, **{
        "kv": 5, "attention_bias": False, "aux_loss_alpha": 0.001, "first_k_dense_replace": 1, "kv_lora_rank": 10,
        "max_position_embeddings": 256, "moe_intermediate_size": 11, "moe_layer_freq": 1, "n_shared_experts": 2, "norm_topk_prob": False,
        "num_experts_per_tok": 3, "pretraining_tp": 1, "q_lora_rank": None, "qk_nope_head_dim": 6, "qk_rope_head_dim": 8,
        "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 4, "mscale": 0.707, "mscale_all_dim": 0.707,
                         "original_max_position_embeddings": 64, "type": "yarn"},
        "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": True, "v_head_dim": 7, **more})


LLAMA3 = {"factor": 8.0, "high_freq_factor": 1.25, "low_freq_factor": 0.1, "original_max_position_embeddings": 8,
          "rope_type": "llama3"}
GROUPS = dict(width=36, count=6)  # heads of width 6 where a config does not say another
MOE = dict(num_experts=9, num_experts_per_tok=4, output_router_logits=False, router_aux_loss_coef=0.01)
QWEN_MOE = dict(decoder_sparse_step=1, moe_intermediate_size=11, norm_topk_prob=False, num_experts=7, num_experts_per_tok=2,
                output_router_logits=False, router_aux_loss_coef=0.001)
LONGROPE = {"long_factor": [1.5, 3.0], "short_factor": [1.0, 1.25], "type": "longrope"}

CASES = {
    "gpt2": (gpt2, old_decoder("gpt2", "GPT2LMHeadModel", n_ctx=29)),
    "gpt2_bare": (gpt2_bare, old_decoder("gpt2", "GPT2LMHeadModel", n_ctx=29, n_inner=None)),
    "gpt_neox": (gpt_neox, neox_config(rotary_emb_base=10000, rotary_pct=0.25)),
    "gpt_neox_serial": (gpt_neox, neox_config(
        use_parallel_residual=False, hidden_act="gelu_fast", attention_bias=True,
        rope_parameters={"partial_rotary_factor": 0.5, "rope_theta": 5e5, "rope_type": "default"})),
    "gptj": (gptj, old_decoder("gptj", "GPTJForCausalLM", rotary=True, rotary_dim=4, scale_attn_weights=True, n_inner=None,
                               tie_word_embeddings=False, use_cache=True)),
    "opt": (opt, {
        "_remove_final_layer_norm": False, "activation_dropout": 0.0, "activation_function": "relu", "architectures": ["OPTForCausalLM"],
        "attention_dropout": 0.0, "bos_token_id": 2, "do_layer_norm_before": True, "dropout": 0.1, "eos_token_id": 2, "ffn_dim": 37,
        "hidden_size": 40, "init_std": 0.02, "layerdrop": 0.0, "max_position_embeddings": 29, "model_type": "opt",
        "num_attention_heads": 5, "num_hidden_layers": 3, "pad_token_id": 1, "prefix": "</s>", "torch_dtype": "float16",
        "transformers_version": "4.21.0", "use_cache": True, "vocab_size": VOCAB, "word_embed_proj_dim": 40}),
    "falcon": (falcon, falcon_config()),
    "falcon_grouped": (falcon, falcon_config(hidden_size=36, num_attention_heads=6, num_kv_heads=2, new_decoder_architecture=True)),
    "llama": (llama, llama_config(kv=5)),
    "llama_grouped": (llama, llama_config(kv=2, **GROUPS, rope_theta=5e5, rms_norm_eps=1e-5)),
    "llama3": (llama, llama_config(head_dim=12, rope_scaling=LLAMA3, eos_token_id=[2, 5])),
    "llama3_new_keys": (llama, without(llama_config(kv=5, rope_parameters={"rope_theta": 10000.0, **LLAMA3}, dtype="float32"),
                                       "rope_theta", "rope_scaling", "torch_dtype")),
    "llama_tied": (llama, llama_config(kv=3, **GROUPS, tie_word_embeddings=True,
                                       rope_scaling={"factor": 2.0, "type": "linear"})),
    "llama_biases": (llama, llama_config(attention_bias=True, mlp_bias=True)),
    "mistral": (mistral, decoder("mistral", "MistralForCausalLM", sliding_window=5, head_dim=12, rms_norm_eps=1e-5)),
    "mistral_open": (mistral, decoder("mistral", "MistralForCausalLM", kv=2, **GROUPS, sliding_window=None, rope_theta=1e6)),
    "qwen2": (qwen2, qwen_config("qwen2", "Qwen2ForCausalLM", tie_word_embeddings=True)),
    "qwen2_windows": (qwen2, qwen_config("qwen2", "Qwen2ForCausalLM", kv=2, **GROUPS, use_sliding_window=True,
                                         max_window_layers=1)),
    "qwen3": (qwen3, qwen_config("qwen3", "Qwen3ForCausalLM", head_dim=12, attention_bias=False, rope_scaling=None, rope_theta=1e6,
                                 sliding_window=None)),
    "gemma": (gemma, gemma_config("gemma", "GemmaForCausalLM")),
    "gemma2": (gemma2, gemma_config("gemma2", "Gemma2ForCausalLM", kv=2, **GROUPS, attn_logit_softcapping=2.0,
                                    cache_implementation="hybrid", final_logit_softcapping=3.0, query_pre_attn_scalar=11,
                                    sliding_window=5)),
    "gemma3": (gemma3, gemma_config("gemma3_text", "Gemma3ForCausalLM", attn_logit_softcapping=None, layers=3,
                                    cache_implementation="hybrid", final_logit_softcapping=None, query_pre_attn_scalar=11,
                                    rope_local_base_freq=10000, rope_scaling={"factor": 8.0, "rope_type": "linear"},
                                    rope_theta=1e6, sliding_window=5, sliding_window_pattern=3)),
    "gemma3_new_keys": (gemma3, without(gemma_config(
        "gemma3_text", "Gemma3ForCausalLM", kv=2, **GROUPS, head_dim=8, attn_logit_softcapping=None, layers=7, dtype="bfloat16",
        final_logit_softcapping=None, query_pre_attn_scalar=11, sliding_window=5,
        layer_types=["sliding_attention"] * 5 + ["full_attention", "sliding_attention"],
        rope_parameters={"full_attention": {"rope_theta": 1e6, "rope_type": "default"},
                         "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"}}), "rope_theta", "torch_dtype")),
    "phi3": (phi3, phi3_config(kv=5)),
    "phi3_partial": (phi3, phi3_config(kv=2, **GROUPS, partial_rotary_factor=0.67, sliding_window=None)),
    "phi3_short": (phi3, phi3_config(kv=1, partial_rotary_factor=0.5, original_max_position_embeddings=19, rope_scaling=LONGROPE)),
    "phi3_long": (phi3, phi3_config(kv=1, partial_rotary_factor=0.5, original_max_position_embeddings=11, rope_scaling=LONGROPE)),
    "olmo2": (olmo2, decoder("olmo2", "Olmo2ForCausalLM", kv=2, **GROUPS, attention_bias=False, pad_token_id=0, rope_scaling=None,
                             rope_theta=500000)),
    "stablelm": (stablelm, without(decoder("stablelm", "StableLmForCausalLM", hidden_dropout=0.0, layer_norm_eps=1e-5,
                                           partial_rotary_factor=0.25, qk_layernorm=False, use_parallel_residual=False,
                                           use_qkv_bias=True), "rms_norm_eps")),
    "mixtral": (mixtral, decoder("mixtral", "MixtralForCausalLM", ffn=11, num_experts_per_tok=2, num_local_experts=7,
                                 output_router_logits=False, rope_theta=1e6, router_aux_loss_coef=0.02, sliding_window=None)),
    "olmoe": (olmoe, decoder("olmoe", "OlmoeForCausalLM", kv=5, ffn=11, attention_bias=False, clip_qkv=None, norm_topk_prob=False,
                             pad_token_id=1, rope_scaling=None, **MOE)),
    "qwen2_moe": (qwen2_moe, qwen_config("qwen2_moe", "Qwen2MoeForCausalLM", shared_expert_intermediate_size=23, **QWEN_MOE)),
    "qwen3_moe": (qwen3_moe, qwen_config("qwen3_moe", "Qwen3MoeForCausalLM", kv=2, **GROUPS, head_dim=8, attention_bias=False,
                                         mlp_only_layers=[], rope_scaling=None, **{**QWEN_MOE, "norm_topk_prob": True})),
    "qwen3_moe_fused": (qwen3_moe_fused, qwen_config("qwen3_moe", "Qwen3MoeForCausalLM", head_dim=12, attention_bias=False,
                                                     mlp_only_layers=[], rope_scaling=None, **QWEN_MOE)),
    "deepseek_v2": (deepseek_v2, deepseek_config("deepseek_v2", "DeepseekV2ForCausalLM", n_group=1, n_routed_experts=7, topk_group=1,
                                                 topk_method="greedy")),
    "deepseek_v2_groups": (deepseek_v2, deepseek_config("deepseek_v2", "DeepseekV2ForCausalLM", n_group=3, n_routed_experts=12,
                                                        topk_group=2, topk_method="group_limited_greedy", q_lora_rank=14,
                                                        routed_scaling_factor=1.5)),
    "deepseek_v3": (deepseek_v3, deepseek_config(
        "deepseek_v3", "DeepseekV3ForCausalLM", ep_size=1, n_group=4, n_routed_experts=12, topk_group=2, topk_method="noaux_tc",
        norm_topk_prob=True, num_nextn_predict_layers=0, q_lora_rank=14, routed_scaling_factor=2.5, scoring_func="sigmoid",
        rope_scaling={"beta_fast": 32, "beta_slow": 1, "factor": 4, "mscale": 1.0, "mscale_all_dim": 1.0,
                      "original_max_position_embeddings": 64, "type": "yarn"})),
}


def tokens_of():
    z = splitmix64(np.uint64(fnv1a64("tokens")) + np.arange(SAMPLES * SEQUENCE, dtype=np.uint64))
    return (z % np.uint64(VOCAB)).astype(np.int64).reshape(SAMPLES, SEQUENCE)


def solve(name, forward, config, tokens):
    for attempt in range(1000):
        w = Weights(f"{name}.{attempt}")
        logits = forward(w, config, tokens)
        if w.gap >= SMALLEST_GAP:
            break
    assert logits.shape == (SAMPLES, SEQUENCE, VOCAB) and np.isfinite(logits).all()
    print(f"{name:20} largest logit {np.abs(logits).max():8.3f}, smallest gap {w.gap:.1e}, salt {w.salt}")
    kept = [[[float(f"{value:.8e}") for value in sample[position]] for position in POSITIONS] for sample in logits]
    return {"config": dict(sorted(config.items())), "salt": w.salt, "tensors": dict(sorted(w.tensors.items())), "logits": kept}


def written():
    """The file's text: a line for each tensor and for each row of logits."""
    with np.errstate(over="ignore"):
        tokens = tokens_of()
        cases = {name: solve(name, *case, tokens) for name, case in CASES.items()}
    out = ['{"tokens": ' + json.dumps(tokens.tolist()) + ",", '"positions": ' + json.dumps(POSITIONS) + ",", '"cases": {']
    for name, case in cases.items():
        out.append(f'"{name}": {{"config": {json.dumps(case["config"])},')
        out.append(f'"salt": "{case["salt"]}",')
        out.append('"tensors": {')
        out.append(",\n".join(f'"{tensor}": {json.dumps(about)}' for tensor, about in case["tensors"].items()))
        out.append('}, "logits": [')
        out.append(",\n".join("[" + ",\n".join(json.dumps(row) for row in sample) + "]" for sample in case["logits"]))
        out.append("]}" + ("," if name != list(cases)[-1] else ""))
    return "\n".join([*out, "}}"]) + "\n"


def close(a, b):
    """Whether two readings of the file agree: all but logits exactly, those but for how NumPy sums."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(close(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(close, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= 1e-8 * max(1.0, abs(a))
    return a == b


def main():
    check = "--check" in sys.argv
    path = sys.argv[-1]
    text = written()
    if check:
        with open(path) as file:
            if not close(json.load(file), json.loads(text)):
                sys.exit(f"{path} is not what this script writes")
        return
    with open(path, "w") as file:
        file.write(text)


if __name__ == "__main__":
    main()
