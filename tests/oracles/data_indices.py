#!/usr/bin/python3
"""Oracle of engine/data's orders: numpy's own RandomState and plain Python, written from the format's description.

Writes tests/data/oracle_indices.json (Debian: python3-numpy). Cases are drawn with a fixed seed.
usage: data_indices.py > tests/data/oracle_indices.json
"""
import json
import math

import numpy


def gpt_index(lengths, begin, end, sequence_length, num_samples, seed, epochs=1):
    docs = numpy.arange(begin, end, dtype=numpy.int32)
    tokens = int(sum(int(lengths[d]) for d in docs))
    while num_samples is not None and epochs * tokens < num_samples * sequence_length + 1:
        epochs += 1
    separate = False
    before_last = 0
    if num_samples is not None and epochs > 1:
        before_last = ((epochs - 1) * tokens - 1) // sequence_length
        of_last = num_samples - before_last
        separate = of_last < int(0.80 * ((tokens - 1) // sequence_length))
    random = numpy.random.RandomState(seed)

    def repeated(count):
        array = numpy.tile(docs, count)
        random.shuffle(array)
        return array

    document = numpy.concatenate([repeated(epochs - 1), repeated(1)]) if separate else repeated(epochs)
    samples = (epochs * tokens - 1) // sequence_length
    # Where each token of the epochs lives, so that the sample starts need no walk.
    place = [(k, o) for k, d in enumerate(document) for o in range(int(lengths[d]))]
    starts = [[0, 0]] + [list(place[i * sequence_length]) for i in range(1, samples + 1)]

    def shuffled(first, stop):
        array = numpy.arange(first, stop, dtype=numpy.uint32)
        random.shuffle(array)
        return array

    if separate:
        shuffle = numpy.concatenate([shuffled(0, before_last), shuffled(before_last, samples)])
    else:
        shuffle = shuffled(0, samples)
    flat = [(int(d), o) for d in document for o in range(int(lengths[d]))]
    fetched = []
    for i in (0, samples // 2, samples - 1):
        at = int(shuffle[i]) * sequence_length
        fetched.append([i, [list(pair) for pair in flat[at:at + sequence_length + 1]]])
    return {
        "epochs": epochs, "separate": bool(separate), "documents": document.tolist(),
        "starts": starts, "shuffle": shuffle.tolist(), "fetched": fetched,
    }


def pack_index(lengths, begin, end, sequence_length, num_samples, seed, drops_long):
    """Best-fit decreasing, by looking at every pack for every piece."""
    room = sequence_length + 1
    pieces = []
    dropped = cut = 0
    for d in range(begin, end):
        length = int(lengths[d])
        if length < 2 or (length > room and drops_long):
            dropped += 1
            continue
        cut += length > room
        # Token t > 0 of the document is predicted in piece (t - 1) // sequence_length.
        for k in range((length - 2) // sequence_length + 1):
            pieces.append([d, k * sequence_length, min(room, length - k * sequence_length)])
    packs = []  # of pieces; beside it the room that is left, and when it was last put into
    state = []
    for now, piece in enumerate(sorted(pieces, key=lambda piece: -piece[2])):
        fits = [(left, -when, i) for i, (left, when) in enumerate(state) if left >= piece[2]]
        if not fits:
            packs.append([])
            state.append((room, now))
            fits = [(room, -now, len(packs) - 1)]
        i = min(fits)[2]
        packs[i].append(piece)
        state[i] = (state[i][0] - piece[2], now)
    epochs = max(1, math.ceil(num_samples / len(packs)))
    random = numpy.random.RandomState(seed)
    shuffle = []
    for _ in range(epochs):
        order = numpy.arange(len(packs), dtype=numpy.uint32)
        random.shuffle(order)
        shuffle += order.tolist()
    return {"packs": packs, "epochs": epochs, "shuffle": shuffle, "cut": cut, "dropped": dropped}


def normalize(weights):
    array = numpy.array(weights, dtype=numpy.float64)
    return (array / numpy.sum(array)).tolist()


def blend(weights, size):
    shares = normalize(weights)
    counts = [0] * len(shares)
    out = []
    for i in range(size):
        lag = [share * max(float(i), 1.0) - count for share, count in zip(shares, counts)]
        best = lag.index(max(lag))
        out.append([best, counts[best]])
        counts[best] += 1
    return out


def split_ranges(shares, sequences):
    total = 0.0
    for share in shares:
        total += share
    ends = [0.0]
    for share in shares:
        ends.append(ends[-1] + share / total)
    return [[int(round(a * sequences)), int(round(b * sequences))] if b > a else [0, 0]
            for a, b in zip(ends, ends[1:])]


def main():
    draw = numpy.random.RandomState(20240229)
    shuffles = []
    for size, seed in ((1, 0), (2, 7), (3, 4294967295), (64, 1), (65, 2), (700, 1234)):
        random = numpy.random.RandomState(seed)
        first = numpy.arange(size)
        random.shuffle(first)
        second = numpy.arange(size)
        random.shuffle(second)
        shuffles.append({"size": size, "seed": seed, "first": first.tolist(), "second": second.tolist()})

    gpt = []
    while len(gpt) < 14:
        count = int(draw.randint(1, 12))
        # numpy numbers: some sequences are empty, as foreign files may have them.
        lengths = [int(x) for x in draw.randint(0, 15, size=count)]
        begin = int(draw.randint(0, count))
        end = int(draw.randint(begin + 1, count + 1))
        sequence_length = int(draw.randint(1, 9))
        tokens = sum(lengths[begin:end])
        if tokens < sequence_length + 1:
            continue
        num_samples = None if len(gpt) % 7 == 6 else int(draw.randint(1, 4 * tokens // sequence_length + 2))
        case = {"lengths": lengths, "begin": begin, "end": end, "sequence_length": sequence_length,
                "num_samples": num_samples, "seed": int(draw.randint(0, 2**31))}
        case.update(gpt_index(lengths, begin, end, sequence_length, num_samples, case["seed"]))
        gpt.append(case)

    blends = []
    for count, size in ((1, 5), (2, 60), (3, 60), (9, 120), (40, 150), (300, 60)):
        weights = [float(x) for x in draw.uniform(0.05, 1.0, size=count)]
        if count == 3:
            weights = [1.0, 2.0, 3.0]
        shares = normalize(weights)
        targets = [math.ceil(size * share) for share in shares]
        blends.append({"weights": weights, "size": size, "shares": shares, "targets": targets,
                       "built": [math.ceil(target * (1 + 0.005)) for target in targets],
                       "blend": blend(normalize(shares), size)})

    splits = []
    for shares in ([949.0, 50.0, 1.0], [969.0, 30.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 1.0], [98.5, 1.0, 0.5],
                   [1.0, 1.0, 1.0], [0.7, 0.2, 0.1]):
        for sequences in (0, 1, 2, 3, 5, 10, 15, 1000, 123457, 10000):
            splits.append({"shares": shares, "sequences": sequences, "ranges": split_ranges(shares, sequences)})
    # A number of epochs, not of samples: all of them are shuffled together.
    by_epochs = []
    for epochs in (1, 2, 3, 5):
        lengths = [int(x) for x in draw.randint(1, 15, size=8)]
        case = {"lengths": lengths, "begin": 1, "end": 8, "sequence_length": 4, "asked": epochs,
                "seed": int(draw.randint(0, 2**31))}
        case.update(gpt_index(lengths, 1, 8, 4, None, case["seed"], epochs))
        by_epochs.append(case)

    packed = []
    for count, longest, sequence_length in ((1, 9, 8), (40, 12, 8), (200, 40, 33), (300, 300, 127), (400, 90, 200)):
        lengths = [int(x) for x in draw.randint(0, longest + 1, size=count)]
        lengths[0] = longest
        for drops_long in (False, True):
            if drops_long and count == 1:
                continue
            case = {"lengths": lengths, "begin": 0, "end": count, "sequence_length": sequence_length,
                    "num_samples": int(draw.randint(1, 300)), "seed": int(draw.randint(0, 2**31)),
                    "drops_long": drops_long}
            case.update(pack_index(lengths, 0, count, sequence_length, case["num_samples"], case["seed"],
                                   drops_long))
            packed.append(case)

    print(json.dumps({"numpy": numpy.__version__, "shuffles": shuffles, "gpt": gpt, "epochs": by_epochs, "blends": blends,
                      "splits": splits, "packed": packed}, separators=(",", ":")))


main()
