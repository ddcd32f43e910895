"""What a report says of letters and k-mers, compared with sums over all sequences."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from distsms.matrix.code_maps import Spectrum, Strings
from distsms.matrix.coded import CodedRows, code_rows
from distsms.models import kmers
from distsms.models.model import Model
from distsms.page import learned_sections
from distsms.shards.coded_columns import CodedColumns
from distsms.shards.sequence_rules import Sequences

pytestmark = pytest.mark.serial


def scores_of(code_map, w, rows):
    flat = code_rows(np.array(rows, np.uint8), code_map)
    return CodedRows(code_map, flat, [0, len(rows)]).margins(w)


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_the_importance_of_letters_is_a_mean_over_all_sequences(degree):
    code_map = Strings("dna", 5, degree)
    w = np.random.default_rng(degree).normal(size=code_map.p)
    rows = np.array(list(product(range(4), repeat=5)))
    scores = scores_of(code_map, w, rows)
    expected = [[scores[rows[:, i] == letter].mean() - scores.mean() for letter in range(4)] for i in range(5)]
    np.testing.assert_allclose(kmers.letter_importance(w, code_map), expected, atol=1e-12)


@pytest.mark.parametrize("degree", [1, 2, 3, 4])
def test_the_score_of_a_kmer_is_that_of_all_its_words(degree):
    """All other letters are unknown, so that only the words inside the k-mer count."""
    code_map = Strings("dna", 6, degree, (Spectrum(1, 6, 2),))
    w = np.random.default_rng(degree).normal(size=code_map.p)
    w[code_map.starts[-1] :] = 0  # the spectrum
    found = kmers.kmer_scores(w, code_map)
    assert found.shape == (7 - degree, 4**degree)
    for i in range(7 - degree):
        rows = np.full((4**degree, 6), 255)
        rows[:, i : i + degree] = list(product(range(4), repeat=degree))
        scores = scores_of(code_map, w, rows)
        np.testing.assert_allclose(found[i], scores - scores.mean(), atol=1e-12)


def test_a_planted_word_is_found_and_drawn():
    code_map = Strings("dna", 9, 3)
    sequences = Sequences("dna", 20, (6, 14), code_map)
    w, drawings = np.zeros(code_map.p), []
    w[int(code_map.starts[4]) + 4 + 16 + 0b001110] = 2.0  # ATG at the fifth kept letter, position 10
    best = kmers.best_kmers(w, sequences, 1)[0]
    assert (best.position, best.letters) == (10, "ATG")
    page = str(learned_sections.words(Model(w, {}, coded=CodedColumns((code_map,), sequences)), drawings))
    assert "<td>ATG</td>" in page.replace(' class="text"', "") and [drawing.name for drawing in drawings] == [
        "positions",
        "logo",
    ]
    assert "ATG" in drawings[1].description
    assert learned_sections.words(Model(w, {}), []) == ""
