#!/usr/bin/python3
"""Attention with a soft cap, linear biases, sinks, biases by distance, a window and grouped heads: outputs and gradients
for tests/ops/attention_forms_test.cpp.

Apart from engine/: scores are lists of Python floats, one query at a time, and gradients come from differentiating each
arithmetic step in turn (reverse mode on scalars), not from a formula for attention.
usage: attention_forms.py > attention_forms.inc
"""
import math

B, S, H, K, E, WINDOW = 2, 7, 6, 2, 3, 4
SCALE, CAP = 0.6, 1.5


class Number:
    """A value, and what each number that it was made of changes it by."""

    def __init__(self, value, parents=()):
        self.value, self.parents, self.gradient = value, parents, 0.0

    def __add__(self, other):
        return Number(self.value + other.value, [(self, 1.0), (other, 1.0)])

    def __mul__(self, other):
        return Number(self.value * other.value, [(self, other.value), (other, self.value)])

    def times(self, constant):
        return Number(self.value * constant, [(self, constant)])

    def plus(self, constant):
        return Number(self.value + constant, [(self, 1.0)])

    def exp(self):
        return Number(math.exp(self.value), [(self, math.exp(self.value))])

    def log(self):
        return Number(math.log(self.value), [(self, 1 / self.value)])

    def inverse(self):
        return Number(1 / self.value, [(self, -1 / self.value**2)])

    def tanh(self):
        return Number(math.tanh(self.value), [(self, 1 / math.cosh(self.value) ** 2)])


def differentiate(result):
    order, seen = [], set()

    def visit(number):
        stack = [(number, iter(number.parents))]
        seen.add(id(number))
        while stack:
            at, parents = stack[-1]
            for parent, _ in parents:
                if id(parent) not in seen:
                    seen.add(id(parent))
                    stack.append((parent, iter(parent.parents)))
                    break
            else:
                order.append(at)
                stack.pop()

    visit(result)
    result.gradient = 1.0
    for number in reversed(order):
        for parent, by in number.parents:
            parent.gradient += by * number.gradient


def slopes(heads):
    """The recursion of the ALiBi paper's code (arXiv:2108.12409)."""
    if math.log2(heads).is_integer():
        start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [start * start**i for i in range(heads)]
    closest = 2 ** math.floor(math.log2(heads))
    return slopes(closest) + slopes(2 * closest)[0::2][: heads - closest]


def total(numbers):
    sum_ = numbers[0]
    for number in numbers[1:]:
        sum_ = sum_ + number
    return sum_


def made(count, seed):
    """As Made of the test."""
    return [Number(math.sin(seed + 1.7 * i)) for i in range(count)]


def show(name, values):
    print(f"constexpr double {name}[] = {{")
    for at in range(0, len(values), 5):
        print("    " + " ".join(f"{value:.17g}," for value in values[at : at + 5]))
    print("};")


class Form:
    """What attention is of: sizes, mask and terms of the scores. spans: of each query of a sample (first, last)."""

    def __init__(self, samples, queries, keys, heads, kv_heads, features, **terms):
        self.b, self.s, self.t, self.h, self.k, self.e = samples, queries, keys, heads, kv_heads, features
        self.scale, self.cap, self.window, self.causal = SCALE, None, None, True
        self.alibi, self.sinks, self.distance, self.spans = False, False, 0, None
        self.__dict__.update(terms)

    def sees(self, b, i, j):
        if self.spans and not self.spans[b][i][0] <= j < self.spans[b][i][1]:
            return False
        return not self.causal or (j <= i and (self.window is None or i - j < self.window))


def attention(prefix, form):
    """Prints the constants of one form, named with this prefix."""
    q, k, v = (
        made(form.b * form.s * form.h * form.e, 0.1),
        made(form.b * form.t * form.k * form.e, 0.2),
        made(form.b * form.t * form.k * form.e, 0.3),
    )
    sinks, slope = made(form.h, 0.4), slopes(form.h)
    biases = made(form.h * (2 * form.distance + 1), 0.6)
    outputs, lses = [], []
    for b in range(form.b):
        for i in range(form.s):
            for h in range(form.h):
                row = ((b * form.s + i) * form.h + h) * form.e
                weights, values = [], []
                for j in range(form.t):
                    if not form.sees(b, i, j):
                        continue
                    key = ((b * form.t + j) * form.k + h // (form.h // form.k)) * form.e
                    score = total([q[row + e] * k[key + e] for e in range(form.e)]).times(form.scale)
                    if form.cap:
                        score = score.times(1 / form.cap).tanh().times(form.cap)
                    if form.alibi:
                        score = score.plus(-slope[h] * (i - j))
                    if form.distance:
                        behind = sorted([-form.distance, j - i, form.distance])[1]
                        score = score + biases[h * (2 * form.distance + 1) + form.distance + behind]
                    weights.append(score.exp())
                    values.append(v[key : key + form.e])
                sum_ = total(weights + ([sinks[h].exp()] if form.sinks else []))
                lses.append(sum_.log().value)
                for e in range(form.e):
                    outputs.append(total([w * value[e] for w, value in zip(weights, values)]) * sum_.inverse())
    differentiate(total([o.times(math.cos(0.5 + 0.9 * at)) for at, o in enumerate(outputs)]))
    show(f"k{prefix}Output", [o.value for o in outputs])
    show(f"k{prefix}Lse", lses)
    gradients = [("Q", q), ("K", k), ("V", v)]
    gradients += [("Sinks", sinks)] if form.sinks else []
    gradients += [("Biases", biases)] if form.distance else []
    for name, numbers in gradients:
        show(f"k{prefix}Grad{name}", [number.gradient for number in numbers])


def main():
    print("// Made by tests/oracles/attention_forms.py.")
    attention("", Form(B, S, S, H, K, E, window=WINDOW, cap=CAP, alibi=True, sinks=True))
    # Biases by distance: of documents, beside all other terms; and without a mask, of keys that are another sequence.
    documents = [[(0, 3)] * 3 + [(3, 6)] * 3, [(0, 1)] + [(1, 6)] * 5]
    attention(
        "Near",
        Form(2, 6, 6, 4, 2, 2, window=4, cap=CAP, alibi=True, sinks=True, distance=2, spans=documents),
    )
    attention("Cross", Form(2, 4, 7, 4, 2, 2, causal=False, distance=4))


if __name__ == "__main__":
    main()
