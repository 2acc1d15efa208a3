#!/usr/bin/python3
"""Oracle of training models with experts: ten steps of PyTorch's AdamW (Debian: python3-torch, python3-h5py) on the small
models with experts of torch_texts.py, whose forward passes, weights, tokens and names these are. What the engine does in a
step is PyTorch's own here: autograd, torch.nn.utils.clip_grad_norm_ and torch.optim.AdamW.

usage: torch_steps.py tests/oracles/steps.h5

Each step takes the same tokens and labels. Its objective is the mean loss plus the routers' losses times their weights.
Weight decay is for matrices, tables and routers, not for gains and biases. Epsilon is large: with 1e-8 the update of an
element whose gradient is rounding noise would be ± the learning rate. Everything is computed in float64; what a float32 run
is off by at most is stored as attribute float32_max_error. No step is near a tie between two experts, so that float32 goes
the same way.

Layout of the file; one group a model, named as the recipe in tests/train/texts that tells it:
  (attributes)        learning_rate, beta1, beta2, epsilon, weight_decay, clip
  tokens, labels      int32 [batch, sequence]; every label counts; position of column s is s
  parameters/<name>   float16, logical shape: before the first step
  losses              float64 [10]: the mean loss without the routers', in nats, each before its step
  router_losses/<name>  float64 [10]: a router's loss by the name of its metric, without its weight
  grad_norms          float64 [10], of the objective, before clipping
  trained/<name>      float32: after ten steps
"""
import sys

import h5py
import numpy as np
import torch

import torch_texts as texts

STEPS = 10
LEAST_GAP = 1e-4  # in logits, from the last expert that is chosen to the first that is not
ADAMW = dict(learning_rate=1e-2, beta1=0.9, beta2=0.95, epsilon=1e-3, weight_decay=0.1, clip=1.0)
MODELS = ("mixtral", "olmoe", "qwen2-moe", "qwen3-moe", "switch")


def decays(name):
    return not (name.endswith(".bias") or "norm" in name)


def train(forward, values, tokens, labels, d, dtype):
    """Flat: dataset path → float64 array; and the smallest distance to a tie."""
    leaves = {name: torch.nn.Parameter(value.to(dtype).clone()) for name, value in values.items()}
    groups = [dict(params=[leaf for name, leaf in leaves.items() if decays(name) == decay],
                   weight_decay=ADAMW["weight_decay"] if decay else 0.0) for decay in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr=ADAMW["learning_rate"], betas=(ADAMW["beta1"], ADAMW["beta2"]),
                                  eps=ADAMW["epsilon"])
    losses, norms, routers, gap = [], [], {}, np.inf
    for _ in range(STEPS):
        weights = texts.Weights(leaves)
        loss = texts.mean_loss(forward(weights, tokens, d), labels)
        objective = loss + sum(weight * value for weight, value in weights.router_losses.values())
        optimizer.zero_grad()
        objective.backward()
        losses.append(float(loss))
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(leaves.values()), ADAMW["clip"])))
        for name, (_, value) in weights.router_losses.items():
            routers.setdefault("router_losses/" + name, []).append(float(value))
        gap = min(gap, weights.gap)
        optimizer.step()
    results = {"losses": np.array(losses), "grad_norms": np.array(norms)}
    results |= {name: np.array(each) for name, each in routers.items()}
    results |= {"trained/" + name: leaf.detach().double().numpy() for name, leaf in leaves.items()}
    return results, gap


def write_model(group, forward, d, seed):
    """Of the first seed from `seed` on with which no step is near a tie."""
    gap = 0.0
    while gap < LEAST_GAP:
        values, tokens, labels = texts.drawn(forward, d, seed)
        exact, gap = train(forward, values, tokens, labels, d, torch.float64)
        seed += 1
    rounded, _ = train(forward, values, tokens, labels, d, torch.float32)
    group.attrs.update(ADAMW)
    group["tokens"], group["labels"] = (ids.numpy().astype(np.int32) for ids in (tokens, labels))
    for name, value in values.items():
        group["parameters/" + name] = value.numpy().astype(np.float16)
    for name, value in exact.items():
        group[name] = value.astype(np.float32) if name.startswith("trained/") else value
        group[name].attrs["float32_max_error"] = np.max(np.abs(value - rounded[name]))
    moved = max(np.max(np.abs(value.numpy() - exact["trained/" + name])) for name, value in values.items())
    off = max(group[name].attrs["float32_max_error"] for name in exact if name.startswith("trained/"))
    print(f"{group.name}: losses {exact['losses'].round(4)}, norms {exact['grad_norms'].round(3)}, distance to a tie "
          f"{gap:.1e}, a weight moved by {moved:.3f} at most, float32 off by {off:.1e}")


def main():
    torch.set_num_threads(1)
    with h5py.File(sys.argv[1], "w", libver=("v110", "v110")) as file:
        for number, name in enumerate(MODELS):
            forward, d, terms = texts.MODELS[name]
            assert not terms
            write_model(file.create_group(name), forward, d, seed=4000 + 100 * number)


if __name__ == "__main__":
    main()
