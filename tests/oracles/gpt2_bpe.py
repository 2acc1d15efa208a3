#!/usr/bin/python3
"""Oracle of engine/data/tokenizer for GPT-2's files: byte-level BPE on Python strings, with the `regex` module for the pre-tokenisation
(Debian: python3-regex). Makes a small vocabulary, too: merges trained on the text below, then shuffled, so that
weak merges make stronger pairs, as no trained file has them.

Writes vocab.json, merges.txt and oracle.json. usage: gpt2_bpe.py tests/tokenizer/gpt2
"""
import collections
import json
import random
import sys

import regex

TEXT = """In the beginning there was nothing, which exploded. It's what they'll say; we've said it, and I'd say
it again: the cat's mat, the hat, the bat. 1234 123 12 1; the naïve café über straße, the the the thethethe.
aaaa aaaaaaa abababab abcabcabc bcabca   ...!!! ---- ==== \t\t\tthen\n\n\nnothing    else 2024-02-29 10:45
Привет, мир! привет мир, 你好世界 你好 世界 世世世 🙂🙂🙃 ελληνικά
"""
PATTERN = regex.compile(
    r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""")


def byte_characters():
    shown = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table = {byte: chr(byte) for byte in shown}
    hidden = [byte for byte in range(256) if byte not in table]
    table.update({byte: chr(256 + i) for i, byte in enumerate(hidden)})
    return table, shown + hidden


CHARACTERS, ORDER = byte_characters()


def join(symbols, pair):
    out, i = [], 0
    while i < len(symbols):
        if i + 1 < len(symbols) and (symbols[i], symbols[i + 1]) == pair:
            out.append(symbols[i] + symbols[i + 1])
            i += 2
        else:
            out.append(symbols[i])
            i += 1
    return out


def train(count):
    words = [[CHARACTERS[b] for b in word.encode()] for word in PATTERN.findall(TEXT)]
    merges = []
    while len(merges) < count:
        pairs = collections.Counter(p for word in words for p in zip(word, word[1:]))
        best = max(pairs, key=lambda p: (pairs[p], p))
        merges.append(best)
        words = [join(word, best) for word in words]
    return merges


def merge_bytes(data, ranks):
    symbols = [CHARACTERS[b] for b in data]
    while True:
        pairs = {p for p in zip(symbols, symbols[1:]) if p in ranks}
        if not pairs:
            return symbols
        symbols = join(symbols, min(pairs, key=ranks.get))


def random_text(draw):
    alphabet = ["a", "b", "c", "ab", "the", " ", "  ", "\n", "\t", "'", "'s", "'ll", "'LL", "1", "²", "Ⅷ", "٣", "é", "e\u0301",
                "ß", "П", "привет", "世", "界", "🙂", "\u00a0", "\u0085", "\u2028", "\u3000", "\u180e", "\u200b", "\u001c",
                "\ufeff", "\u0000", "\u007f", "\u00ad", "_", "-", "…", "ǅ", "ª", "ʰ", "\U0010ffff", "\ue000", "\u0378"]
    return "".join(draw.choice(alphabet) for _ in range(draw.randint(1, 40)))


def main():
    folder = sys.argv[1]
    draw = random.Random(7)
    merges = train(180)
    made = {a + b for a, b in merges}
    # Other ways to the same tokens, and merges of merged tokens.
    for token in sorted(made):
        for cut in range(1, len(token)):
            a, b = token[:cut], token[cut:]
            if (a in made or len(a) == 1) and (b in made or len(b) == 1) and (a, b) not in merges:
                merges.append((a, b))
    draw.shuffle(merges)
    tokens = [CHARACTERS[b] for b in ORDER]
    tokens += [token for token in dict.fromkeys(a + b for a, b in merges)] + ["<|endoftext|>"]
    vocab = {token: i for i, token in enumerate(tokens)}
    ranks = {pair: i for i, pair in enumerate(merges)}

    texts = ["", " ", "a", "  a", " \n a", "\n\n", "a  ", "it's IT'S it’s 'twas", "<|endoftext|>", TEXT] + TEXT.split("\n")
    texts += [random_text(draw) for _ in range(150)]
    texts += ["".join(draw.choice("abc") for _ in range(n)) for n in range(2, 60)]
    texts += ["".join(draw.choice(["the", "a", "t", "h", "e"]) for _ in range(n)) for n in range(2, 40)]
    cases = []
    for text in texts:
        pieces = PATTERN.findall(text)
        assert "".join(pieces) == text
        ids = [vocab[s] for piece in pieces for s in merge_bytes(piece.encode(), ranks)]
        cases.append({"text": text, "ids": ids})
    with open(f"{folder}/vocab.json", "w") as out:
        json.dump(vocab, out, separators=(",", ":"))
    with open(f"{folder}/merges.txt", "w", encoding="utf-8") as out:
        out.write("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
    with open(f"{folder}/oracle.json", "w") as out:
        json.dump(cases, out, separators=(",", ":"))


main()
