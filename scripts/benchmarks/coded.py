"""Compare X w and X'c of coded rows with SciPy's on the same matrix, and measure what two threads or ranks gain.

The codes of categories, and of crosses of two, are drawn. Strings are real: a set whose name begins with `dna` is a
text of LABEL SEQUENCE lines. The letters 139 to 279 of its sequences are used; in splice sites of 398 letters with AG
at 198 and 199, AG is then at 60 and 61.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from distsms.base.text_files import open_text
from distsms.matrix.code_maps import Categories, CodeMap, Crosses, Strings
from distsms.matrix.coded import CodedRows, code_rows, to_csr
from scripts.benchmarks.measuring import Row, Set, Triad, row, timed, two_cores
from scripts.benchmarks.running import run_module

WINDOW = slice(138, 279)
DEGREES = (3, 5, 6, 8)
ROWS, MOST = 100_000, 3e7
"""Rows, and the nonzeros to which their number is cut for the comparison with SciPy, whose matrix takes 12 bytes
each.
"""
RANKS_ROWS = 2**20
"""Rows that two ranks share. Each then has eight for each k-mer of eight letters, so making tables counts little."""


def benchmark(given: Set, folder: Path, quick: bool) -> Iterator[Row]:
    """Yield the table rows: for strings if the name of the set begins with dna, else for categories."""
    text = given.train if given.strings else None
    targets = {"100 blocks of 32 codes": ">= 1.5", "100 blocks of 1000 codes": ">= 3"}
    targets |= {"190 crosses of 20 blocks of 8 codes": ">= 1.5", "190 crosses of 20 blocks of 32 codes": ">= 3"}
    for name, (code_map, codes) in maps(given.name, text, 2_000 if quick else ROWS).items():
        yield from compared(
            "coded", name, code_map, codes[: int(MOST / code_map.entries)], targets.get(name, ""), quick
        )
        yield from _measured(name, code_map, codes, quick)
    found = run_module("coded_ranks", *((2_000, 2) if quick else (RANKS_ROWS, 15)), *filter(None, [text]), ranks=2)
    for found_name, times in found.items():
        name = found_name.replace("strings", given.name)
        for product in ("X w", "X'c", "triad"):
            alone, pair = (np.array(times[f"{product} on {ranks}"]) for ranks in (1, 2))  # (rounds, 2)
            gain = alone / pair * (2 if product == "triad" else 1)  # on two ranks, each computes a whole triad
            target = ">= 1.8" if product != "triad" else ""
            what = f"{product}: speedup of two ranks over one"
            yield row("coded", name, what, gain[:, 0], "x", target)
            yield row("coded", name, f"{what}, by processor time", gain[:, 1], "x")


def maps(name: str, text: Path | None, n: int) -> dict[str, tuple[CodeMap, Any]]:
    """Return maps with codes of n rows: of the sequences of a text, repeated if these are fewer, or of categories."""
    found: dict[str, tuple[CodeMap, Any]] = {}
    if text is not None:
        letters = read_letters(text, min(n, ROWS))
        letters = np.resize(letters, (n, letters.shape[1]))
        return {f"{name}, K = {K}": (Strings("dna", letters.shape[1], K), letters) for K in DEGREES}
    rng = np.random.default_rng(0)
    for size in (32, 250, 1000):
        blocks = Categories((size,) * 100)
        found[f"100 blocks of {size} codes"] = blocks, rng.integers(0, size, (n, 100), blocks.dtype)
    for size in (8, 32):
        crosses = Crosses((size,) * 20, tuple(combinations(range(20), 2)))
        found[f"190 crosses of 20 blocks of {size} codes"] = crosses, rng.integers(0, size, (n, 20), crosses.dtype)
    return found


def read_letters(path: Path, n: int) -> np.ndarray:
    """Return the codes of the windows of the first n sequences, (n, letters)."""
    code = np.full(256, 255, np.uint8)
    code[list(b"ACGT")] = range(4)
    with open_text(str(path)) as file:
        lines = [line.split()[1][WINDOW] for line, _ in zip(file, range(n), strict=False)]
    return code[np.frombuffer(b"".join(lines), np.uint8)].reshape(len(lines), -1)


def compared(part: str, name: str, code_map: CodeMap, codes: Any, target: str, quick: bool) -> Iterator[Row]:
    """Yield how many times as fast as SciPy the products are."""
    rows, X = CodedRows(code_map, code_rows(codes, code_map), [0, len(codes)]), to_csr(code_map, codes)
    functions, (w, c) = products(rows), _vectors(rows)
    transposed = X.T
    functions |= {"SciPy X w": lambda: X @ w, "SciPy X'c": lambda: transposed @ c}
    times = timed(functions, 0.2 if quick else 3.0)
    for product in ("X w", "X'c"):
        ratio = times[f"SciPy {product}"] / times[product]
        yield row(part, name, f"{product}: time ratio SciPy / distsms, {len(codes)} rows", ratio, "x", target)
    yield row(part, name, "bytes of memory per row: SciPy's", (12 * X.nnz + 4 * len(codes)) / len(codes))


def _measured(name: str, code_map: CodeMap, codes: Any, quick: bool) -> Iterator[Row]:
    """Yield the rates on all rows, and what two threads gain."""
    flat, seconds = code_rows(codes, code_map), 0.2 if quick else 2.0
    rows, pair = (CodedRows(code_map, flat, [0, len(codes)], threads) for threads in (1, 2))
    functions = products(rows) | {f"{name} on two": work for name, work in products(pair).items()}
    times, triads = timed(functions, seconds), [Triad(), Triad()]
    nonzeros = len(codes) * code_map.entries
    for product in ("X w", "X'c"):
        yield row("coded", name, f"{product}: nonzeros per second", 1e-9 * nonzeros / times[product], "1e9/s")
        rate = (rows.nbytes + 8 * len(codes) + 8 * code_map.p * (1 + (product == "X'c"))) / times[product]
        yield row("coded", name, f"{product}: bytes to touch / those of a triad", 100 * rate / triads[0].rate(), "%")
        gain = times[product] / times[f"{product} on two"]
        yield row("coded", name, f"{product}: speedup of two threads over one", gain, "x", ">= 1.8")
    gain = two_cores(triads) / triads[0].rate()
    yield row("coded", name, "speedup of two triads at once over one after the other", gain, "x")
    yield row("coded", name, "bytes of memory per row", rows.nbytes / len(codes))


def _vectors(rows: CodedRows) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=size) for size in reversed(rows.shape)]


def products(rows: CodedRows) -> dict[str, Callable[[], object]]:
    (w, c), (s, r) = _vectors(rows), map(np.empty, rows.shape)
    return {"X w": lambda: rows.margins(w, s), "X'c": lambda: rows.transposed_times(c, r)}
