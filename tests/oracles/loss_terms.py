#!/usr/bin/python3
"""Oracle of cross entropy with label smoothing and z-loss: plain Python, in float64. Written from the definitions,
and shares nothing with the engine:

  loss     the cross entropy of the wanted distribution (1 - smoothing) * onehot(label) + smoothing / classes with the
           softmax of the logits (torch.nn.functional.cross_entropy's label_smoothing), plus z_loss * log(Z)**2, Z being
           the softmax's denominator (PaLM, arXiv:2204.02311, section 5); summed over tokens with a label >= 0
  d_logits of scale * loss, by the complex step: the imaginary part of f(z + i h) / h, exact to rounding as no
           difference is taken

Where PyTorch is installed (Debian: python3-torch), both are compared with its own.

usage: loss_terms.py tests/oracles/loss_terms.json
"""
import cmath
import json
import math
import sys

COLUMNS, CLASSES, SCALE = 7, 5, 0.25  # columns from CLASSES on pad the vocabulary
LABELS = [2, -1, 0, 4]
TERMS = [(0.0, 0.0), (0.1, 0.0), (0.0, 0.01), (0.3, 0.2)]
STEP = 1e-200


def logit(token, column):
    return round(3.0 * math.sin(1.7 * token + 2.3 * column + 0.4), 3)


def loss(z, label, smoothing, z_loss):
    if label < 0:
        return 0.0
    # The largest real part is taken out of the exponentials, as a constant.
    top = max(value.real for value in z[:CLASSES])
    log_z = top + cmath.log(sum(cmath.exp(value - top) for value in z[:CLASSES]))
    total = z_loss * log_z**2
    for column in range(CLASSES):
        wanted = smoothing / CLASSES + (1.0 - smoothing if column == label else 0.0)
        total += wanted * (log_z - z[column])
    return total


def gradient(z, label, smoothing, z_loss):
    result = []
    for column in range(COLUMNS):
        moved = [complex(value, STEP if at == column else 0.0) for at, value in enumerate(z)]
        result.append(SCALE * complex(loss(moved, label, smoothing, z_loss)).imag / STEP)
    return result


def compare_with_torch(logits, case):
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed: not compared with it")
        return
    z = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    classes = z[:, :CLASSES]
    total = torch.nn.functional.cross_entropy(classes, torch.tensor(LABELS), ignore_index=-1, reduction="sum",
                                              label_smoothing=case["smoothing"])
    counted = torch.tensor([label >= 0 for label in LABELS], dtype=torch.float64)
    total = total + case["z_loss"] * (counted * torch.logsumexp(classes, 1)**2).sum()
    (SCALE * total).backward()
    assert abs(total.item() - case["loss"]) < 1e-12, (total.item(), case)
    assert (z.grad - torch.tensor(case["d_logits"])).abs().max() < 1e-13, case


def main():
    logits = [[logit(token, column) for column in range(COLUMNS)] for token in range(len(LABELS))]
    cases = []
    for smoothing, z_loss in TERMS:
        case = {"smoothing": smoothing, "z_loss": z_loss,
                "loss": sum(complex(loss(z, label, smoothing, z_loss)).real for z, label in zip(logits, LABELS)),
                "d_logits": [gradient(z, label, smoothing, z_loss) for z, label in zip(logits, LABELS)]}
        compare_with_torch(logits, case)
        cases.append(case)
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump({"classes": CLASSES, "scale": SCALE, "labels": LABELS, "logits": logits, "cases": cases}, file,
                  indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
