#!/usr/bin/python3
"""Attention with a soft cap, linear biases, sinks, a window and grouped heads: outputs and gradients for
tests/ops/attention_forms_test.cpp.

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


def main():
    q, k, v = made(B * S * H * E, 0.1), made(B * S * K * E, 0.2), made(B * S * K * E, 0.3)
    sinks, slope = made(H, 0.4), slopes(H)
    outputs, lses = [], []
    for b in range(B):
        for i in range(S):
            for h in range(H):
                row = ((b * S + i) * H + h) * E
                weights, values = [], []
                for j in range(max(0, i - WINDOW + 1), i + 1):
                    key = ((b * S + j) * K + h // (H // K)) * E
                    score = total([q[row + e] * k[key + e] for e in range(E)]).times(SCALE)
                    score = score.times(1 / CAP).tanh().times(CAP).plus(-slope[h] * (i - j))
                    weights.append(score.exp())
                    values.append(v[key : key + E])
                sum_ = total(weights + [sinks[h].exp()])
                lses.append(sum_.log().value)
                for e in range(E):
                    outputs.append(total([w * value[e] for w, value in zip(weights, values)]) * sum_.inverse())
    loss = total([o.times(math.cos(0.5 + 0.9 * at)) for at, o in enumerate(outputs)])
    differentiate(loss)
    print("// Made by tests/oracles/attention_forms.py.")
    show("kOutput", [o.value for o in outputs])
    show("kLse", lses)
    for name, numbers in (("kGradQ", q), ("kGradK", k), ("kGradV", v), ("kGradSinks", sinks)):
        show(name, [number.gradient for number in numbers])


if __name__ == "__main__":
    main()
