"""What the original code does, one instance and one token at a time, to compare distributions with.

Written from the rules that are listed in `docs/data.md`, for plain lists and `random.Random`.
"""

import random


CLS, SEP, MASK = 2, 3, 4


def instances(documents, max_length, rng, swap):
    """Yield ([CLS] A [SEP] B [SEP], length of A, label) of one pass: BERT's, or ALBERT's with `swap`."""
    most = max_length - 3
    for index, document in enumerate(documents):
        target = rng.randint(2, most) if rng.random() < 0.1 else most
        chunk, i = [], 0
        while i < len(document):
            chunk.append(document[i])
            if i == len(document) - 1 or sum(map(len, chunk)) >= target:
                a_sentences = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
                first = sum(chunk[:a_sentences], [])
                is_random = len(chunk) == 1 or (not swap and rng.random() < 0.5)
                if is_random:
                    second = random_segment(documents, index, target - len(first), rng)
                    if not swap:
                        i -= len(chunk) - a_sentences
                    label = 1
                else:
                    second = sum(chunk[a_sentences:], [])
                    label = int(swap and rng.random() < 0.5)
                    if label:
                        first, second = second, first
                truncate(first, second, most, rng)
                yield [CLS, *first, SEP, *second, SEP], len(first), label
                chunk = []
            i += 1


def random_segment(documents, own, wanted, rng):
    for _ in range(10):
        drawn = rng.randint(0, len(documents) - 1)
        if drawn != own:
            break
    document = documents[drawn]
    tokens = []
    for sentence in document[rng.randint(0, len(document) - 1) :]:
        tokens += sentence
        if len(tokens) >= wanted:
            break
    return tokens


def truncate(first, second, most, rng):
    while len(first) + len(second) > most:
        longer = first if len(first) > len(second) else second
        longer.pop(0 if rng.random() < 0.5 else -1)


def predicted_places(tokens, rng, max_predictions, continues=None, max_ngram=1):
    """Places that are predicted. `continues` says of a token id whether it goes on with the word before it."""
    to_mask = min(max_predictions, max(1, round(len(tokens) * 0.15)))
    words = []
    for place, token in enumerate(tokens):
        if token in (CLS, SEP):
            continue
        if continues and words and continues(token):
            words[-1].append(place)
        else:
            words.append([place])
    starts = list(range(len(words)))
    rng.shuffle(starts)
    covered = []
    for start in starts:
        if len(covered) >= to_mask:
            break
        size = rng.choices(range(1, max_ngram + 1), [1 / n for n in range(1, max_ngram + 1)])[0]
        for shorter in range(size, 0, -1):
            places = sum(words[start : start + shorter], [])
            if len(covered) + len(places) <= to_mask:
                if not set(places) & set(covered):
                    covered += places
                break
    return sorted(covered)


def corpus(num_documents, sentences, tokens, seed=0):
    """Documents of token ids 5 to 10,004; from 7,005 on they continue a word. Bounds are inclusive."""
    rng = random.Random(seed)
    return [
        [[rng.randint(5, 10004) for _ in range(rng.randint(*tokens))] for _ in range(rng.randint(*sentences))]
        for _ in range(num_documents)
    ]
