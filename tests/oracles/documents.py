#!/usr/bin/python3
"""Attention within documents: outputs and gradients for tests/ops/documents_test.cpp.

Apart from engine/: PyTorch in float64, which differentiates by itself. Which keys a query sees is a matrix that is made of
the documents' numbers, not of bounds.
usage: documents.py > documents.inc
"""
import torch

B, S, H, K, E = 2, 9, 4, 2, 3
# Document numbers of the tokens of each sample.
DOCUMENTS = [[0, 0, 0, 1, 2, 2, 2, 2, 2], [0, 1, 1, 1, 1, 2, 2, 3, 3]]
SCALE, WINDOW = 0.6, 3


def made(shape, seed):
    """As Made of the test."""
    count = 1
    for size in shape:
        count *= size
    at = torch.arange(count, dtype=torch.float64)
    return torch.sin(seed + 1.7 * at).reshape(shape).requires_grad_()


def show(name, tensor):
    print(f"constexpr double {name}[] = {{")
    values = tensor.detach().flatten().tolist()
    for at in range(0, len(values), 5):
        print("    " + " ".join(f"{value:.17g}," for value in values[at : at + 5]))
    print("};")


def case(name, causal, window):
    q, k, v = made((B, S, H, E), 0.1), made((B, S, K, E), 0.2), made((B, S, K, E), 0.3)
    document = torch.tensor(DOCUMENTS)
    seen = document[:, :, None] == document[:, None, :]
    distance = torch.arange(S)[:, None] - torch.arange(S)[None, :]
    if causal:
        seen = seen & (distance >= 0)
    if window:
        seen = seen & (distance < WINDOW)
    group = H // K
    scores = SCALE * torch.einsum("bihe,bjhe->bhij", q, k.repeat_interleave(group, dim=2))
    scores = scores.masked_fill(~seen[:, None], float("-inf"))
    o = torch.einsum("bhij,bjhe->bihe", torch.softmax(scores, dim=-1), v.repeat_interleave(group, dim=2))
    d_o = torch.cos(0.5 + 0.9 * torch.arange(o.numel(), dtype=torch.float64)).reshape(o.shape)
    o.backward(d_o)
    show(f"k{name}Output", o)
    show(f"k{name}Lse", torch.logsumexp(scores, dim=-1).transpose(1, 2))
    for part, tensor in (("Q", q), ("K", k), ("V", v)):
        show(f"k{name}Grad{part}", tensor.grad)


if __name__ == "__main__":
    print("// Made by tests/oracles/documents.py.")
    case("Causal", causal=True, window=False)
    case("Window", causal=True, window=True)
    case("Whole", causal=False, window=False)
