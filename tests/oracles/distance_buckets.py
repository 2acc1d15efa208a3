#!/usr/bin/python3
"""Buckets of T5's relative position bias in exact arithmetic, for tests/ops/relative_bias_test.cpp.

With n buckets in one direction and e = n // 2, the distance d >= e has the bucket min(n - 1, e + k), where k is the largest
whole number with ln(d/e) / ln(M/e) * (n - e) >= k, which is (d/e)^(n-e) >= (M/e)^k: a comparison of whole numbers.
Prints of each form, for each bucket, the smallest distance that has this bucket or a later one, up to M.
usage: distance_buckets.py > distance_buckets.inc
"""

# In doubles the quotient of logarithms of the second falls below whole numbers that it is.
FORMS = [(32, 128), (9, 128), (16, 128), (8, 20), (5, 4), (12, 1000), (64, 256), (40, 65536), (2, 2), (300, 4096)]


def bucket(distance, n, most):
    e = n // 2
    if distance < e:
        return distance
    steps, k = n - e, 0
    while e + k < n - 1 and distance**steps * e ** (k + 1) >= most ** (k + 1) * e**steps:
        k += 1
    return e + k


def main():
    print("// Made by tests/oracles/distance_buckets.py.")
    for n, most in FORMS:
        firsts, distance = [], 0
        for b in range(n):
            while bucket(distance, n, most) < b:
                distance += 1
            firsts.append(distance)
        print(f"constexpr std::int64_t kFirsts{n}To{most}[] = {{")
        for at in range(0, n, 12):
            print("    " + " ".join(f"{first}," for first in firsts[at : at + 12]))
        print("};")


if __name__ == "__main__":
    main()
