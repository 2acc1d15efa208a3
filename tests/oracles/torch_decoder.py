#!/usr/bin/python3
"""Oracle of the decoder family: small transformers in PyTorch, gradients by its autograd (Debian:
python3-torch, python3-h5py). Written from the papers named at each function; shares nothing with the engine
but the names, shapes and packing of the parameters, which are those of checkpoints (engine/model/decoder.h,
engine/ops/qkv.cpp).

usage: torch_decoder.py tests/oracles/decoder.h5

Everything is computed in float64 from parameters that are exact float32 numbers, and stored as float32
(losses and norms as float64). The same computation runs once more in float32: what it is off by at most is
stored as attribute `float32_max_error` of each result, the scale of the rounding error that a float32 engine
may show.

Layout of the file; one group a model:
  gpt2          learned positions, LayerNorm, gelu_tanh, biases, tied embeddings
  gpt2_erf      the same with gelu_erf, untied
  llama         rotary, RMSNorm, SwiGLU, 4 heads on 2 kv heads, no biases, untied
  llama_scaled  the same with Llama-3 scaling, sliding window 5, 4 heads of 16 on 1 kv head, tied

  attributes of the group, named as recipe keys: layers, hidden, vocab, max_positions, heads, kv_heads,
    head_dim, position, rope_base, rope_factor, rope_low, rope_high, rope_original, window, bias (of attention
    and mlp), ffn, activation, norm, epsilon, tied_embeddings; batch, sequence
  tokens, labels      int32 [batch, sequence]; every label counts; position of column s is s
  parameters/<name>   float32, logical shape (the vocabulary is not padded), as layers.0.attention.qkv.weight
  logits              float32 [batch, sequence, vocab]
  loss                float64 scalar: mean cross entropy over all labels, in nats
  gradients/<name>    float32, of that mean
  adamw               five iterations on the same tokens and labels: gradients of the mean loss, scaled by
                      min(1, clip / (norm + 1e-6)), then AdamW with bias correction and decoupled decay,
                      p -= lr (m̂ / (√v̂ + ε) + λ p); λ = 0 for tensors of rank 1 and names ending in .bias;
                      attributes: learning_rate, beta1, beta2, epsilon, weight_decay, clip
  adamw/losses        float64 [5], each before its iteration's update
  adamw/grad_norms    float64 [5], before clipping
  adamw/parameters/<name>  float32, after five updates

A trap: without rotary positions the key biases (plane J-2 of dim 1 of qkv.bias) do not change the softmax, so
their true gradient is 0 and AdamW divides rounding noise by its own size plus ε: the key plane of
adamw/parameters/*.qkv.bias can only be compared to within iterations × lr, and it does not influence any
loss. Elsewhere, too, an element whose gradient is near ε amplifies rounding, which float32_max_error of its
tensor shows.
"""
import math
import sys

import h5py
import numpy as np
import torch

ADAMW = dict(learning_rate=1e-3, beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1, clip=1.0)
ITERATIONS = 5

GPT2 = dict(layers=3, hidden=32, vocab=61, max_positions=20, heads=4, kv_heads=4, head_dim=8,
            position="learned", rope_base=10000.0, rope_factor=1.0, rope_low=1.0, rope_high=4.0,
            rope_original=8192.0, window=0, bias=True, ffn=128, activation="gelu_tanh", norm="layernorm",
            epsilon=1e-5, tied_embeddings=True, batch=3, sequence=16)
LLAMA = dict(GPT2, kv_heads=2, position="rotary", bias=False, ffn=48, activation="swiglu", norm="rmsnorm",
             tied_embeddings=False)
MODELS = {
    "gpt2": GPT2,
    "gpt2_erf": dict(GPT2, activation="gelu_erf", tied_embeddings=False),
    "llama": LLAMA,
    "llama_scaled": dict(LLAMA, kv_heads=1, head_dim=16, window=5, tied_embeddings=True, rope_factor=8.0,
                         rope_original=100.0),
}


def parameter_shapes(k):
    hidden, ffn = k["hidden"], k["ffn"]
    rows = k["heads"] // k["kv_heads"] + 2
    norm = {"weight": (hidden,)} | ({"bias": (hidden,)} if k["norm"] == "layernorm" else {})
    wide = (2, ffn) if k["activation"] == "swiglu" else (ffn,)
    blocks = {"attention.qkv": ((k["kv_heads"], rows, k["head_dim"]), (hidden,)),
              "attention.proj": ((hidden,), (k["heads"], k["head_dim"])),
              "mlp.fc1": (wide, (hidden,)),
              "mlp.fc2": ((hidden,), (ffn,))}
    shapes = {"embedding.tokens": (k["vocab"], hidden)}
    if k["position"] == "learned":
        shapes["embedding.positions"] = (k["max_positions"], hidden)
    for layer in range(k["layers"]):
        for block in ("attention", "mlp"):
            shapes |= {f"layers.{layer}.{block}.norm.{leaf}": shape for leaf, shape in norm.items()}
        for name, (out, contracted) in blocks.items():
            shapes[f"layers.{layer}.{name}.weight"] = out + contracted
            if k["bias"]:
                shapes[f"layers.{layer}.{name}.bias"] = out
    shapes |= {f"final_norm.{leaf}": shape for leaf, shape in norm.items()}
    if not k["tied_embeddings"]:
        shapes["head.weight"] = (k["vocab"], hidden)
    return shapes


def draw_parameters(shapes, rng):
    """Large enough that every path matters: norm weights around 1, biases and norm biases not zero."""
    parameters = {}
    for name, shape in shapes.items():
        if name.endswith("norm.weight"):
            values = 1.0 + 0.2 * rng.standard_normal(shape)
        else:
            std = 0.3 if len(shape) == 1 or name.startswith("embedding") else 0.15
            values = std * rng.standard_normal(shape)
        parameters[name] = values.astype(np.float32)
    return parameters


def layer_norm(x, weight, bias, epsilon):
    """Ba et al., arXiv:1607.06450; the variance is the biased one."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred ** 2).mean(-1, keepdim=True) + epsilon) * weight + bias


def rms_norm(x, weight, epsilon):
    """Zhang & Sennrich, arXiv:1910.07467."""
    return x / torch.sqrt((x ** 2).mean(-1, keepdim=True) + epsilon) * weight


def gelu(x, tanh):
    """Hendrycks & Gimpel, arXiv:1606.08415: x Φ(x), and its tanh approximation."""
    if tanh:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x ** 3)))
    return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))


def rotary_frequencies(k):
    """Su et al., arXiv:2104.09864, and the scaling of Llama 3.1 (its reference code, `apply_scaling`)."""
    frequencies = []
    for i in range(k["head_dim"] // 2):
        f = k["rope_base"] ** (-2.0 * i / k["head_dim"])
        wavelength = 2.0 * math.pi / f
        if k["rope_factor"] != 1.0:
            if wavelength > k["rope_original"] / k["rope_low"]:
                f /= k["rope_factor"]
            elif wavelength >= k["rope_original"] / k["rope_high"]:
                smooth = (k["rope_original"] / wavelength - k["rope_low"]) / (k["rope_high"] - k["rope_low"])
                f = (1.0 - smooth) * f / k["rope_factor"] + smooth * f
        frequencies.append(f)
    return frequencies


def rotate(x, frequencies):
    """x [batch, heads, sequence, head_dim] as complex x[i] + j x[i + head_dim / 2], turned by e^(j s f_i)."""
    positions = torch.arange(x.shape[2], dtype=torch.float64)
    angles = positions[:, None] * torch.tensor(frequencies, dtype=torch.float64)
    turn = torch.polar(torch.ones_like(angles).to(x.dtype), angles.to(x.dtype))
    real, imaginary = x.chunk(2, dim=-1)
    turned = torch.complex(real.contiguous(), imaginary.contiguous()) * turn
    return torch.cat([turned.real, turned.imag], dim=-1)


def attention(qkv, k):
    """Vaswani et al., arXiv:1706.03762, causal; grouped queries: Ainslie et al., arXiv:2305.13245.

    qkv [batch, sequence, kv_heads, heads / kv_heads + 2, head_dim] → [batch, sequence, heads, head_dim]
    """
    batch, sequence = qkv.shape[:2]
    group = k["heads"] // k["kv_heads"]
    query = qkv[:, :, :, :group].reshape(batch, sequence, k["heads"], k["head_dim"]).transpose(1, 2)
    key, value = (qkv[:, :, :, group + i].transpose(1, 2) for i in range(2))
    if k["position"] == "rotary":
        frequencies = rotary_frequencies(k)
        query, key = rotate(query, frequencies), rotate(key, frequencies)
    key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
    distance = torch.arange(sequence)[:, None] - torch.arange(sequence)[None, :]
    hidden = distance < 0
    if k["window"] > 0:
        hidden = hidden | (distance >= k["window"])
    scores = query @ key.transpose(-1, -2) / math.sqrt(k["head_dim"])
    probabilities = torch.softmax(scores.masked_fill(hidden, -math.inf), dim=-1)
    return (probabilities @ value).transpose(1, 2)


def linear(x, p, name, contracted=1):
    """Collapses the weight [out…, in…] to a matrix; x ends in the in… dims, the result in the out… dims."""
    weight = p[name + ".weight"]
    out = weight.shape[:weight.dim() - contracted]
    y = (x.flatten(-contracted) if contracted > 1 else x) @ weight.reshape(out.numel(), -1).T
    y = y.reshape(y.shape[:-1] + out)
    return y + p[name + ".bias"] if name + ".bias" in p else y


def forward(p, tokens, k):
    """Pre-norm decoder (GPT-2; Llama, arXiv:2302.13971; SwiGLU: Shazeer, arXiv:2002.05202) → logits."""
    def norm(x, name):
        if k["norm"] == "rmsnorm":
            return rms_norm(x, p[name + ".weight"], k["epsilon"])
        return layer_norm(x, p[name + ".weight"], p[name + ".bias"], k["epsilon"])

    x = p["embedding.tokens"][tokens]
    if k["position"] == "learned":
        x = x + p["embedding.positions"][:tokens.shape[1]]
    for layer in range(k["layers"]):
        name = f"layers.{layer}.attention"
        mixed = attention(linear(norm(x, name + ".norm"), p, name + ".qkv"), k)
        x = x + linear(mixed, p, name + ".proj", contracted=2)
        name = f"layers.{layer}.mlp"
        wide = linear(norm(x, name + ".norm"), p, name + ".fc1")
        if k["activation"] == "swiglu":
            gate, up = wide.unbind(-2)
            active = gate / (1.0 + torch.exp(-gate)) * up
        else:
            active = gelu(wide, tanh=k["activation"] == "gelu_tanh")
        x = x + linear(active, p, name + ".fc2")
    head = p["embedding.tokens"] if k["tied_embeddings"] else p["head.weight"]
    return norm(x, "final_norm") @ head.T


def loss_and_gradients(p, tokens, labels, k):
    leaves = {name: value.clone().requires_grad_() for name, value in p.items()}
    logits = forward(leaves, tokens, k)
    picked = logits.gather(-1, labels[..., None])[..., 0]
    loss = (torch.logsumexp(logits, dim=-1) - picked).mean()
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return logits.detach(), loss.detach(), dict(zip(leaves, gradients))


def adamw(p, tokens, labels, k):
    """Loshchilov & Hutter, arXiv:1711.05101."""
    p = {name: value.clone() for name, value in p.items()}
    first, second = ({name: torch.zeros_like(value) for name, value in p.items()} for _ in range(2))
    losses, norms = [], []
    for step in range(1, ITERATIONS + 1):
        _, loss, gradients = loss_and_gradients(p, tokens, labels, k)
        norm = math.sqrt(sum(float((g.double() ** 2).sum()) for g in gradients.values()))
        losses.append(float(loss))
        norms.append(norm)
        factor = min(1.0, ADAMW["clip"] / (norm + 1e-6))
        for name, value in p.items():
            g = gradients[name] * factor
            first[name] = ADAMW["beta1"] * first[name] + (1 - ADAMW["beta1"]) * g
            second[name] = ADAMW["beta2"] * second[name] + (1 - ADAMW["beta2"]) * g ** 2
            m_hat = first[name] / (1 - ADAMW["beta1"] ** step)
            v_hat = second[name] / (1 - ADAMW["beta2"] ** step)
            decayed = value.dim() >= 2 and not name.endswith(".bias")
            decay = ADAMW["weight_decay"] if decayed else 0.0
            step_size = m_hat / (torch.sqrt(v_hat) + ADAMW["epsilon"]) + decay * value
            p[name] = value - ADAMW["learning_rate"] * step_size
    return np.array(losses), np.array(norms), p


def run(parameters, tokens, labels, k, dtype):
    """All results in `dtype`, flat: dataset path → numpy array."""
    p = {name: torch.from_numpy(value).to(dtype) for name, value in parameters.items()}
    tokens, labels = (torch.from_numpy(ids).long() for ids in (tokens, labels))
    logits, loss, gradients = loss_and_gradients(p, tokens, labels, k)
    losses, norms, trained = adamw(p, tokens, labels, k)
    results = {"logits": logits.numpy(), "loss": np.float64(loss),
               "adamw/losses": losses, "adamw/grad_norms": norms}
    results |= {"gradients/" + name: g.numpy() for name, g in gradients.items()}
    results |= {"adamw/parameters/" + name: value.numpy() for name, value in trained.items()}
    return results


def write_model(group, k, rng):
    parameters = draw_parameters(parameter_shapes(k), rng)
    shape = (k["batch"], k["sequence"])
    tokens, labels = (rng.integers(0, k["vocab"], shape).astype(np.int32) for _ in range(2))
    exact = run(parameters, tokens, labels, k, torch.float64)
    rounded = run(parameters, tokens, labels, k, torch.float32)
    group.attrs.update(k)
    group["tokens"], group["labels"] = tokens, labels
    for name, value in parameters.items():
        group["parameters/" + name] = value
    for name, value in exact.items():
        scalar = name in ("loss", "adamw/losses", "adamw/grad_norms")
        group[name] = value if scalar else value.astype(np.float32)
        group[name].attrs["float32_max_error"] = np.max(np.abs(value - rounded[name].astype(np.float64)))
    group["adamw"].attrs.update(ADAMW)
    print(f"{group.name}: {sum(v.size for v in parameters.values())} parameters, "
          f"losses {exact['adamw/losses'].round(6)}, norms {exact['adamw/grad_norms'].round(6)}")


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with h5py.File(sys.argv[1], "w") as file:
        for number, (name, k) in enumerate(MODELS.items()):
            write_model(file.create_group(name), k, np.random.default_rng(1000 + number))


if __name__ == "__main__":
    main()
