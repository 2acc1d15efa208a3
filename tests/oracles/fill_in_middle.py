#!/usr/bin/python3
"""Oracle of documents rearranged to be filled in in the middle (engine/data/fill_in_middle.h), written from the description in
docs/documents.md and from what Megatron-LM's fim_dataset.py does with a document: plain Python, with a generator, a tokenizer and a
splitter of its own.

Writes tests/data/fill_in_middle.json: a tokenizer.json, and documents before and after. Cases are drawn with a fixed seed.
usage: fill_in_middle.py > tests/data/fill_in_middle.json
"""
import json
import random

SPECIAL = {"<s>": 290, "<pre>": 291, "<mid>": 292, "<suf>": 293, "<eod>": 294, "<file>": 295}
LETTERS = {chr(c): 300 + c - ord("a") for c in range(ord("a"), ord("z") + 1)}
MERGES = [("t", "h"), ("th", "e"), ("i", "n"), ("in", "g"), ("e", "r"), ("a", "n"), ("an", "d")]
WORDS = {**LETTERS, **{one + other: 330 + i for i, (one, other) in enumerate(MERGES)}}
TEXTS = {**{i: w.encode() for w, i in WORDS.items()}, **{b: bytes([b]) for b in range(256)}}
RANKS = {pair: rank for rank, pair in enumerate(MERGES)}
MASK64 = 2**64 - 1


def encode(text):
    """Byte-pair encoding of the whole text; what is no letter becomes its bytes."""
    symbols = list(text)
    while True:
        ranked = [(RANKS[pair], i) for i, pair in enumerate(zip(symbols, symbols[1:])) if pair in RANKS]
        if not ranked:
            break
        _, i = min(ranked)
        symbols[i:i + 2] = [symbols[i] + symbols[i + 1]]
    return [i for s in symbols for i in ([WORDS[s]] if s in WORDS else s.encode())]


def decode(ids):
    """The text, or None where there is none that gives the ids again."""
    if any(i not in TEXTS for i in ids):
        return None
    try:
        text = b"".join(TEXTS[i] for i in ids).decode()
    except UnicodeDecodeError:
        return None
    return text if encode(text) == ids else None


def stream(seed, name):
    """Key of a stream of draws: FNV-1a of its name, mixed with the seed by a round of splitmix64."""
    value = 14695981039346656037
    for byte in name.encode():
        value = ((value ^ byte) * 1099511628211) & MASK64
    value = (value + 0x9E3779B97F4A7C15 * (seed + 1)) & MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK64
    return value ^ (value >> 31)


def philox(key, counter):
    """Philox4x32-10 (Salmon et al., SC 2011) of a counter of four words."""
    c = list(counter)
    k = [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(q >> 32) ^ c[1] ^ k[0], q & 0xFFFFFFFF, (p >> 32) ^ c[3] ^ k[1], p & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def permute(ids, words, rate, fim):
    if not ids or words[0] / 2**32 >= rate:
        return ids
    text = decode(ids)
    if text is None or (fim["no_prefix"] and text.startswith(fim["no_prefix"])):
        return ids
    low, high = sorted(w * (len(text) + 1) // 2**32 for w in words[2:])
    prefix, middle, suffix = (encode(part) for part in (text[:low], text[low:high], text[high:]))
    if words[1] / 2**32 < fim["spm_rate"]:
        return [SPECIAL["<pre>"], SPECIAL["<suf>"], *suffix, SPECIAL["<mid>"], *prefix, *middle]
    return [SPECIAL["<pre>"], *prefix, SPECIAL["<suf>"], *suffix, SPECIAL["<mid>"], *middle]


def rearrange(ids, seed, split, sample, document, fim):
    if ids[:1] == [SPECIAL["<s>"]]:  # begins the document, before and after
        return ids[:1] + rearrange(ids[1:], seed, split, sample, document, fim)
    key = stream(seed, f"fill in the middle, {split}")

    def draw(part):
        return philox(key, (document, part, sample & 0xFFFFFFFF, sample >> 32))

    token = SPECIAL.get(fim["split_token"])
    if token not in ids:
        return permute(ids, draw(0), fim["rate"], fim)
    if draw(0)[0] / 2**32 >= fim["rate"]:
        return ids
    fragments = [[]]
    for i in ids:
        if i == token:
            fragments.append([])
        else:
            fragments[-1].append(i)
    out = []
    for f, fragment in enumerate(fragments):
        out += [token] * (f > 0) + permute(fragment, draw(f + 1), fim["fragment_rate"], fim)
    return out


def tokenizer():
    vocab = {**{f"<0x{b:02X}>": b for b in range(256)}, **WORDS, **SPECIAL}
    added = [{"id": i, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for name, i in SPECIAL.items()]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": True, "ignore_merges": False,
                  "vocab": vocab, "merges": [f"{one} {other}" for one, other in MERGES]},
    }


def fragment_of(draws):
    words = ["the", "other", "and", "thing", "in", "there", "é", "ab€d", "then", "ring", " ", "\n"]
    text = "".join(draws.choice(words) for _ in range(draws.randrange(0, 9)))
    return encode(("#" if draws.random() < 0.3 else "") + text)


def document_of(draws):
    fragments = [fragment_of(draws) for _ in range(draws.choice((1, 1, 2, 3, 5)))]
    if draws.random() < 0.1:
        fragments[0].insert(0, SPECIAL["<s>"])
    if draws.random() < 0.1:
        fragments[-1] += list("é".encode()[:1])
    out = []
    for f, fragment in enumerate(fragments):
        out += [SPECIAL["<file>"]] * (f > 0) + fragment
    return out


def main():
    draws = random.Random(7)
    configurations = []
    for rate, spm_rate, split_token, fragment_rate, no_prefix in (
            (0.7, 0.5, "", 1.0, ""), (0.8, 0.3, "<file>", 0.5, ""), (1.0, 1.0, "<file>", 1.0, "#"),
            (0.9, 0.0, "", 1.0, "#the"), (0.5, 0.5, "<file>", 0.9, "th")):
        fim = {"rate": rate, "spm_rate": spm_rate, "split_token": split_token, "fragment_rate": fragment_rate,
               "no_prefix": no_prefix}
        cases = []
        for _ in range(40):
            sample, document = draws.choice((draws.randrange(100), draws.randrange(2**40))), draws.randrange(20)
            split = draws.choice(("train", "validation", "test"))
            ids = document_of(draws)
            cases.append([split, sample, document, ids,
                          rearrange(ids, 1234 + len(configurations), split, sample, document, fim)])
        configurations.append({"seed": 1234 + len(configurations), **fim, "cases": cases})
    print(json.dumps({"tokenizer": tokenizer(), "configurations": configurations}, separators=(",", ":")))


main()
