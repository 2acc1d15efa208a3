#!/usr/bin/python3
"""Oracle of sampling: what the next token is drawn from, log-probabilities, and the draw. NumPy in float64, written from
the definitions as masks over the whole vocabulary, as the processors of Hugging Face's transformers are; shares nothing with
the engine, also not Philox4x32-10 (Salmon et al., SC 2011).

usage: sampling.py [--check] tests/oracles/sampling.json
"""
import json
import sys

import numpy as np

VOCABULARY = 40
OPTIONS = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"temperature": 3.0, "repetition_penalty": 1.8},
    {"repetition_penalty": 0.6},
    {"top_k": 1},
    {"top_k": 5},
    {"top_p": 0.0},
    {"top_p": 0.3},
    {"top_p": 0.9, "temperature": 1.5},
    {"min_p": 0.2},
    {"min_p": 1.0},
    {"repetition_penalty": 1.3, "temperature": 1.4, "top_k": 12, "top_p": 0.8, "min_p": 0.15},
    {"temperature": 1e-9},
]


def filtered(logits, seen, repetition_penalty=1.0, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """Probabilities [vocabulary], 0 where a token cannot be drawn."""
    scores = np.array(logits, dtype=np.float64)
    for token in sorted(set(seen)):
        scores[token] = scores[token] / repetition_penalty if scores[token] > 0 else scores[token] * repetition_penalty
    if temperature == 0.0:
        chosen = np.zeros_like(scores)
        chosen[np.argmax(scores)] = 1.0
        return chosen
    scores = (scores - scores.max()) / temperature
    if top_k > 0:
        scores[np.argsort(-scores, kind="stable")[top_k:]] = -np.inf
    if top_p < 1.0:
        # From the least likely up: those whose sum, with all below them, is at most 1 - p go; the last one stays.
        ascending = np.argsort(-scores, kind="stable")[::-1]
        p = softmax(scores)[ascending]
        goes = np.cumsum(p) <= 1.0 - top_p
        goes[-1] = False
        scores[ascending[goes]] = -np.inf
    p = softmax(scores)
    scores[p < min_p * p.max()] = -np.inf
    return softmax(scores)


def softmax(scores):
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def log_softmax(logits):
    z = np.array(logits, dtype=np.float64)
    return z - z.max() - np.log(np.exp(z - z.max()).sum())


def key_of(seed, name):
    mask = (1 << 64) - 1
    fnv = 14695981039346656037
    for byte in name.encode():
        fnv = ((fnv ^ byte) * 1099511628211) & mask
    mixed = (fnv + 0x9E3779B97F4A7C15 * (seed + 1)) & mask
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
    mixed ^= mixed >> 31
    return [mixed & 0xFFFFFFFF, mixed >> 32]


def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def uniform(seed, request, position):
    low = 0xFFFFFFFF
    words = philox([position & low, position >> 32, request & low, request >> 32], key_of(seed, "generate"))
    return (((words[0] << 32) | words[1]) >> 11) / 2.0**53


def cases():
    generator = np.random.default_rng(27)
    logits = np.round(generator.normal(0.0, 2.5, VOCABULARY) * 64) / 64  # exact in float32
    logits[7] = logits[3]  # equal ones: the lower id comes first
    logits[11] = -np.inf
    seen = [3, 5, 5, int(np.argmax(logits)), 20]
    log_probabilities = log_softmax(logits)
    top = np.argsort(-log_probabilities, kind="stable")[:6]
    finite = [None if np.isinf(v) else float(v) for v in logits]
    answer = {"logits": finite, "seen": seen, "log_probabilities": [None if np.isinf(v) else float(v) for v in log_probabilities],
              "top": [int(t) for t in top], "cases": [], "draws": []}
    for options in OPTIONS:
        p = filtered(logits, seen, **options)
        answer["cases"].append({"options": options, "probabilities": {str(t): float(p[t]) for t in np.nonzero(p)[0]}})
    for seed, request, position in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (2**63 + 5, 2**40 + 3, 2**33 + 9), (1234, 7, 31)]:
        answer["draws"].append({"seed": seed, "request": request, "position": position,
                                "uniform": uniform(seed, request, position)})
    return json.dumps(answer, indent=1) + "\n"


def main():
    path = sys.argv[-1]
    text = cases()
    if "--check" in sys.argv:
        with open(path) as file:
            sys.exit(0 if file.read() == text else f"{path} is not what this script writes")
    with open(path, "w") as file:
        file.write(text)


if __name__ == "__main__":
    main()
