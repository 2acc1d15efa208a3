#!/usr/bin/python3
"""Oracle of engine/data/tokenizer for SentencePiece models (Debian: python3-sentencepiece 0.1.97).

Trains small models of each kind on this repository's README.md and writes them with the ids that SentencePiece gives for texts.
usage: sentencepiece_models.py tests/tokenizer/sentencepiece
"""
import io
import json
import os
import pathlib
import sys
import tempfile

import sentencepiece

TEXTS = ["", " ", "a", "Hello, world!", "  two  blanks ", "the engine trains the model", "tab\tand\nnewline", "12345 67",
         "naïve café", "你好 🦙", "ﬁne Ａ１", "<s> </s> <unk>", "▁", "a▁b", "xEODx EOD", "é", "e\u0301", "\u3000wide\u3000",
         "zzzzzzzz", "the the the", "don't", "[model]\nlayers = 4", "<0x0A>", "EOD", "\x00", "ends in a blank ", "Q" * 70,
         "of unheard words of", "the recipe of a training of the checkpoints", "engine data build --tokenizer file", "==== ----"]
RULES = "FB01\t66 69\nFF21\t41\nFF11\t31\n3000\t20\n9\t20\nA\t20\n65 301\tE9\n"
IDENTITY = {"normalization_rule_name": "identity"}


def train(lines, options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, num_threads=1, minloglevel=2, **options)
    return model.getvalue()


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


def with_unused(model, is_unused):
    """The same model, in which pieces for whose text `is_unused` holds are of the type UNUSED (5)."""
    out, at = b"", 0
    while at < len(model):
        begin = at
        tag, at = varint(model, at)
        assert tag & 7 == 2, "all fields of a model are messages"
        length, at = varint(model, at)
        body, at = model[at:at + length], at + length
        if tag >> 3 != 1:
            out += model[begin:at]
            continue
        text_length, text_at = varint(body, 1)
        if is_unused(body[text_at:text_at + text_length].decode()):
            body += b"\x18\x05"  # the last value of a field counts
        assert len(body) < 128
        out += bytes([tag, len(body)]) + body
    return out


def main():
    folder = pathlib.Path(sys.argv[1]).resolve()
    readme = pathlib.Path(__file__).resolve().parent.parent.parent / "README.md"
    lines = readme.read_text(encoding="utf-8").split("\n")
    own = {"user_defined_symbols": ["EOD"]}
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # models hold the file's name
        pathlib.Path("rules.tsv").write_text(RULES, encoding="utf-8")
        models = {
            "bpe": train(lines, {"vocab_size": 700, "model_type": "bpe", "byte_fallback": True, "split_digits": True,
                                 "remove_extra_whitespaces": False, "character_coverage": 0.995} | IDENTITY | own),
            "unigram": train(lines, {"vocab_size": 400, "model_type": "unigram", "normalization_rule_tsv": "rules.tsv",
                                     "character_coverage": 0.995} | own),
            "word": train(lines, {"vocab_size": 200, "model_type": "word"} | IDENTITY | {"user_defined_symbols": ["▁EOD", "EOD"]}),
            "char": train(lines, {"vocab_size": 60, "model_type": "char", "character_coverage": 0.98} | IDENTITY | own),
        }
    words = train(lines, {"vocab_size": 300, "model_type": "bpe"} | IDENTITY)
    models["bpe_unused"] = with_unused(words, lambda piece: len(piece) % 2 == 0 or piece in ("the", "x"))
    pieces = train(lines, {"vocab_size": 250, "model_type": "unigram"} | IDENTITY)
    models["unigram_unused"] = with_unused(pieces, lambda piece: len(piece) % 2 == 0 or piece in ("e", "x"))
    texts = TEXTS + [line for line in lines[:30] if line]
    cases = {}
    for kind, data in models.items():
        (folder / f"{kind}.model").write_bytes(data)
        model = sentencepiece.SentencePieceProcessor(model_proto=data)
        cases[kind] = [{"text": t, "ids": model.encode(t), "decoded": model.decode(model.encode(t))}
                       for t in (texts if "unused" in kind else TEXTS)]
    (folder / "oracle.json").write_text(json.dumps(cases, indent=1, ensure_ascii=False).replace("\n    ", " ").replace(
        "\n   ]", "]") + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
