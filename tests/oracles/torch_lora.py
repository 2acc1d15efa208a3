#!/usr/bin/python3
"""Oracle of low-rank adapters (Hu et al., arXiv:2106.09685): ten steps of PyTorch's AdamW (Debian: python3-torch,
python3-h5py) on the adapters of small models of torch_texts.py, whose forward passes, weights, tokens and names these are.
The base is frozen. Autograd, torch.nn.utils.clip_grad_norm_ and torch.optim.AdamW are PyTorch's own.

usage: torch_lora.py tests/oracles/lora.h5

A linear step NAME of a layer that a pattern names gives W x + (alpha / rank) B (A x): A is NAME.lora_a [rank, in…], B is
NAME.lora_b [out…, rank]. Neither begins as zeros here, so that both have gradients. Epsilon is large: with 1e-8 the update
of an element whose gradient is rounding noise would be ± the learning rate. Everything is computed in float64; what a
float32 run is off by at most is stored as attribute float32_max_error.

Layout of the file; one group a model, named as the recipe in tests/train/texts that tells it:
  (attributes)        rank, alpha, learning_rate, beta1, beta2, epsilon, weight_decay, clip
  tokens, labels      int32 [batch, sequence]; every label counts; position of column s is s
  parameters/<name>   float16, logical shape: before the first step
  losses              float64 [10]: the mean loss in nats, each before its step
  grad_norms          float64 [10], of the adapters' gradients, before clipping
  trained/<name>      float32, of the adapters: after ten steps
"""
import fnmatch
import math
import sys

import h5py
import numpy as np
import torch

import torch_texts as texts

STEPS = 10
ADAMW = dict(learning_rate=1e-2, beta1=0.9, beta2=0.95, epsilon=1e-3, weight_decay=0.1, clip=0.5)
# Model: rank, alpha, targets. The test has the same targets.
MODELS = {"qwen2": (3, 7.0, ["*"]), "neox": (2, 2.0, ["*.qkv", "*.fc2"])}

plain = texts.linear


def with_adapters(rank, alpha, targets):
    def linear(p, name, x, out, contracted=1, bias=False):
        y = plain(p, name, x, out, contracted, bias)
        if not name.startswith("layers.") or not any(fnmatch.fnmatchcase(name, target) for target in targets):
            return y
        inner = x.shape[x.dim() - contracted:]
        a = p(name + ".lora_a", rank, *inner).reshape(rank, -1)
        b = p(name + ".lora_b", *out, rank).reshape(-1, rank)
        flat = x.reshape(*x.shape[:x.dim() - contracted], math.prod(inner))
        return y + (alpha / rank * (flat @ a.T @ b.T)).reshape(y.shape)
    return linear


def train(forward, values, tokens, labels, d, dtype):
    """Flat: dataset path -> float64 array."""
    leaves = {name: torch.nn.Parameter(value.to(dtype).clone(), requires_grad=".lora_" in name)
              for name, value in values.items()}
    adapters = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    optimizer = torch.optim.AdamW(adapters.values(), lr=ADAMW["learning_rate"],
                                  betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["epsilon"],
                                  weight_decay=ADAMW["weight_decay"])
    losses, norms = [], []
    for _ in range(STEPS):
        loss = texts.mean_loss(forward(texts.Weights(leaves), tokens, d), labels)
        optimizer.zero_grad()
        loss.backward()
        losses.append(float(loss))
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(adapters.values()), ADAMW["clip"])))
        optimizer.step()
    results = {"losses": np.array(losses), "grad_norms": np.array(norms)}
    return results | {"trained/" + name: leaf.detach().double().numpy() for name, leaf in adapters.items()}


def main():
    torch.set_num_threads(1)
    with h5py.File(sys.argv[1], "w", libver=("v110", "v110")) as file:
        for number, (name, (rank, alpha, targets)) in enumerate(MODELS.items()):
            texts.linear = with_adapters(rank, alpha, targets)
            forward, d, _ = texts.MODELS[name]
            values, tokens, labels = texts.drawn(forward, d, 5000 + number)
            exact = train(forward, values, tokens, labels, d, torch.float64)
            rounded = train(forward, values, tokens, labels, d, torch.float32)
            group = file.create_group(name)
            group.attrs.update(ADAMW | dict(rank=rank, alpha=alpha))
            group["tokens"], group["labels"] = (ids.numpy().astype(np.int32) for ids in (tokens, labels))
            for parameter, value in values.items():
                group["parameters/" + parameter] = value.numpy().astype(np.float16)
            for result, value in exact.items():
                group[result] = value.astype(np.float32) if result.startswith("trained/") else value
                group[result].attrs["float32_max_error"] = np.max(np.abs(value - rounded[result]))
            print(f"{name}: losses {exact['losses'].round(4)}, norms {exact['grad_norms'].round(3)}")


if __name__ == "__main__":
    main()
