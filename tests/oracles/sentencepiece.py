#!/usr/bin/python3
"""Oracle of engine/data/tokenizer for SentencePiece models (Debian: python3-sentencepiece 0.1.97).

Trains two small models on this repository's README.md and writes them with the ids that SentencePiece gives for texts.
usage: sentencepiece.py tests/tokenizer/sentencepiece
"""
import json
import pathlib
import sys
import tempfile

import sentencepiece

TEXTS = ["", " ", "a", "Hello, world!", "  two  blanks ", "the engine trains the model", "tab\tand\nnewline", "12345 67",
         "naïve café", "你好 🦙", "ﬁne Ａ１", "<s> </s> <unk>", "▁", "a▁b", "xEODx EOD", "é", "e\u0301", "\u3000wide\u3000",
         "zzzzzzzz", "the the the", "don't", "[model]\nlayers = 4", "<0x0A>", "EOD", "\x00", "ends in a blank ", "Q" * 70]
RULES = "FB01\t66 69\nFF21\t41\nFF11\t31\n3000\t20\n9\t20\nA\t20\n65 301\tE9\n"


def main():
    folder = pathlib.Path(sys.argv[1])
    text = pathlib.Path(__file__).resolve().parent.parent.parent / "README.md"
    cases = {}
    with tempfile.TemporaryDirectory() as scratch:
        rules = pathlib.Path(scratch) / "rules.tsv"
        rules.write_text(RULES, encoding="utf-8")
        for kind, options in {
            "bpe": {"vocab_size": 700, "byte_fallback": True, "normalization_rule_name": "identity", "split_digits": True,
                    "remove_extra_whitespaces": False, "user_defined_symbols": ["EOD"], "character_coverage": 0.995},
            "unigram": {"vocab_size": 400, "normalization_rule_tsv": str(rules), "user_defined_symbols": ["EOD"],
                        "character_coverage": 0.995},
        }.items():
            prefix = str(pathlib.Path(scratch) / kind)
            sentencepiece.SentencePieceTrainer.train(input=str(text), model_prefix=prefix, model_type=kind,
                                                     num_threads=1, minloglevel=2, **options)
            (folder / f"{kind}.model").write_bytes(pathlib.Path(f"{prefix}.model").read_bytes())
            model = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
            cases[kind] = [{"text": t, "ids": model.encode(t), "decoded": model.decode(model.encode(t))} for t in TEXTS]
    (folder / "oracle.json").write_text(json.dumps(cases, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
