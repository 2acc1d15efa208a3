#!/usr/bin/python3
"""Oracle of tasks (engine/evaluate): the rules by which lm-evaluation-harness and Megatron-LM's tasks/zeroshot_gpt make tokens of contexts,
continuations and texts, written down again in plain Python, whose own `re` and `str` they are made of, and what follows from scores.

Writes tests/evaluate/tasks.json: a tokenizer of a few tokens, task files, rows, scores and measures. Cases are drawn with a fixed seed.
usage: tasks.py > tests/evaluate/tasks.json
"""
import json
import math
import random
import re
import sys

TOKENS = ["the ", " the", "he", "in", " in", "an", "and", " and", " a", "a b", "b c", "  ", " \n", ". ", "é", " é", "c d", "d e"]
IDS = {**{token.encode(): 256 + i for i, token in enumerate(TOKENS)}, **{bytes([b]): b for b in range(256)}}
LONGEST = max(map(len, IDS))
END = 300  # of a document


def encode(text):
    """The longest token at each place."""
    data, ids = text.encode(), []
    while data:
        size = next(n for n in range(LONGEST, 0, -1) if data[:n] in IDS)
        ids.append(IDS[data[:size]])
        data = data[size:]
    return ids


def detokenize(text):
    """wikitext_detokenizer of both."""
    text = text.replace("s '", "s'")
    text = re.sub(r"/' [0-9]/", r"/'[0-9]/", text)
    for sign in "-,.":
        text = text.replace(f" @{sign}@ ", sign)
    for sign in ":;.!?,":
        text = text.replace(f" {sign} ", f"{sign} ")
    text = re.sub(r"\(\s*([^\)]*?)\s*\)", r"(\1)", text)
    text = re.sub(r"\[\s*([^\]]*?)\s*\]", r"[\1]", text)
    text = re.sub(r"{\s*([^}]*?)\s*}", r"{\1}", text)
    text = re.sub(r"\"\s*([^\"]*?)\s*\"", r'"\1"', text)
    text = re.sub(r"'\s*([^']*?)\s*'", r"'\1'", text)
    for a, b in [("= = = =", "===="), ("= = =", "==="), ("= =", "=="), (" " + chr(176) + " ", chr(176)), (" \n", "\n"), ("\n ", "\n"),
                 (" N ", " 1 "), (" 's", "'s")]:
        text = text.replace(a, b)
    return text


def pair(context, continuation, window):
    """_encode_pair and loglikelihood of lm-evaluation-harness; the model reads the last `window` + 1 tokens but one."""
    spaces = len(context) - len(context.rstrip())
    if spaces:
        continuation = context[-spaces:] + continuation
        context = context[:-spaces]
    before = encode(context)
    target = encode(context + continuation)[len(before):]
    whole = (before or [END]) + target
    return (whole[-(window + 1):], len(whole[-(window + 1):]) - len(target), len(whole) > window + 1)


def rolling(tokens, window):
    """get_rolling_token_windows with context_len = 1, and make_disjoint_window."""
    rows, predicted = [], 0
    if tokens:
        first = min(window, len(tokens))
        rows.append(([END] + tokens[:first - 1], tokens[:first]))
        predicted = first
    while predicted < len(tokens):
        count = min(len(tokens) - predicted, window)
        end = predicted + count
        rows.append((tokens[end - window - 1:end - 1], tokens[end - count:end]))
        predicted += count
    rows = [(a[:len(a) - (len(b) - 1)], b) for a, b in rows]
    return [(a + b, len(a)) for a, b in rows]


def strided(tokens, window, stride):
    """_LMDataset of Megatron-LM: padded windows with a mask, of which only those with a target are left."""
    targets = max(len(tokens) - 1 - stride, 0)
    rows = []
    for index in range(max(math.ceil(targets / stride) + 1, 1)):
        part = tokens[index * stride:index * stride + window + 1]
        mask = [1] * len(part) + [0] * (window + 1 - len(part))
        mask = mask[1:]
        if stride != window and index != 0:
            mask[:-stride] = [0] * (window - stride)
        places = [i + 1 for i, m in enumerate(mask) if m]
        if places:
            assert places == list(range(places[0], len(part))), places
            rows.append((part, places[0]))
    return rows


def stderr(values):
    """mean_stderr: the sample's standard deviation by the root of its size."""
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)) / math.sqrt(len(values))


def share(values):
    n, p, z = len(values), sum(values) / len(values), 1.959963984540054
    # The two p0 for which |p - p0| = z * sqrt(p0 * (1 - p0) / n).
    a, b, c = 1 + z * z / n, -(2 * p + z * z / n), p * p
    root = math.sqrt(max(b * b - 4 * a * c, 0))
    return {"value": p, "standard_error": stderr(values), "interval": [(-b - root) / (2 * a), (-b + root) / (2 * a)]}


def score(draw, rows):
    """Of each row a log-probability and how many tokens are not the likeliest."""
    return [(-round(draw.uniform(0.1, 3) * (len(tokens) - first), 3), draw.choice([0, 0, 1])) for tokens, first in rows]


WORDS = ["the", "he", "and", "in", "a", "b", "c", "d", "e", "été", "été ", " ", "an", "é", "", "\n", " ", "　"]


def text(draw, words):
    return " ".join(draw.choice(WORDS) for _ in range(words))


def wikitext(draw, pieces):
    signs = list("()[]{}\"'") + [" @-@ ", " @,@ ", " @.@ ", " : ", " ; ", " . ", " ! ", " ? ", " , ", "= = = =", "= = =", "= =", " ° ", " \n", "\n ",
                                 " N ", " 's", "s '", "/' 7/", "/' x/", "word", "it", " ", "  ", "5", "\u00a0", "é"]
    return "".join(draw.choice(signs) for _ in range(pieces))


def texts_case(draw, windows, stride, detok, documents, window):
    lines = [wikitext(draw, draw.randint(5, 60)) if detok else text(draw, draw.randint(1, 40)) for _ in range(documents)]
    lines = [line for line in lines if len(encode(detokenize(line) if detok else line)) > 1]
    rows, of_document = [], []
    for line in lines:
        tokens = encode(detokenize(line) if detok else line)
        more = rolling(tokens, window) if windows == "rolling" else strided(tokens, window, stride or window)
        of_document.append(len(more))
        rows += more
    scores = score(draw, rows)
    cost = -sum(s for s, _ in scores)
    predicted = sum(len(t) - f for t, f in rows)
    size = sum(len(line.encode()) for line in lines)
    measures = {"byte_perplexity": {"value": math.exp(cost / size)}, "bits_per_byte": {"value": cost / size / math.log(2)}}

    def exponential(sizes):
        """e to the ratio of sums over documents, and its error by the residuals of the ratio."""
        costs, at = [], 0
        for count in of_document:
            costs.append(-sum(s for s, _ in scores[at:at + count]))
            at += count
        ratio, n = sum(costs) / sum(sizes), len(costs)
        if n < 2:
            return {"value": math.exp(ratio)}
        residuals = sum((c - ratio * s) ** 2 for c, s in zip(costs, sizes))
        return {"value": math.exp(ratio), "standard_error": math.exp(ratio) * math.sqrt(n / (n - 1) * residuals) / sum(sizes)}

    if windows == "rolling":
        tokens = [len(encode(detokenize(line) if detok else line)) for line in lines]
        measures |= {"perplexity": exponential(tokens), "word_perplexity": exponential([len(re.split(r"\s+", line)) for line in lines])}
    else:
        words = sum(len(line.strip().split(" ")) - 1 for line in lines)
        measures |= {"perplexity": {"value": math.exp(min(20, cost / predicted))}}
        if words > 0:
            measures |= {"adjusted_perplexity": {"value": math.exp(min(20, cost / words))}}
    settings = {"form": "perplexity", "windows": windows, "detokenize": "wikitext" if detok else "none"}
    if stride:
        settings["stride"] = stride
    return case(settings, [{"text": line} for line in lines], rows, scores, measures, 0, window)


def last_word_case(draw, target, window, count):
    lines, rows, truncated = [], [], 0
    while len(lines) < count:
        line = text(draw, draw.randint(2, 20)).strip()
        if len(line.split()) < 2:
            continue
        if target == "word":
            *before, last = line.split(" ")
            tokens, first, cut = pair(" ".join(before), " " + last, window)
        elif target == "token":
            whole = encode(line)
            tokens, first, cut = whole[-(window + 1):], min(len(whole) - 1, window), len(whole) > window + 1
        else:
            last = line.split()[-1]
            before, end = encode(line[:line.rfind(last)].strip()), encode(" " + last)
            whole = before + end
            if not before:
                continue
            tokens, cut = whole[-(window + 1):], len(whole) > window + 1
            first = len(tokens) - len(end)
        if first < 1 or first >= len(tokens):
            continue
        lines.append({"text": line})
        rows.append((tokens, first))
        truncated += cut
    scores = score(draw, rows)
    costs = [-s for s, _ in scores]
    mean = sum(costs) / len(costs)
    measures = {"acc": share([1 if missed == 0 else 0 for _, missed in scores]),
                "perplexity": {"value": math.exp(mean), "standard_error": math.exp(mean) * stderr(costs)}}
    return case({"form": "lambada", "target": target}, lines, rows, scores, measures, truncated, window)


def choices_case(draw, delimiter, window, count):
    lines, rows, truncated = [], [], 0
    while len(lines) < count:
        context = draw.choice(["", text(draw, draw.randint(1, 15)) + draw.choice(["", " ", "  \n"])])
        choices = [text(draw, draw.randint(1, 3)) for _ in range(draw.randint(2, 4))]
        made = [pair(context, delimiter + choice, window) for choice in choices if choice]
        if len(made) < len(choices) or any(first < 1 or first >= len(tokens) for tokens, first, _ in made):
            continue
        lines.append({"context": context, "choices": choices, "answer": draw.randrange(len(choices))})
        rows += [(tokens, first) for tokens, first, _ in made]
        truncated += sum(cut for _, _, cut in made)
    scores, hits, at = score(draw, rows), {"acc": [], "acc_norm": [], "acc_bytes": []}, 0
    for line in lines:
        sums = [s for s, _ in scores[at:at + len(line["choices"])]]
        at += len(sums)
        for name, size in [("acc", lambda c: 1), ("acc_norm", len), ("acc_bytes", lambda c: len(c.encode()))]:
            normed = [s / size(c) for s, c in zip(sums, line["choices"])]
            hits[name].append(int(normed.index(max(normed)) == line["answer"]))
    return case({"form": "multiple_choice", "delimiter": delimiter}, lines, rows, scores, {k: share(v) for k, v in hits.items()}, truncated, window)


def case(settings, lines, rows, scores, measures, truncated, window):
    return {"settings": settings, "window": window, "lines": lines, "rows": rows, "scores": scores, "measures": measures, "truncated": truncated}


def main():
    draw = random.Random(27)
    texts = [wikitext(draw, draw.randint(1, 30)) for _ in range(150)]
    cases = [texts_case(draw, "rolling", 0, False, 6, 8), texts_case(draw, "rolling", 0, True, 5, 16), texts_case(draw, "rolling", 0, False, 1, 5),
             texts_case(draw, "strided", 0, True, 4, 16), texts_case(draw, "strided", 3, False, 4, 8), texts_case(draw, "strided", 1, True, 1, 6),
             texts_case(draw, "strided", 8, False, 3, 8)]
    cases += [last_word_case(draw, target, 24, 12) for target in ("word", "token", "strict")]
    cases += [choices_case(draw, " ", 32, 14), choices_case(draw, "", 20, 10)]
    json.dump({"tokens": [[list(token), i] for token, i in IDS.items() if i > 255], "end": END,
               "detokenized": [[t, detokenize(t)] for t in texts],
               "counts": [[t, len(re.split(r"\s+", t)), len(t)] for t in texts + [text(draw, 8) for _ in range(30)] + [""]],
               "cases": cases}, sys.stdout, ensure_ascii=False)
    print()


main()
