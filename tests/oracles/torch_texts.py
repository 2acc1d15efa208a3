#!/usr/bin/python3
"""Oracle of the models that are told as text: a small model of each text of configs/blocks, and one of its own, in
PyTorch, with gradients by its autograd (Debian: python3-torch, python3-h5py). Written from the papers and model
cards named at each function; shares nothing with the engine but the names, shapes and packing of the parameters.
Where transformers (5, or a late 4) is installed, its own implementation of each family gets the same weights, and
the largest differences of logits, loss and gradients are printed; a family that differs by more than rounding ends
the program with status 1, after the file is written.

usage: torch_texts.py tests/oracles/texts.h5

Everything is computed in float64 from parameters that are exact float16 numbers, and stored as float32 (the loss as
float64). The same computation runs once more in float32: what it is off by at most is stored as attribute
`float32_max_error` of each result, the scale of the rounding error that a float32 engine may show.

Layout of the file; one group a model, named as the recipe in tests/train/texts that tells it, whose dims it has:
  tokens, labels      int32 [batch, sequence]; every label counts; position of column s is s
  parameters/<name>   float16, logical shape (the vocabulary is not padded), as layers.0.attention.qkv.weight
  logits              float32 [batch, sequence, vocab]
  loss                float64 scalar: the mean over all labels, in nats, label smoothing and z-loss included
  router_losses/<name>  float64 scalar, of models with experts: a router's loss by the name of its metric, without its weight
  gradients/<name>    float32, of `loss` and of the routers' losses times their weights; of a router's correction X times the
                      tokens that chose each of X experts, less all choices
"""
import math
import sys

import h5py
import numpy as np
import torch

BATCH, SEQUENCE = 3, 17

# D: width of the stream, L: layers, H and K: heads of queries and of keys, E: features of a head, F: width of the
# feed-forward part, V: vocabulary, P: positions, Q: width that scores are scaled by, W: window; X: experts, T: of which a token
# goes to so many, G: width of the one that all tokens share. Of multi-head latent attention Q and C are the widths of the latents
# of queries and of keys and values, N and R features of a head's keys that are not and that are rotated, U those of its values;
# J layers are dense, W is the width of an expert, Y that of the one that all tokens share.
COMMON = dict(D=18, L=2, H=6, K=2, E=8, F=37, V=131)
LATENT = dict(D=20, L=3, J=1, H=5, C=10, N=6, R=6, U=7, F=23, X=12, T=3, W=11, Y=13, V=131)


# Parameters and parts

class Weights:
    """Parameters by name. The first pass of a model draws them: matrices, tables and biases from N(0, 0.2), gains
    from N(1, 0.2), or from N(0, 0.2) where 1 is added to them, sinks from N(0, 1); so every path matters."""

    def __init__(self, values=None, rng=None):
        self.values = {} if values is None else values
        self.rng = rng
        self.router_losses = {}  # name → (weight, value): what routers add to the loss
        self.imbalances = {}  # name → what stands for the gradient of a router's correction
        self.gap = math.inf  # of the last expert or group that is chosen to the first that is not, the smallest

    def __call__(self, name, *shape, mean=0.0, std=0.2):
        if name not in self.values:
            drawn = (mean + std * self.rng.standard_normal(shape)).astype(np.float16)
            self.values[name] = torch.from_numpy(drawn.astype(np.float64))
        value = self.values[name]
        assert value.shape == shape, (name, value.shape, shape)
        return value


def linear(p, name, x, out, contracted=1, bias=False):
    """Collapses the weight [out…, in…] to a matrix; x ends in the in… dims, the result in the out… dims."""
    inner = tuple(x.shape[x.dim() - contracted:])
    weight = p(name + ".weight", *out, *inner)
    flat = x.reshape(*x.shape[:x.dim() - contracted], math.prod(inner))
    y = (flat @ weight.reshape(math.prod(out), -1).T).reshape(*flat.shape[:-1], *out)
    return y + p(name + ".bias", *out) if bias else y


def layer_norm(p, name, x, epsilon=1e-5):
    """Ba et al., arXiv:1607.06450; the variance is the biased one."""
    width = x.shape[-1]
    centred = x - x.mean(-1, keepdim=True)
    normed = centred / torch.sqrt((centred ** 2).mean(-1, keepdim=True) + epsilon)
    return normed * p(name + ".weight", width, mean=1.0) + p(name + ".bias", width)


def rms_norm(p, name, x, epsilon=1e-5):
    """Zhang & Sennrich, arXiv:1910.07467."""
    weight = p(name + ".weight", x.shape[-1], mean=1.0)
    return x / torch.sqrt((x ** 2).mean(-1, keepdim=True) + epsilon) * weight


def gemma_norm(p, name, x):
    """The same with a gain of 1 + w (Gemma's reference code)."""
    return x / torch.sqrt((x ** 2).mean(-1, keepdim=True) + 1e-6) * (1.0 + p(name + ".weight", x.shape[-1]))


def full_norm(p, name, x):
    """RMSNorm over heads and features together: of a token's whole projection (OLMo 2)."""
    flat = x.flatten(2)
    weight = p(name + ".weight", *x.shape[2:], mean=1.0).reshape(-1)
    return (flat / torch.sqrt((flat ** 2).mean(-1, keepdim=True) + 1e-6) * weight).reshape(x.shape)


def sigmoid(x):
    return 1.0 / (1.0 + torch.exp(-x))


def silu(x):
    return x * sigmoid(x)


def quick_gelu(x):
    """Hendrycks & Gimpel, arXiv:1606.08415, section 2: x σ(1.702 x)."""
    return x * sigmoid(1.702 * x)


def relu(x):
    return torch.where(x > 0, x, torch.zeros_like(x))


def gelu_erf(x):
    return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))


def gelu_tanh(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x ** 3)))


def frequencies(width, base):
    """Su et al., arXiv:2104.09864."""
    return [base ** (-2.0 * i / width) for i in range(width // 2)]


def yarn(width, base, factor, original, beta_fast, beta_slow):
    """Peng et al., arXiv:2309.00071, section 3.2: frequencies that turn more than beta_fast times in `original`
    positions stay, those that turn less than beta_slow times are divided by the factor, and a ramp over whole numbers
    of the index (the authors' code) lies between them. Also gives the factor of cos and sin, √(1/t) of section 3.3."""
    def index_of(turns):
        return width * math.log(original / (2.0 * math.pi * turns)) / (2.0 * math.log(base))

    low = max(math.floor(index_of(beta_fast)), 0)
    high = min(math.ceil(index_of(beta_slow)), width - 1)
    scaled = []
    for i, f in enumerate(frequencies(width, base)):
        ramp = min(max((i - low) / (high - low), 0.0), 1.0)
        scaled.append((1.0 - ramp) * f + ramp * f / factor)
    return scaled, 0.1 * math.log(factor) + 1.0


def rotate(x, freqs, interleaved=False, size=1.0):
    """Turns pairs of the first 2·len(freqs) features of x [batch, sequence, heads, features] by position times
    frequency: features i and i + len(freqs), or neighbours; the other features pass."""
    half = len(freqs)
    angles = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * torch.tensor(freqs, dtype=torch.float64)
    cos, sin = ((size * f(angles)).to(x.dtype)[None, :, None, :] for f in (torch.cos, torch.sin))
    turned, rest = x[..., :2 * half], x[..., 2 * half:]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        pairs = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
    else:
        a, b = turned[..., :half], turned[..., half:]
        pairs = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
    return torch.cat([pairs, rest], dim=-1)


def unpack(packed):
    """[batch, sequence, groups, queries of a group + 2, features] → queries, keys, values with heads in one dim."""
    return packed[:, :, :, :-2].flatten(2, 3), packed[:, :, :, -2], packed[:, :, :, -1]


def attention(q, k, v, scale=None, window=0, cap=0.0, slopes=None, sinks=None):
    """Vaswani et al., arXiv:1706.03762, causal; grouped queries: Ainslie et al., arXiv:2305.13245; a window sees
    as many keys, its own included (arXiv:2004.05150, Mistral); soft cap: Gemma 2, arXiv:2408.00118; slopes: ALiBi,
    Press et al., arXiv:2108.12409; a sink is one more score, whose value is zero (gpt-oss, arXiv:2508.10925)."""
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, dim=2) for x in (k, v))
    scores = torch.einsum("bihe,bjhe->bhij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if cap > 0:
        scores = cap * torch.tanh(scores / cap)
    length = q.shape[1]
    distance = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    if slopes is not None:
        scores = scores - torch.tensor(slopes, dtype=scores.dtype)[:, None, None] * distance
    hidden = distance < 0
    if window > 0:
        hidden = hidden | (distance >= window)
    scores = scores.masked_fill(hidden, -math.inf)
    if sinks is not None:
        column = sinks[None, :, None, None].expand(scores.shape[0], -1, length, 1)
        scores = torch.cat([scores, column], dim=-1)
    probabilities = torch.softmax(scores, dim=-1)[..., :length]
    return torch.einsum("bhij,bjhe->bihe", probabilities, v)


def slopes_of(heads):
    """ALiBi's slopes as the paper's code has them: a geometric sequence for a power of two; else that of the power
    below, and every other one of the power above."""
    def of_power(n):
        return [2.0 ** (-8.0 * (i + 1) / n) for i in range(n)]

    below = 2 ** math.floor(math.log2(heads))
    return of_power(below) + of_power(2 * below)[0::2][:heads - below]


def mean_loss(logits, labels, smoothing=0.0, z_loss=0.0):
    """Cross entropy with the target (1 − ε) at the label and ε/V everywhere (Szegedy et al., arXiv:1512.00567), plus
    ζ·(log of the normaliser)² (PaLM, arXiv:2204.02311)."""
    normaliser = torch.logsumexp(logits, dim=-1)
    picked = logits.gather(-1, labels[..., None])[..., 0]
    target = (1.0 - smoothing) * picked + smoothing * logits.mean(-1)
    return (normaliser - target + z_loss * normaliser ** 2).mean()


# Families

def embedded(p, tokens, d):
    return p("embedding.tokens", d["V"], d["D"])[tokens]


def packed_shape(d):
    return d["K"], d["H"] // d["K"] + 2, d["E"]


def projected(p, name, x, d, bias=False):
    return linear(p, name, x, (d["D"],), contracted=2, bias=bias)


def gated(p, name, x, d, act):
    """Shazeer, arXiv:2002.05202: act(gate) times the other half."""
    wide = linear(p, name + ".fc1", x, (2, d["F"]))
    return linear(p, name + ".fc2", act(wide[..., 0, :]) * wide[..., 1, :], (d["D"],))


def plain(p, name, x, d, act, bias):
    return linear(p, name + ".fc2", act(linear(p, name + ".fc1", x, (d["F"],), bias=bias)), (d["D"],), bias=bias)


def pre_norm_layers(p, x, d, norm, freqs, qkv_bias=False, head_norm=None):
    """Llama's layers, arXiv:2302.13971, with SwiGLU."""
    for i in range(d["L"]):
        name = f"layers.{i}.attention"
        packed = linear(p, name + ".qkv", norm(p, name + ".norm", x), packed_shape(d), bias=qkv_bias)
        q, k, v = unpack(packed)
        if head_norm is not None:
            q, k = head_norm(p, name + ".q_norm", q), head_norm(p, name + ".k_norm", k)
        mixed = attention(rotate(q, freqs), rotate(k, freqs), v)
        x = x + projected(p, name + ".proj", mixed, d)
        name = f"layers.{i}.mlp"
        x = x + gated(p, name, norm(p, name + ".norm", x), d, silu)
    return norm(p, "final_norm", x)


def rms_norm_6(p, name, x):
    return rms_norm(p, name, x, epsilon=1e-6)


def qwen2(p, tokens, d):
    """arXiv:2407.10671: biases on queries, keys and values."""
    x = pre_norm_layers(p, embedded(p, tokens, d), d, rms_norm_6, frequencies(d["E"], 1e6), qkv_bias=True)
    return linear(p, "head", x, (d["V"],))


def qwen3(p, tokens, d):
    """arXiv:2505.09388: no biases; each head of queries and keys is normalised before it is rotated."""
    x = pre_norm_layers(p, embedded(p, tokens, d), d, rms_norm_6, frequencies(d["E"], 1e6),
                        head_norm=rms_norm_6)
    return linear(p, "head", x, (d["V"],))


def stablelm2(p, tokens, d):
    """arXiv:2402.17834: LayerNorm, a quarter of each head rotated, biases on queries, keys and values."""
    x = pre_norm_layers(p, embedded(p, tokens, d), d, layer_norm, frequencies(d["E"] // 4, 1e4), qkv_bias=True)
    return linear(p, "head", x, (d["V"],))


def olmo2(p, tokens, d):
    """arXiv:2501.00656, sections 3.1 and 3.2: norms on the outputs of the branches, and on all heads of queries and
    keys together."""
    x = embedded(p, tokens, d)
    freqs = frequencies(d["E"], 5e5)
    for i in range(d["L"]):
        name = f"layers.{i}.attention"
        q, k, v = unpack(linear(p, name + ".qkv", x, packed_shape(d)))
        q, k = full_norm(p, name + ".q_norm", q), full_norm(p, name + ".k_norm", k)
        mixed = attention(rotate(q, freqs), rotate(k, freqs), v)
        x = x + rms_norm_6(p, name + ".norm", projected(p, name + ".proj", mixed, d))
        name = f"layers.{i}.mlp"
        x = x + rms_norm_6(p, name + ".norm", gated(p, name, x, d, silu))
    return linear(p, "head", rms_norm_6(p, "final_norm", x), (d["V"],))


def neox(p, tokens, d):
    """arXiv:2204.06745, section 2: both branches read the stream, each through a norm of its own; a quarter of each
    head is rotated; biases everywhere but in the head."""
    x = embedded(p, tokens, d)
    freqs = frequencies(d["E"] // 4, 1e4)
    for i in range(d["L"]):
        name = f"layers.{i}"
        packed = linear(p, name + ".attention.qkv", layer_norm(p, name + ".attention.norm", x),
                        (d["H"], 3, d["E"]), bias=True)
        q, k, v = unpack(packed)
        mixed = attention(rotate(q, freqs), rotate(k, freqs), v)
        wide = layer_norm(p, name + ".mlp.norm", x)
        x = (x + projected(p, name + ".attention.proj", mixed, d, bias=True)
             + plain(p, name + ".mlp", wide, d, gelu_erf, bias=True))
    return linear(p, "head", layer_norm(p, "final_norm", x), (d["V"],))


def gpt_j(p, tokens, d):
    """Wang & Komatsuzaki 2021 (mesh-transformer-jax): one norm for both branches, neighbours rotated in pairs, biases
    in the feed-forward part and the head, none in attention."""
    x = embedded(p, tokens, d)
    freqs = frequencies(d["R"], 1e4)
    for i in range(d["L"]):
        name = f"layers.{i}"
        normed = layer_norm(p, name + ".norm", x)
        q, k, v = unpack(linear(p, name + ".attention.qkv", normed, (d["H"], 3, d["E"])))
        mixed = attention(rotate(q, freqs, interleaved=True), rotate(k, freqs, interleaved=True), v)
        x = (x + projected(p, name + ".attention.proj", mixed, d)
             + plain(p, name + ".mlp", normed, d, gelu_tanh, bias=True))
    return linear(p, "head", layer_norm(p, "final_norm", x), (d["V"],), bias=True)


def falcon(p, tokens, d):
    """arXiv:2311.16867, the 7B model: one norm for both branches, one head of keys and values, tied head."""
    x = embedded(p, tokens, d)
    freqs = frequencies(d["E"], 1e4)
    for i in range(d["L"]):
        name = f"layers.{i}"
        normed = layer_norm(p, name + ".norm", x)
        q, k, v = unpack(linear(p, name + ".attention.qkv", normed, (1, d["H"] + 2, d["E"])))
        mixed = attention(rotate(q, freqs), rotate(k, freqs), v)
        x = (x + projected(p, name + ".attention.proj", mixed, d)
             + plain(p, name + ".mlp", normed, d, gelu_erf, bias=False))
    return layer_norm(p, "final_norm", x) @ p("embedding.tokens", d["V"], d["D"]).T


def opt(p, tokens, d):
    """arXiv:2205.01068 and its code in metaseq: pre-norm, ReLU, learned positions of which the first two rows are not
    used, tied head."""
    positions = p("embedding.positions", d["P"] + 2, d["D"])
    x = embedded(p, tokens, d) + positions[2:2 + tokens.shape[1]]
    for i in range(d["L"]):
        name = f"layers.{i}.attention"
        packed = linear(p, name + ".qkv", layer_norm(p, name + ".norm", x), (d["H"], 3, d["E"]), bias=True)
        x = x + projected(p, name + ".proj", attention(*unpack(packed)), d, bias=True)
        name = f"layers.{i}.mlp"
        x = x + plain(p, name, layer_norm(p, name + ".norm", x), d, relu, bias=True)
    return layer_norm(p, "final_norm", x) @ p("embedding.tokens", d["V"], d["D"]).T


def gemma(p, tokens, d):
    """arXiv:2403.08295: embeddings times √D, gains 1 + w, GeGLU (tanh), tied head."""
    x = embedded(p, tokens, d) * math.sqrt(d["D"])
    freqs = frequencies(d["E"], 1e4)
    for i in range(d["L"]):
        name = f"layers.{i}.attention"
        q, k, v = unpack(linear(p, name + ".qkv", gemma_norm(p, name + ".norm", x), packed_shape(d)))
        mixed = attention(rotate(q, freqs), rotate(k, freqs), v)
        x = x + projected(p, name + ".proj", mixed, d)
        name = f"layers.{i}.mlp"
        x = x + gated(p, name, gemma_norm(p, name + ".norm", x), d, gelu_tanh)
    return gemma_norm(p, "final_norm", x) @ p("embedding.tokens", d["V"], d["D"]).T


def sandwich(p, tokens, d, of_layer):
    """The layers of Gemma 2 and 3: a norm before and one behind each branch; of_layer gives a layer's frequencies,
    window, cap and whether heads are normalised."""
    x = embedded(p, tokens, d) * math.sqrt(d["D"])
    for i in range(d["L"]):
        freqs, window, cap, norm_heads = of_layer(i)
        name = f"layers.{i}.attention"
        q, k, v = unpack(linear(p, name + ".qkv", gemma_norm(p, name + ".norm", x), packed_shape(d)))
        if norm_heads:
            q, k = gemma_norm(p, name + ".q_norm", q), gemma_norm(p, name + ".k_norm", k)
        mixed = attention(rotate(q, freqs), rotate(k, freqs), v, scale=d["Q"] ** -0.5, window=window, cap=cap)
        x = x + gemma_norm(p, name + ".post_norm", projected(p, name + ".proj", mixed, d))
        name = f"layers.{i}.mlp"
        narrow = gated(p, name, gemma_norm(p, name + ".norm", x), d, gelu_tanh)
        x = x + gemma_norm(p, name + ".post_norm", narrow)
    return gemma_norm(p, "final_norm", x) @ p("embedding.tokens", d["V"], d["D"]).T


def gemma2(p, tokens, d):
    """arXiv:2408.00118, section 2: even layers see a window; scores and logits are capped."""
    freqs = frequencies(d["E"], 1e4)
    logits = sandwich(p, tokens, d, lambda i: (freqs, d["W"] if i % 2 == 0 else 0, d["score_cap"], False))
    return d["logit_cap"] * torch.tanh(logits / d["logit_cap"])


def gemma3(p, tokens, d):
    """arXiv:2503.19786, section 2: five layers within a window and with base 10k, then one without and with base 1M;
    heads of queries and keys normalised; no caps."""
    near, far = frequencies(d["E"], 1e4), frequencies(d["E"], 1e6)
    return sandwich(p, tokens, d, lambda i: (far, 0, 0.0, True) if i % 6 == 5 else (near, d["W"], 0.0, True))


def mixture(p, tokens, d):
    """What no family above has; told in tests/train/texts/mixture.toml."""
    x = p("tokens", d["V"], d["D"])[tokens] * math.sqrt(d["D"])
    freqs, size = yarn(d["E"], 1e3, factor=4.0, original=256, beta_fast=4.0, beta_slow=1.0)
    for i in range(d["L"]):
        name = f"layers.{i}.attention"
        q, k, v = unpack(linear(p, name + ".qkv", rms_norm(p, name + ".norm", x), packed_shape(d)))
        if i % 3 != 2:
            q, k = rotate(q, freqs, size=size), rotate(k, freqs, size=size)
        mixed = attention(q, k, v, window=5 if i % 2 == 0 else 0, cap=2.0, slopes=slopes_of(d["H"]),
                          sinks=p(name + ".core.sinks", d["H"], std=1.0))
        x = x + projected(p, name + ".proj", mixed, d, bias=True)
        name = f"layers.{i}.gated"
        wide = linear(p, name + ".fc1", rms_norm(p, name + ".norm", x), (2, d["F"]), bias=True)
        active = (gelu_erf if i % 2 == 0 else relu)(wide[..., 0, :]) * wide[..., 1, :]
        x = x + linear(p, name + ".fc2", active, (d["D"],))
        name = f"layers.{i}.plain"
        wide = linear(p, name + ".fc1", layer_norm(p, name + ".norm", x), (d["F"] // 2,), bias=True)
        x = x + linear(p, name + ".fc2", quick_gelu(wide), (d["D"],), bias=True)
    return linear(p, "head", layer_norm(p, "norm", x), (d["V"],), bias=True)


# Experts

def route(p, name, x, d, normalize, aux_loss, z_loss=0.0):
    """[batch, sequence, experts]: the weight of each expert for each token, 0 of those that are not chosen. Shazeer et al.,
    arXiv:1701.06538; the chosen have the largest logits, and their weights are their softmax over all experts, or over the
    chosen ones (Mixtral, arXiv:2401.04088, section 2.1). Losses: of balance, Switch Transformer's (arXiv:2101.03961,
    equation 4) of each sequence by itself and divided by the number of choices; of size, ST-MoE's (arXiv:2202.08906,
    equation 5)."""
    logits = x @ p(name + ".weight", d["X"], d["D"]).T
    order = torch.sort(logits.detach(), dim=-1, descending=True)
    p.gap = min(p.gap, float((order.values[..., d["T"] - 1] - order.values[..., d["T"]]).min()))
    chosen = torch.zeros_like(logits).scatter(-1, order.indices[..., :d["T"]], 1.0)
    probabilities = torch.softmax(logits, dim=-1)
    share = chosen.mean(1) / d["T"]  # of the choices of a sequence
    p.router_losses[name + ".balance"] = aux_loss, d["X"] * (share * probabilities.mean(1)).sum(-1).mean()
    if z_loss > 0:
        p.router_losses[name + ".z"] = z_loss, (torch.logsumexp(logits, dim=-1) ** 2).mean()
    weights = chosen * probabilities
    return weights / weights.sum(-1, keepdim=True) if normalize else weights


def experts(p, name, x, weights, d, act=None, gate=None):
    """All experts on all tokens, times the weights."""
    wide = (2, d["F"]) if gate is not None else (d["F"],)
    first = p(name + ".fc1.weight", d["X"], *wide, d["D"])
    second = p(name + ".fc2.weight", d["X"], d["D"], d["F"])
    result = torch.zeros_like(x)
    for e in range(d["X"]):
        if gate is not None:
            hidden = gate(x @ first[e, 0].T) * (x @ first[e, 1].T)
        else:
            hidden = act(x @ first[e].T)
        result = result + weights[..., e, None] * (hidden @ second[e].T)
    return result


def expert_layers(p, tokens, d, norm, base, router, head_norm=None, qkv_bias=False, shared=False):
    """Llama's layers with experts; `router`: route's keywords."""
    x = embedded(p, tokens, d)
    freqs = frequencies(d["E"], base)
    for i in range(d["L"]):
        name = f"layers.{i}.attention"
        q, k, v = unpack(linear(p, name + ".qkv", norm(p, name + ".norm", x), packed_shape(d), bias=qkv_bias))
        if head_norm is not None:
            q, k = head_norm(p, name + ".q_norm", q), head_norm(p, name + ".k_norm", k)
        x = x + projected(p, name + ".proj", attention(rotate(q, freqs), rotate(k, freqs), v), d)
        name = f"layers.{i}.mlp"
        normed = norm(p, name + ".norm", x)
        branch = experts(p, name + ".experts", normed, route(p, name + ".router", normed, d, **router), d, gate=silu)
        if shared:
            every = gated(p, name + ".shared", normed, dict(d, F=d["G"]), silu)
            branch = branch + sigmoid(linear(p, name + ".shared.gate", normed, (1,))) * every
        x = x + branch
    return linear(p, "head", norm(p, "final_norm", x), (d["V"],))


def mixtral(p, tokens, d):
    """arXiv:2401.04088."""
    return expert_layers(p, tokens, d, rms_norm, 1e6, dict(normalize=True, aux_loss=0.02))


def olmoe(p, tokens, d):
    """arXiv:2409.02060: queries and keys normalised over all heads, with ε 1e-5."""
    def whole(p, name, x):
        weight = p(name + ".weight", *x.shape[2:], mean=1.0)
        return x / torch.sqrt((x ** 2).mean((-2, -1), keepdim=True) + 1e-5) * weight

    return expert_layers(p, tokens, d, rms_norm, 1e4, dict(normalize=False, aux_loss=0.01, z_loss=0.001),
                         head_norm=whole)


def qwen2_moe(p, tokens, d):
    """Qwen1.5-MoE and arXiv:2407.10671, section 2.2.2: biases on queries, keys and values, an expert for all tokens behind a
    sigmoid."""
    return expert_layers(p, tokens, d, rms_norm_6, 1e6, dict(normalize=False, aux_loss=0.001), qkv_bias=True,
                         shared=True)


def qwen3_moe(p, tokens, d):
    """arXiv:2505.09388."""
    return expert_layers(p, tokens, d, rms_norm_6, 1e6, dict(normalize=True, aux_loss=0.001), head_norm=rms_norm_6)


def switch(p, tokens, d):
    """GPT-2's layers; in those that the pattern has an E for, one expert a token, arXiv:2101.03961, times its probability."""
    x = embedded(p, tokens, d) + p("embedding.positions", d["P"], d["D"])[:tokens.shape[1]]
    for i, letter in enumerate(d["pattern"]):
        name = f"layers.{i}.attention"
        packed = linear(p, name + ".qkv", layer_norm(p, name + ".norm", x), (d["H"], 3, d["E"]), bias=True)
        x = x + projected(p, name + ".proj", attention(*unpack(packed)), d, bias=True)
        name = f"layers.{i}.mlp"
        normed = layer_norm(p, name + ".norm", x)
        if letter == "E":
            weights = route(p, name + ".router", normed, d, normalize=False, aux_loss=0.01)
            x = x + experts(p, name + ".experts", normed, weights, d, act=gelu_tanh)
        else:
            x = x + plain(p, name, normed, d, gelu_tanh, bias=False)
    return layer_norm(p, "final_norm", x) @ p("embedding.tokens", d["V"], d["D"]).T


# Multi-head latent attention, and DeepSeek's routers

def yarn_size(factor, weight):
    """√(1/t) of arXiv:2309.00071, section 3.3, as DeepSeek's code has it (yarn_get_mscale): 0.1 · weight · ln factor + 1."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def latent_attention(p, name, x, d, mscale, mscale_all_dim):
    """DeepSeek-V2, arXiv:2405.04434, section 2.1 and appendix C, at 40 times the length of 4096. Queries are of a latent where
    the model has Q. The part of a key that carries positions is the same for all heads. The order of DeepSeek's code and of
    transformers, what is rotated last, is kept in what follows; the parameters of this file have it first. The released
    configurations name two weights of YaRN's factor: that of cos and sin is a ratio, 1 where they are equal, and the
    second one's square is a factor of the scores."""
    positional, plain = d["R"], d["N"]
    normed = rms_norm_6(p, name + ".norm", x)
    queries = normed
    if "Q" in d:
        queries = rms_norm_6(p, name + ".q_norm", linear(p, name + ".q_down", normed, (d["Q"],)))
    q = linear(p, name + ".q", queries, (d["H"], positional + plain))
    q_positional, q_plain = q[..., :positional], q[..., positional:]
    latent = rms_norm_6(p, name + ".kv_norm", linear(p, name + ".kv_down.latent", normed, (d["C"],)))
    k_positional = linear(p, name + ".kv_down.shared", normed, (1, positional))
    k_plain = linear(p, name + ".kv.k", latent, (d["H"], plain))
    v = linear(p, name + ".kv.v", latent, (d["H"], d["U"]))
    freqs, _ = yarn(positional, 1e4, factor=40.0, original=4096, beta_fast=32.0, beta_slow=1.0)
    size = yarn_size(40.0, mscale) / yarn_size(40.0, mscale_all_dim)
    q_positional, k_positional = (rotate(part, freqs, interleaved=True, size=size) for part in (q_positional, k_positional))
    q = torch.cat([q_plain, q_positional], dim=-1)
    k = torch.cat([k_plain, k_positional.expand(-1, -1, d["H"], -1)], dim=-1)
    scale = (plain + positional) ** -0.5 * yarn_size(40.0, mscale_all_dim) ** 2
    return projected(p, name + ".proj", attention(q, k, v, scale=scale), d)


def largest_of(p, scores, count):
    """1.0 at the `count` largest of the last dim, 0.0 elsewhere."""
    order = torch.sort(scores.detach(), dim=-1, descending=True)
    p.gap = min(p.gap, float((order.values[..., count - 1] - order.values[..., count]).min()))
    return torch.zeros_like(scores).scatter(-1, order.indices[..., :count], 1.0)


def corrected_route(p, name, x, d, groups, kept, best, scale, aux_loss):
    """DeepSeek-V3, arXiv:2412.19437, section 2.1.2: sigmoid scores; a correction, which is in no weight, is added where groups
    and then experts are chosen (equation 16, and `gate` of its inference code); the chosen scores are divided by their sum. The
    loss of balance of a sequence, equations 17 to 20, is of the scores without the correction. What balances the correction
    is how much more than its share an expert was chosen; here times the number of experts."""
    scores = sigmoid(x @ p(name + ".weight", d["X"], d["D"]).T)
    corrected = scores.detach() + p(name + ".bias", d["X"]).detach()
    by_group = corrected.unflatten(-1, (groups, d["X"] // groups))
    group_scores = by_group.topk(best, dim=-1).values.sum(-1)
    allowed = largest_of(p, group_scores, kept).repeat_interleave(d["X"] // groups, dim=-1)
    chosen = largest_of(p, corrected.masked_fill(allowed == 0, -math.inf), d["T"])
    counts = chosen.sum((0, 1))
    p.imbalances[name + ".bias"] = d["X"] * counts - counts.sum()
    share = largest_of(p, scores, d["T"]).mean(1) * d["X"] / d["T"]  # f of each sequence
    mean = (scores / scores.sum(-1, keepdim=True)).mean(1)  # P
    p.router_losses[name + ".balance"] = aux_loss, (share * mean).sum(-1).mean()
    return scale * chosen * scores / ((chosen * scores).sum(-1, keepdim=True) + 1e-20)


def latent_layers(p, tokens, d, router, mscale):
    x = embedded(p, tokens, d)
    for i in range(d["L"]):
        at = f"dense.{i}" if i < d["J"] else f"layers.{i - d['J']}"
        x = x + latent_attention(p, at + ".attention", x, d, mscale, mscale)
        name = at + ".mlp"
        normed = rms_norm_6(p, name + ".norm", x)
        if i < d["J"]:
            x = x + gated(p, name, normed, d, silu)
            continue
        branch = experts(p, name + ".experts", normed, router(name + ".router", normed), dict(d, F=d["W"]), gate=silu)
        wide = linear(p, name + ".shared_fc1", normed, (2, d["Y"]))
        x = x + branch + linear(p, name + ".shared_fc2", silu(wide[..., 0, :]) * wide[..., 1, :], (d["D"],))
    return linear(p, "head", rms_norm_6(p, "final_norm", x), (d["V"],))


def deepseek_v2(p, tokens, d):
    """DeepSeek-V2-Lite, arXiv:2405.04434: softmax of all experts, not divided by the sum of the chosen; both weights of YaRN's
    factor 0.707."""
    return latent_layers(p, tokens, d, lambda name, x: route(p, name, x, d, normalize=False, aux_loss=0.001), 0.707)


def deepseek_v3(p, tokens, d):
    """arXiv:2412.19437: queries of a latent too; both weights of YaRN's factor 1."""
    return latent_layers(p, tokens, d, lambda name, x: corrected_route(p, name, x, d, groups=4, kept=2, best=2, scale=2.5,
                                                                       aux_loss=0.02), 1.0)


# name → forward pass, dims, terms of the loss. The names and dims are those of tests/train/texts.
MODELS = {
    "qwen2": (qwen2, dict(COMMON), {}),
    "qwen3": (qwen3, dict(COMMON, K=3), {}),
    "olmo2": (olmo2, dict(COMMON, K=3), {}),
    "neox": (neox, dict(COMMON, D=20, H=5, K=5, E=16), {}),
    "gpt-j": (gpt_j, dict(COMMON, D=20, H=5, K=5, E=12, R=8), {}),
    "falcon": (falcon, dict(COMMON, D=20, H=5, K=1, E=12), {}),
    "opt": (opt, dict(COMMON, D=20, H=5, K=5, P=19), {}),
    "stablelm2": (stablelm2, dict(COMMON, E=16, F=23), {}),
    "gemma": (gemma, dict(COMMON, D=20, H=5, K=1, E=12), {}),
    "gemma2": (gemma2, dict(COMMON, L=3, K=3, F=27, Q=11, W=5, score_cap=2.0, logit_cap=3.0), {}),
    "gemma3": (gemma3, dict(COMMON, D=20, L=6, H=5, K=1, F=17, Q=11, W=5), {}),
    "mixture": (mixture, dict(COMMON, L=4, F=23), dict(smoothing=0.1, z_loss=0.01)),
    "mixtral": (mixtral, dict(COMMON, F=11, X=7, T=2), {}),
    "olmoe": (olmoe, dict(COMMON, D=20, H=5, K=5, E=12, F=13, X=9, T=4), {}),
    "qwen2-moe": (qwen2_moe, dict(COMMON, K=3, F=11, G=23, X=5, T=2), {}),
    "qwen3-moe": (qwen3_moe, dict(COMMON, K=3, F=11, X=11, T=3), {}),
    "switch": (switch, dict(COMMON, D=20, H=5, K=5, P=19, X=5, T=1, pattern="EDE"), {}),
    "mla": (deepseek_v2, dict(LATENT), {}),
    "mla-v3": (deepseek_v3, dict(LATENT, Q=14), {}),
}


# transformers: the same weights under its names

def unpacked_rows(value):
    """Rows [H·E, …], [K·E, …], [K·E, …] of a packed weight or bias [K, J, E, …]."""
    rest = value.shape[3:]
    parts = value[:, :-2], value[:, -2], value[:, -1]
    return [part.reshape(-1, *rest) for part in parts]


NORMS = {"olmo2": {"attention.norm": "post_attention_layernorm", "mlp.norm": "post_feedforward_layernorm"},
         "opt": {"attention.norm": "self_attn_layer_norm", "mlp.norm": "final_layer_norm"},
         "gpt-j": {"norm": "ln_1"},
         "falcon": {"norm": "input_layernorm"}}
EXPERTS = ("mixtral", "olmoe", "qwen2-moe", "qwen3-moe")
for _name in ("qwen2", "qwen3", "stablelm2", "gemma", "neox", *EXPERTS):
    NORMS[_name] = {"attention.norm": "input_layernorm", "mlp.norm": "post_attention_layernorm"}
for _name in ("gemma2", "gemma3"):
    NORMS[_name] = {"attention.norm": "input_layernorm", "attention.post_norm": "post_attention_layernorm",
                    "mlp.norm": "pre_feedforward_layernorm", "mlp.post_norm": "post_feedforward_layernorm"}

# family → prefix of layers, output of attention, the feed-forward part's two products, then names outside of layers.
NAMES = {
    "llama": ("model.layers", "self_attn.o_proj", ("mlp.gate_proj", "mlp.up_proj"), "mlp.down_proj",
              {"embedding.tokens": "model.embed_tokens.weight", "final_norm": "model.norm", "head": "lm_head"}),
    "neox": ("gpt_neox.layers", "attention.dense", ("mlp.dense_h_to_4h",), "mlp.dense_4h_to_h",
             {"embedding.tokens": "gpt_neox.embed_in.weight", "final_norm": "gpt_neox.final_layer_norm",
              "head": "embed_out"}),
    "gpt-j": ("transformer.h", "attn.out_proj", ("mlp.fc_in",), "mlp.fc_out",
              {"embedding.tokens": "transformer.wte.weight", "final_norm": "transformer.ln_f", "head": "lm_head"}),
    "falcon": ("transformer.h", "self_attention.dense", ("mlp.dense_h_to_4h",), "mlp.dense_4h_to_h",
               {"embedding.tokens": "transformer.word_embeddings.weight", "final_norm": "transformer.ln_f"}),
    "opt": ("model.decoder.layers", "self_attn.out_proj", ("fc1",), "fc2",
            {"embedding.tokens": "model.decoder.embed_tokens.weight",
             "embedding.positions": "model.decoder.embed_positions.weight",
             "final_norm": "model.decoder.final_layer_norm"}),
}


def to_experts(names, at, stem, leaf, value):
    """transformers 5 holds a layer's experts in two tensors, 4 each by itself; Mixtral's have names of their own in 4."""
    block = f"{at}.mlp" if f"{at}.mlp.gate.weight" in names else f"{at}.block_sparse_moe"
    if stem == "mlp.router":
        return {f"{block}.gate.weight": value}
    if stem.startswith("mlp.shared"):
        to = {"mlp.shared.gate": ["shared_expert_gate"], "mlp.shared.fc2": ["shared_expert.down_proj"],
              "mlp.shared.fc1": ["shared_expert.gate_proj", "shared_expert.up_proj"]}[stem]
        return {f"{block}.{name}.{leaf}": part for name, part in zip(to, value.unbind(0) if len(to) == 2 else [value])}
    together = f"{block}.experts.gate_up_proj" in names
    if together:
        name, part = ("gate_up_proj", value.flatten(1, 2)) if stem.endswith("fc1") else ("down_proj", value)
        return {f"{block}.experts.{name}": part}
    gate, up, down = ("gate_proj", "up_proj", "down_proj") if block.endswith("mlp") else ("w1", "w3", "w2")
    result = {}
    for e, of_expert in enumerate(value):
        parts = [(gate, of_expert[0]), (up, of_expert[1])] if stem.endswith("fc1") else [(down, of_expert)]
        result |= {f"{block}.experts.{e}.{name}.weight": part for name, part in parts}
    return result


def to_transformers(family, values, d, names):
    """Weights, or gradients, under transformers' names and in its shapes; `names`: of its model's parameters."""
    prefix, proj, wide, narrow, outside = NAMES.get(family, NAMES["llama"])
    result = {}
    for name, value in values.items():
        if not name.startswith("layers."):
            if name in outside:
                result[outside[name]] = value
            else:
                stem, leaf = name.rsplit(".", 1)
                result[f"{outside[stem]}.{leaf}"] = value
            continue
        _, layer, path = name.split(".", 2)
        stem, leaf = path.rsplit(".", 1)
        at = f"{prefix}.{layer}"
        if stem in NORMS[family]:
            result[f"{at}.{NORMS[family][stem]}.{leaf}"] = value
        elif family in EXPERTS and stem.startswith("mlp."):
            result |= to_experts(names, at, stem, leaf, value)
        elif stem in ("attention.q_norm", "attention.k_norm"):
            result[f"{at}.self_attn.{stem.split('.')[1]}.{leaf}"] = value.reshape(-1)
        elif stem == "attention.qkv" and family in ("neox", "falcon"):
            inner = "attention" if family == "neox" else "self_attention"
            result[f"{at}.{inner}.query_key_value.{leaf}"] = value.reshape(-1, *value.shape[3:])
        elif stem == "attention.qkv":
            inner = "attn" if family == "gpt-j" else "self_attn"
            for letter, rows in zip("qkv", unpacked_rows(value)):
                result[f"{at}.{inner}.{letter}_proj.{leaf}"] = rows
        elif stem == "attention.proj":
            result[f"{at}.{proj}.{leaf}"] = value.reshape(d["D"], -1) if leaf == "weight" else value
        elif stem == "mlp.fc1":
            for part, to in zip(value.unbind(0) if len(wide) == 2 else [value], wide):
                result[f"{at}.{to}.{leaf}"] = part
        elif stem == "mlp.fc2":
            result[f"{at}.{narrow}.{leaf}"] = value
        else:
            raise KeyError(name)
    return result


def rotary_keys(transformers, theta, partial=None):
    """transformers 5 has one dict; 4 has keys beside the others, some under names of a family's own."""
    if int(transformers.__version__.split(".")[0]) >= 5:
        keys = {"rope_type": "default", "rope_theta": theta}
        if partial is not None:
            keys["partial_rotary_factor"] = partial
        return {"rope_parameters": keys}
    keys = {"rope_theta": theta, "rotary_emb_base": theta}
    if partial is not None:
        keys |= {"partial_rotary_factor": partial, "rotary_pct": partial}
    return keys


def transformers_config(transformers, family, d):
    t = transformers
    ids = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
    tied = family in ("falcon", "opt", "gemma", "gemma2", "gemma3")
    base = dict(ids, vocab_size=d["V"], hidden_size=d["D"], num_hidden_layers=d["L"], num_attention_heads=d["H"],
                tie_word_embeddings=tied, max_position_embeddings=64)
    llama = dict(base, num_key_value_heads=d["K"], head_dim=d["E"], intermediate_size=d["F"], rms_norm_eps=1e-6,
                 attention_dropout=0.0)
    gemmas = dict(llama, hidden_activation="gelu_pytorch_tanh", hidden_act="gelu_pytorch_tanh")
    if family == "qwen2":
        return t.Qwen2Config(**llama, **rotary_keys(t, 1e6), use_sliding_window=False)
    mixture = dict(llama, num_experts_per_tok=d["T"]) if family in EXPERTS else {}
    if family == "mixtral":
        return t.MixtralConfig(**dict(mixture, rms_norm_eps=1e-5), **rotary_keys(t, 1e6), num_local_experts=d["X"],
                               sliding_window=None, hidden_act="silu")
    if family == "olmoe":
        return t.OlmoeConfig(**dict(mixture, rms_norm_eps=1e-5), **rotary_keys(t, 1e4), num_experts=d["X"],
                             norm_topk_prob=False, clip_qkv=None, hidden_act="silu", attention_bias=False)
    if family == "qwen2-moe":
        return t.Qwen2MoeConfig(**mixture, **rotary_keys(t, 1e6), num_experts=d["X"], norm_topk_prob=False,
                                moe_intermediate_size=d["F"], shared_expert_intermediate_size=d["G"],
                                decoder_sparse_step=1, mlp_only_layers=[], use_sliding_window=False)
    if family == "qwen3-moe":
        return t.Qwen3MoeConfig(**mixture, **rotary_keys(t, 1e6), num_experts=d["X"], norm_topk_prob=True,
                                moe_intermediate_size=d["F"], decoder_sparse_step=1, mlp_only_layers=[],
                                use_sliding_window=False, attention_bias=False)
    if family == "qwen3":
        return t.Qwen3Config(**llama, **rotary_keys(t, 1e6), use_sliding_window=False, attention_bias=False)
    if family == "olmo2":
        return t.Olmo2Config(**llama, **rotary_keys(t, 5e5), attention_bias=False)
    if family == "neox":
        return t.GPTNeoXConfig(**base, **rotary_keys(t, 1e4, 0.25), intermediate_size=d["F"], hidden_act="gelu",
                               layer_norm_eps=1e-5, use_parallel_residual=True, attention_bias=True,
                               attention_dropout=0.0, hidden_dropout=0.0)
    if family == "gpt-j":
        return t.GPTJConfig(**ids, vocab_size=d["V"], n_positions=64, n_embd=d["D"], n_layer=d["L"], n_head=d["H"],
                            rotary_dim=d["R"], n_inner=d["F"], activation_function="gelu_new", resid_pdrop=0.0,
                            embd_pdrop=0.0, attn_pdrop=0.0, layer_norm_epsilon=1e-5, tie_word_embeddings=False)
    if family == "falcon":
        return t.FalconConfig(**base, **rotary_keys(t, 1e4), layer_norm_epsilon=1e-5, hidden_dropout=0.0,
                              attention_dropout=0.0, multi_query=True, parallel_attn=True, bias=False, alibi=False,
                              new_decoder_architecture=False, ffn_hidden_size=d["F"], activation="gelu")
    if family == "opt":
        return t.OPTConfig(**dict(base, max_position_embeddings=d["P"]), ffn_dim=d["F"], do_layer_norm_before=True,
                           word_embed_proj_dim=d["D"], dropout=0.0, attention_dropout=0.0, layerdrop=0.0,
                           activation_function="relu")
    if family == "stablelm2":
        return t.StableLmConfig(**llama, **rotary_keys(t, 1e4, 0.25), layer_norm_eps=1e-5, use_qkv_bias=True,
                                qk_layernorm=False, use_parallel_residual=False, hidden_act="silu",
                                hidden_dropout=0.0)
    if family == "gemma":
        return t.GemmaConfig(**gemmas, **rotary_keys(t, 1e4))
    kinds = ["sliding_attention" if (i % 2 == 0 if family == "gemma2" else i % 6 != 5) else "full_attention"
             for i in range(d["L"])]
    gemmas |= dict(query_pre_attn_scalar=d["Q"], sliding_window=d["W"], layer_types=kinds)
    if family == "gemma2":
        return t.Gemma2Config(**gemmas, **rotary_keys(t, 1e4), attn_logit_softcapping=d["score_cap"],
                              final_logit_softcapping=d["logit_cap"])
    rotary = dict(rope_theta=1e6, rope_local_base_freq=1e4)
    if int(t.__version__.split(".")[0]) >= 5:
        rotary = {"rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}
    return t.Gemma3TextConfig(**gemmas, **rotary, attn_logit_softcapping=None, final_logit_softcapping=None)


def transformers_model(transformers, family, d, weights):
    config = transformers_config(transformers, family, d)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()
    if hasattr(model, "set_experts_implementation"):  # transformers 5: its grouped products take no float64
        model.set_experts_implementation("eager")
    if family == "neox" and "lm_head.weight" in model.state_dict():  # renamed in transformers 5
        NAMES[family][4]["head"] = "lm_head"
    state = to_transformers(family, weights, d, dict(model.named_parameters()))
    missing, unexpected = model.load_state_dict(state, strict=False)
    # A tied head is the embedding; tables of positions are no weights.
    missing = [name for name in missing if not (name == "lm_head.weight" and config.tie_word_embeddings)
               and name in dict(model.named_parameters())]
    if missing or unexpected:
        raise RuntimeError(f"missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    return model


def largest(difference, scale):
    return float(difference.abs().max() / scale.abs().max())


def compare_with_transformers(transformers, family, forward, d, seed):
    """Largest differences of logits, loss and gradients, each over the largest number of its tensor. transformers
    normalises, rotates and exponentiates in float32, whatever the model's dtype."""
    weights, tokens, labels = drawn(forward, d, seed)
    logits, loss, _, gradients = evaluate(forward, weights, tokens, labels, d, {}, torch.float64, of_router=False)
    model = transformers_model(transformers, family, d, weights)
    theirs = model(input_ids=tokens, use_cache=False).logits.double()
    their_loss = torch.nn.functional.cross_entropy(theirs.flatten(0, 1), labels.flatten())
    their_loss.backward()
    parameters = {name: value.grad for name, value in model.named_parameters()}
    worst, where = 0.0, ""
    for name, gradient in to_transformers(family, gradients, d, parameters).items():
        if family == "opt" and name.endswith("k_proj.bias"):
            continue  # 0 but for rounding: without rotary positions a bias of keys does not change the softmax
        difference = largest(parameters[name].double() - gradient, gradient)
        if not difference <= worst:  # NaN, too
            worst, where = difference, name
    differences = (largest(theirs.detach() - logits, logits), abs(float(their_loss.detach() - loss)) / float(loss),
                   worst)
    print(f"  transformers, D {d['D']}, {d['H']} heads of {d['E']}: logits {differences[0]:.1e}, "
          f"loss {differences[1]:.1e}, gradients {differences[2]:.1e} ({where})")
    return all(difference < 1e-4 for difference in differences)


def check_with_transformers(transformers, family, forward, d, seed):
    """Some of its models cannot have H·E other than D; the comparison is made with D = H·E then, of other weights."""
    try:
        return compare_with_transformers(transformers, family, forward, d, seed)
    except Exception as error:  # of any kind: the other families go on
        print(f"  transformers, D {d['D']}, {d['H']} heads of {d['E']}: {type(error).__name__}: {str(error)[:300]}")
    try:
        return compare_with_transformers(transformers, family, forward, dict(d, D=d["H"] * d["E"]), seed)
    except Exception as error:
        print(f"  transformers FAILED: {type(error).__name__}: {str(error)[:2000]}")
        return False


# The file

def drawn(forward, d, seed):
    rng = np.random.default_rng(seed)
    tokens, labels = (torch.from_numpy(rng.integers(0, d["V"], (BATCH, SEQUENCE))) for _ in range(2))
    weights = Weights(rng=rng)
    forward(weights, tokens, d)
    assert weights.gap > 1e-4, f"a choice of experts is nearly a tie: {weights.gap}"  # float32 might choose others
    return weights.values, tokens, labels


def evaluate(forward, values, tokens, labels, d, terms, dtype, of_router=True):
    """Logits, mean loss, the routers' losses by name, and the gradients of the loss and, where `of_router`, of theirs."""
    leaves = {name: value.to(dtype).clone().requires_grad_() for name, value in values.items()}
    weights = Weights(leaves)
    logits = forward(weights, tokens, d)
    loss = mean_loss(logits, labels, **terms)
    router_losses = weights.router_losses if of_router else {}
    objective = loss + sum(weight * value for weight, value in router_losses.values())
    gradients = torch.autograd.grad(objective, list(leaves.values()), allow_unused=True)
    gradients = [weights.imbalances[name] if gradient is None else gradient for name, gradient in zip(leaves, gradients)]
    routers = {name: value.detach() for name, (_, value) in router_losses.items()}
    return logits.detach(), loss.detach(), routers, dict(zip(leaves, gradients))


def results_of(forward, values, tokens, labels, d, terms, dtype):
    """Flat: dataset path → numpy array."""
    logits, loss, routers, gradients = evaluate(forward, values, tokens, labels, d, terms, dtype)
    results = {"logits": logits.numpy(), "loss": np.float64(loss)}
    results |= {"router_losses/" + name: np.float64(value) for name, value in routers.items()}
    return results | {"gradients/" + name: g.numpy() for name, g in gradients.items()}


def write_model(group, forward, d, terms, seed):
    values, tokens, labels = drawn(forward, d, seed)
    exact = results_of(forward, values, tokens, labels, d, terms, torch.float64)
    rounded = results_of(forward, values, tokens, labels, d, terms, torch.float32)
    group["tokens"], group["labels"] = (ids.numpy().astype(np.int32) for ids in (tokens, labels))
    for name, value in values.items():
        group["parameters/" + name] = value.numpy().astype(np.float16)
    for name, value in exact.items():
        group[name] = value if value.ndim == 0 else value.astype(np.float32)
        group[name].attrs["float32_max_error"] = np.max(np.abs(value - rounded[name].astype(np.float64)))
    largest_error = max(np.max(np.abs(v - rounded[n].astype(np.float64))) / np.max(np.abs(v)) for n, v in exact.items()
                        if np.max(np.abs(v)) > 1e-9)
    print(f"{group.name}: {sum(v.numel() for v in values.values())} parameters, loss {exact['loss']:.6f}, largest "
          f"logit {np.abs(exact['logits']).max():.3f}, float32 off by {largest_error:.1e}")


def check_parts():
    """The parts against published figures and against PyTorch's own."""
    scaled, size = yarn(128, 1e4, factor=16.0, original=4096, beta_fast=32.0, beta_slow=1.0)  # transformers' figures
    assert abs(size - 1.277259) < 1e-6
    for i, f in ((20, .0562341325), (30, .00852684377), (63, 7.2173874e-6)):
        assert abs(scaled[i] / f - 1.0) < 1e-6, (i, scaled[i])
    assert slopes_of(8) == [2.0 ** -i for i in range(1, 9)]  # the paper, section 3
    assert slopes_of(12)[8:] == [2.0 ** -0.5, 2.0 ** -1.5, 2.0 ** -2.5, 2.0 ** -3.5]
    functional = torch.nn.functional
    x = torch.linspace(-4.0, 4.0, 131, dtype=torch.float64).reshape(1, -1)
    label = torch.tensor([77])
    expected = functional.cross_entropy(x, label, label_smoothing=0.1) + 0.01 * torch.logsumexp(x, -1)[0] ** 2
    assert torch.allclose(mean_loss(x, label, smoothing=0.1, z_loss=0.01), expected, rtol=1e-14)
    assert torch.allclose(gelu_erf(x), functional.gelu(x), rtol=1e-12)
    assert torch.allclose(gelu_tanh(x), functional.gelu(x, approximate="tanh"), rtol=1e-12)
    assert torch.allclose(silu(x), functional.silu(x), rtol=1e-12)


def main():
    torch.set_num_threads(1)
    check_parts()
    try:
        import transformers
        print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    except Exception as error:
        transformers = None
        print(f"without transformers, whose results are not compared ({type(error).__name__}: {error})")
    good = True
    with h5py.File(sys.argv[1], "w", libver=("v110", "v110")) as file:  # small, and older libraries read it
        for number, (name, (forward, d, terms)) in enumerate(MODELS.items()):
            write_model(file.create_group(name), forward, d, terms, seed=2000 + number)
            if transformers is not None and name not in ("mixture", "switch", "mla", "mla-v3"):
                good = check_with_transformers(transformers, name, forward, d, seed=3000 + number) and good
    if not good:
        sys.exit("a family differs from transformers, or could not be compared")


if __name__ == "__main__":
    main()
