"""The tree of token runs against a cache that stores every prefix token by token."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.kvcache.content import Run, canonical, split, take, tokens_in
from simserve.kvcache.radix import RadixTree
from simserve.kvcache.radix_pool import Holding, RadixPool

PIECES = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([0, 4, 8]), st.integers(1, 12)), min_size=1, max_size=5
)


def tokens_of(runs):
    return [(segment, position) for segment, start, n in runs for position in range(start, start + n)]


@given(pieces=PIECES, at=st.integers(0, 60))
def test_canonical_runs_keep_the_tokens(pieces, at):
    runs = canonical(pieces)
    assert tokens_of(runs) == tokens_of(pieces)
    assert tokens_in(runs) == len(tokens_of(pieces))
    head, tail = split(runs, at)
    assert tokens_of(head) == tokens_of(pieces)[:at]
    assert tokens_of(tail) == tokens_of(pieces)[at:]
    assert take(runs, at) == head


@given(pieces=PIECES, cuts=st.lists(st.integers(0, 60), max_size=4))
def test_equal_texts_are_equal_runs_however_they_were_cut(pieces, cuts):
    runs = canonical(pieces)
    parts, rest = [], runs
    for cut in cuts:
        head, rest = split(rest, cut)
        parts += head
    assert canonical([*parts, *rest]) == runs


@settings(max_examples=150, deadline=None)
@given(texts=st.lists(st.tuples(PIECES, st.booleans()), max_size=12), page_size=st.sampled_from([1, 2, 4]))
def test_hits_equal_those_of_a_cache_of_single_tokens(texts, page_size):
    tree, known = RadixTree(page_size), {()}
    for pieces, insert in texts:
        runs = canonical(pieces)
        tokens = tokens_of(runs)
        whole = len(tokens) - len(tokens) % page_size
        expected = max(n for n in range(0, whole + 1, page_size) if tuple(tokens[:n]) in known)
        if insert:
            assert tree.insert(runs, len(tokens)) == expected
            known |= {tuple(tokens[:n]) for n in range(0, whole + 1, page_size)}
        else:
            assert tree.match(runs, len(tokens))[1] == expected
        assert tree.evictable == page_size * (len(known) - 1)
        assert tree.protected == 0


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(PIECES, min_size=1, max_size=8), locked=st.integers(0, 7), wanted=st.integers(1, 200))
def test_eviction_spares_what_is_locked(texts, locked, wanted):
    tree = RadixTree()
    for pieces in texts:
        tree.insert(canonical(pieces), len(tokens_of(pieces)))
    kept = canonical(texts[locked % len(texts)])
    node, length = tree.match(kept, tokens_in(kept))
    tree.lock(node)
    assert tree.protected == length
    before = tree.evictable
    freed = tree.evict(wanted)
    assert freed >= min(wanted, before)
    assert tree.evictable == before - freed
    assert tree.match(kept, tokens_in(kept))[1] == length
    tree.unlock(node)
    assert tree.protected == 0
    assert tree.evict(10_000) == before - freed + length
    assert not tree.root.children


def order_of_eviction(rule, accesses, priorities=(0, 0, 0)):
    """Insert texts 0, 1, 2 of one token, access some again, and return the order in which they go."""
    tree = RadixTree(1, rule)
    texts = [(Run(segment, 0, 1),) for segment in range(3)]
    for text, priority in zip(texts, priorities, strict=True):
        tree.insert(text, 1, priority)
    for segment in accesses:
        tree.insert(texts[segment], 1)
    order = []
    while tree.root.children:
        before = {next(iter(page)).segment for page in tree.root.children}
        tree.evict(1)
        (gone,) = before - {next(iter(page)).segment for page in tree.root.children}
        order.append(gone)
    return order


@pytest.mark.parametrize(
    ("rule", "accesses", "order"),
    [
        ("lru", [0], [1, 2, 0]),
        ("mru", [0], [0, 2, 1]),
        ("fifo", [0], [0, 1, 2]),
        ("filo", [0], [2, 1, 0]),
        ("lfu", [0, 0, 1], [2, 1, 0]),
        ("slru", [0, 0, 1], [2, 0, 1]),
        ("slru", [1, 1, 0], [2, 1, 0]),
    ],
)
def test_eviction_rules(rule, accesses, order):
    assert order_of_eviction(rule, accesses) == order


def test_the_priority_rule_evicts_the_least_important_first():
    assert order_of_eviction("priority", [], priorities=(5, 1, 3)) == [1, 2, 0]


def nodes_below(node):
    """Return (tokens, hits, priority) of every node below `node`, parents first."""
    found = []
    for child in node.children.values():
        found += [(child.length, child.hits, child.priority), *nodes_below(child)]
    return found


@pytest.mark.parametrize(("page_size", "lengths"), [(1, [70, 58, 29]), (16, [64, 64, 16])])
def test_a_prompt_computed_together_with_output_ends_a_node_of_its_own(page_size, lengths):
    """A request that was sent back: prompt of 128 tokens, 70 of them shared, and 29 output tokens with KV."""
    pool = RadixPool(1600, page_size)
    shared, whole = (Run(1, 0, 70),), (Run(1, 0, 70), Run(2, 0, 58), Run(3, 0, 29))
    pool.tree.insert(shared, 70, priority=5)
    pool.free -= pool.tree.evictable
    kept = pool.free
    holding = Holding()
    pool.hold(holding, *pool.lookup(whole, 156))
    pool.free -= pool.need(holding, 157)
    holding.stored = 157
    pool.cache_finished(holding, whole, 157, prompt_tokens=128, priority=5)
    assert [length for length, _, _ in nodes_below(pool.tree.root)] == lengths
    assert [priority for _, _, priority in nodes_below(pool.tree.root)] == [6, 6, 5]
    assert [hits for _, hits, _ in nodes_below(pool.tree.root)] == [2, 1, 1]
    assert pool.free == kept - sum(lengths[1:])


def test_a_request_counts_a_hit_of_a_node_once():
    """A chunk that is entered again with the next one is no hit; another request's is."""
    pool, text = RadixPool(100), (Run(1, 0, 40),)
    for _ in range(2):
        holding = Holding()
        holding.stored = 20
        pool.cache_prompt(holding, text, 20, 40, 0)
        holding.stored = 40
        pool.cache_finished(holding, text, 40, 40, 0)
    assert [hits for _, hits, _ in nodes_below(pool.tree.root)] == [2, 2]
