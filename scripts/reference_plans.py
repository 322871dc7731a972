#!/usr/bin/env python3
"""Plans of the published methods for a small made-up cache, from the papers' definitions: tests/golden/methods/*.json.

    python3 scripts/reference_plans.py            # writes the files
    python3 scripts/reference_plans.py --kvpress  # compares with NVIDIA's kvpress as well (needs torch and kvpress 0.3.0)

Plain Python in double precision, written from the papers and not from the Rust code; what a method is and where it departs
from its paper stands at the head of src/compress/NAME.rs. No score decides by less than MARGIN, so single precision must agree.
"""

import json
import math
import struct
import sys
from pathlib import Path
from random import Random

OUT = Path(__file__).resolve().parent.parent / "tests/golden/methods"
SEED = 2
MARGIN = 2e-5
LAYERS, KV_HEADS, GROUP, DIM, TOKENS, AHEAD, WINDOW = 3, 2, 2, 8, 96, 6, 32
HEADS = LAYERS * KV_HEADS
# Entries in all: the whole window fits; half of it does; nearly nothing does, with a remainder.
BUDGETS = [HEADS * 70, HEADS * 30 + 4, HEADS * 7]
SINK, RECENT = 4, 6


class Cache:
    """Keys, values and queries in units of 1/32: keys drift through topics, queries look for one of them."""

    def __init__(self, seed):
        random = Random(seed)
        vector = lambda std: [random.gauss(0, std) for _ in range(DIM)]
        units = lambda v: [round(32 * x) for x in v]
        add = lambda *vs: [sum(xs) for xs in zip(*vs)]
        self.keys, self.values, self.queries = [], [], []
        for _ in range(LAYERS):
            topics = [vector(1.2) for _ in range(10)]
            for _ in range(KV_HEADS):
                drift = [topics[random.randrange(10)] for _ in range(TOKENS // 8)]
                self.keys.append([units(add(drift[t // 8], vector(0.8))) for t in range(TOKENS)])
                self.values.append([units(add(drift[t // 8], vector(0.5))) for t in range(TOKENS)])
            self.queries.append(
                [[units(add(topics[random.randrange(10)], vector(0.6))) for _ in range(KV_HEADS * GROUP)] for _ in range(TOKENS + AHEAD)]
            )
        # prob[layer][query head][query] over the tokens that the query sees; a lookahead query sees the whole prompt.
        self.prob = [
            [[self.softmax(il, h, u) for u in range(TOKENS + AHEAD)] for h in range(KV_HEADS * GROUP)] for il in range(LAYERS)
        ]

    def softmax(self, il, h, u):
        q, keys = self.queries[il][u][h], self.keys[il * KV_HEADS + h // GROUP][: min(u + 1, TOKENS)]
        logits = [sum(a * b for a, b in zip(q, k)) / 32**2 / math.sqrt(DIM) for k in keys]
        top = max(logits)
        e = [math.exp(x - top) for x in logits]
        return [x / sum(e) for x in e] + [0.0] * (TOKENS - len(keys))

    def total(self, head, queries):
        """Attention of these queries and of all query heads of the group, per token."""
        il, g = divmod(head, KV_HEADS)
        rows = [self.prob[il][h][u] for h in range(g * GROUP, (g + 1) * GROUP) for u in queries]
        return [sum(column) for column in zip(*rows)]


def best(candidates, n):
    """The n best of [(score, token, head)]; ties to the earlier token, then the earlier head. A near tie is a bad seed."""
    order = sorted(candidates, key=lambda c: (-c[0], c[1], c[2]))
    if 0 < n < len(order):
        a, b = order[n - 1][0], order[n][0]
        assert a == b or a - b > MARGIN * abs(a), f"seed {SEED}: {a} and {b} are nearly equal"
    return order[:n]


def places(n, sink, window):
    """Tokens kept for their place where a head keeps n: the window shrinks to a half, sinks to a quarter."""
    window, sink = min(window, n // 2), min(sink, n // 4)
    return set(range(sink)) | set(range(TOKENS - window, TOKENS))


def keep(score, n, pinned):
    free = [(s, t, 0) for t, s in enumerate(score) if t not in pinned]
    return sorted(pinned | {t for _, t, _ in best(free, n - len(pinned))})


def pooled(score, kernel, kind, window):
    """Pooling over the tokens before the window."""
    n, r = TOKENS - window, kernel // 2
    near = [score[max(0, t - r) : min(n, t + r + 1)] for t in range(n)]
    return [sum(x) / kernel if kind == "mean" else max(x) for x in near] + score[n:]


class Plans:
    """A budget, a form and the methods; each gives a list of heads, layer by layer."""

    def __init__(self, cache, n_entries, modifiers):
        self.c, self.n, self.small = cache, n_entries // HEADS, "small" in modifiers
        self.ahead = range(TOKENS, TOKENS + (AHEAD if "lookahead" in modifiers else 0))

    def pinned(self, sink, window):
        return places(self.n, *((SINK, RECENT) if self.small else (sink, window)))

    def observed(self, head, n_window):
        queries = [*range(TOKENS - n_window, TOKENS), *self.ahead]
        return [x / len(queries) / GROUP for x in self.c.total(head, queries)]

    def accumulated(self, head):
        return self.c.total(head, [*range(TOKENS), *self.ahead])

    def window_scores(self, kernel, kind):
        pinned = self.pinned(0, WINDOW)
        n_window = len([t for t in pinned if t >= TOKENS // 2])
        return pinned, [pooled(self.observed(head, WINDOW), kernel, kind, n_window) for head in range(HEADS)]

    def snapkv(self):
        pinned, scores = self.window_scores(5, "mean")
        return [keep(score, self.n, pinned) for score in scores]

    def pyramidkv(self, beta=20):
        pinned, scores = self.window_scores(5, "mean")
        base, most = self.n - len(pinned), TOKENS - len(pinned)
        high = min(2 * base - max(base // beta, 0 if pinned else 1), most)
        low = 2 * base - high
        n_of = [len(pinned) + (high * (LAYERS - 1) - (high - low) * il) // (LAYERS - 1) for il in range(LAYERS)]
        return [keep(score, n_of[head // KV_HEADS], pinned) for head, score in enumerate(scores)]

    def adakv(self, safeguard=0.2):
        pinned, scores = self.window_scores(7, "max")
        heads, base = [], self.n - len(pinned)
        for il in range(LAYERS):
            layer = range(il * KV_HEADS, (il + 1) * KV_HEADS)
            free = [(s, t, g) for g in layer for t, s in enumerate(scores[g]) if t not in pinned]
            count = [sum(1 for _, _, g in best(free, base * KV_HEADS) if g == head) for head in layer]
            budget = [int(n * (1 - safeguard) + safeguard * base) for n in count]
            taken = {g: {t for _, t, _ in best([c for c in free if c[2] == g], n)} for g, n in zip(layer, budget)}
            left = [c for c in free if c[1] not in taken[c[2]]]
            for _, t, g in best(left, base * KV_HEADS - sum(budget)):
                taken[g].add(t)
            heads += [sorted(pinned | taken[g]) for g in layer]
        return heads

    def tova_score(self, il):
        return [sum(x) / KV_HEADS for x in zip(*(self.observed(il * KV_HEADS + g, 1) for g in range(KV_HEADS)))]

    def tova(self):
        scores = [self.tova_score(head // KV_HEADS) for head in range(HEADS)]
        return [keep(score, self.n, self.pinned(0, 0)) for score in scores]

    def knorm(self):
        norm = lambda k: math.sqrt(sum(x * x for x in k))
        return [keep([-norm(k) for k in keys], self.n, self.pinned(0, 0)) for keys in self.c.keys]

    def streaming_llm(self):
        sink = min(SINK, self.n // 4)
        return [[*range(sink), *range(TOKENS - (self.n - sink), TOKENS)]] * HEADS

    def random(self):
        draws = [generator(keys[-1]) for keys in self.c.keys]
        return [keep([next(draw) for _ in range(TOKENS)], self.n, self.pinned(0, 0)) for draw in draws]

    def h2o(self):
        return [keep(self.accumulated(head), self.n, self.pinned(0, TOKENS)) for head in range(HEADS)]

    def cam(self, n_target=32):
        heads = []
        for head, kept in enumerate(self.h2o()):
            score, values, draw = self.accumulated(head), self.c.values[head], generator(self.c.keys[head][-1])
            merged = {}
            for t in (t for t in range(TOKENS) if t not in kept):
                targets = [j for j in kept if j > t][:n_target]
                chance = min(1.0, score[t] * len(targets) / sum(score[j] for j in targets)) if targets else 0.0
                x = next(draw)
                assert abs(x - chance) > MARGIN, f"seed {SEED}: a draw is nearly undecided"
                if x < chance:
                    for j in targets:
                        old = merged.get(j, [v / 32 for v in values[j]])
                        merged[j] = [a + b / 32 / len(targets) for a, b in zip(old, values[t])]
            heads.append({"tokens": kept, "values": [rounded(merged.get(t)) for t in kept]})
        return heads

    def d2o(self):
        scores = [self.accumulated(head) for head in range(HEADS)]
        var = [variance(s) for s in scores]
        scaled = [(v - min(var)) / (max(var) - min(var) + 1e-6) for v in var]
        weights = [math.exp(-sum(scaled[il * KV_HEADS : (il + 1) * KV_HEADS]) / KV_HEADS) for il in range(LAYERS)]
        free = LAYERS * (self.n - 1)
        n_of = [min(1 + int(free * w / sum(weights)), TOKENS) for w in weights]
        kept = [keep(s, n_of[i // KV_HEADS], places(n_of[i // KV_HEADS], 4, TOKENS)) for i, s in enumerate(scores)]
        return [merge_similar(self.c.keys[i], self.c.values[i], kept[i]) for i in range(HEADS)]


def variance(x):
    mean = sum(x) / len(x)
    return sum((a - mean) ** 2 for a in x) / (len(x) - 1)


def rounded(row):
    return None if row is None else [round(x, 5) for x in row]


def merge_similar(keys, values, kept):
    cosine = lambda a, b: sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))
    nearest = {}
    for t in (t for t in range(TOKENS) if t not in kept):
        (u, _, j), (second, *_) = (best([(cosine(keys[t], keys[j]), i, j) for i, j in enumerate(kept)], 2) + [(-1.0,)])[:2]
        assert u - second > MARGIN, f"seed {SEED}: two kept keys are nearly as close"
        nearest[t] = (u, j)
    tau = sum(u for u, _ in nearest.values()) / len(nearest)
    assert all(abs(u - tau) > MARGIN for u, _ in nearest.values()), f"seed {SEED}: a similarity is nearly the threshold"
    groups = {j: [(1.0, j)] for j in kept}
    for t, (u, j) in nearest.items():
        if u >= tau:
            groups[j].append((u, t))

    def mean(rows, group):
        if len(group) == 1:
            return None
        total = sum(math.exp(u) for u, _ in group)
        return rounded([sum(math.exp(u) / total * rows[t][d] / 32 for u, t in group) for d in range(DIM)])

    return {
        "tokens": kept,
        "n_tokens": [len(groups[j]) for j in kept],
        "keys": [mean(keys, groups[j]) for j in kept],
        "values": [mean(values, groups[j]) for j in kept],
    }


def generator(key):
    """Numbers in 0..1: splitmix64, seeded by FNV-1a over the bits of a key."""
    mask, state = 2**64 - 1, 0xCBF29CE484222325
    for x in key:
        state = (state ^ struct.unpack("<I", struct.pack("<f", x / 32))[0]) * 0x100000001B3 & mask
    while True:
        state = state + 0x9E3779B97F4A7C15 & mask
        z = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
        yield ((z ^ z >> 31) >> 40) / 2**24


METHODS = {
    **dict.fromkeys(["snapkv", "pyramidkv", "adakv", "tova", "h2o", "cam"], ["lookahead", "small"]),
    **dict.fromkeys(["knorm", "random"], ["small"]),
    "d2o": ["lookahead"],
    "streaming_llm": [],
}


def flat(rows):
    return [x for row in rows for x in (flat(row) if isinstance(row[0], list) else row)]


def write(name, value):
    lines = json.dumps(value, separators=(",", ":")).replace("],[", "],\n[").replace("},{", "},\n{")
    (OUT / f"{name}.json").write_text(lines + "\n")


def compare_with_kvpress(cache):
    """Same keys, values and attention through kvpress; it marks each token by the first component of its value."""
    import torch
    from kvpress import KnormPress, ObservedAttentionPress, SnapKVPress, StreamingLLMPress, TOVAPress
    from types import SimpleNamespace

    for n_entries in BUDGETS:
        plans, n = Plans(cache, n_entries, []), n_entries // HEADS
        ratio = 1 - (n + 0.5) / TOKENS  # kvpress keeps the integer part
        for il in range(LAYERS):
            heads = slice(il * KV_HEADS, (il + 1) * KV_HEADS)
            keys = torch.tensor(cache.keys[heads], dtype=torch.float64)[None] / 32
            values = torch.arange(TOKENS, dtype=torch.float64).expand(1, KV_HEADS, TOKENS)[..., None].repeat(1, 1, 1, DIM)
            queries = torch.tensor(cache.queries[il][:TOKENS], dtype=torch.float64).transpose(0, 1)[None] / 32
            logits = queries @ keys.repeat_interleave(GROUP, 1).transpose(2, 3) / DIM**0.5
            hidden = torch.triu(torch.ones(TOKENS, TOKENS, dtype=torch.bool), 1)
            attention = logits.masked_fill(hidden, -torch.inf).softmax(-1)
            config = SimpleNamespace(num_attention_heads=KV_HEADS * GROUP, num_key_value_heads=KV_HEADS)
            module = SimpleNamespace(config=config, head_dim=DIM, layer_idx=il)
            state = (module, torch.zeros(1, TOKENS, 1), keys, values, attention, {})

            def kept(press):
                return [sorted(int(v) for v in head[:, 0]) for head in press.compress(*state)[1][0]]

            def agree(name, found, want):
                assert found == want, f"{name}, {n} entries per head, layer {il}: {found} and {want}"

            agree("knorm", kept(KnormPress(ratio)), plans.knorm()[heads])
            if n >= 4 * SINK:
                agree("streaming_llm", kept(StreamingLLMPress(ratio, SINK)), plans.streaming_llm()[heads])
            if n >= 2 * WINDOW:
                agree("snapkv", kept(SnapKVPress(ratio, WINDOW, 5)), plans.snapkv()[heads])
            # kvpress always keeps the last token.
            agree("tova", kept(TOVAPress(ratio)), [keep([*plans.tova_score(il)[:-1], 1.0], n, set())] * KV_HEADS)
            seen_by = torch.arange(TOKENS, 0, -1)
            mass = ObservedAttentionPress(ratio, output_attentions=True).score(*state)[0] * seen_by * GROUP
            want = torch.tensor([cache.total(h, range(TOKENS)) for h in range(HEADS)[heads]], dtype=torch.float64)
            assert torch.allclose(mass, want, rtol=1e-9), "attention mass"
    print("kvpress agrees: knorm, streaming_llm, snapkv, tova, attention mass")


def main():
    cache = Cache(SEED)
    masses = [cache.total(head, range(TOKENS)) for head in range(HEADS)]
    write("cache", {
        "n_layer": LAYERS, "n_head": KV_HEADS * GROUP, "n_head_kv": KV_HEADS, "head_dim": DIM, "n_tokens": TOKENS,
        "n_window_query": WINDOW, "n_lookahead": AHEAD,
        "keys": [flat(k) for k in cache.keys],
        "values": [flat(v) for v in cache.values],
        "queries": [flat(q[TOKENS - WINDOW :]) for q in cache.queries],
        "attention_mass": [[round(x, 9) for m in masses[il * KV_HEADS : (il + 1) * KV_HEADS] for x in m] for il in range(LAYERS)],
    })
    for method, modifiers in METHODS.items():
        cases = []
        for form in [[], *[[m] for m in modifiers], *([modifiers] if len(modifiers) > 1 else [])]:
            for n_entries in BUDGETS:
                heads = getattr(Plans(cache, n_entries, form), method)()
                heads = [head if isinstance(head, dict) else {"tokens": head} for head in heads]
                assert sum(len(head["tokens"]) for head in heads) <= n_entries
                cases.append({"name": "+".join([method, *form]), "n_entries": n_entries, "n_sink": SINK, "n_window": RECENT, "heads": heads})
        write(method, cases)
    if "--kvpress" in sys.argv:
        compare_with_kvpress(cache)


if __name__ == "__main__":
    main()
