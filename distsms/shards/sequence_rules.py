"""How sequences of letters (DNA, RNA, protein) become codes: what users ask for, and what is kept with data and model.

Each letter within the window becomes the code of its place in the alphabet, whatever its case, U as T. IUPAC's letters
for "one of several" become UNKNOWN: k-mers that contain them count nothing. Every other character is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base.errors import InputError
from distsms.base.wording import option, printable
from distsms.matrix.code_maps import ALPHABETS, HIGHEST_DEGREE, UNKNOWN, Spectrum, Strings

AMBIGUOUS = {"dna": "RYSWKMBDHVN", "rna": "RYSWKMBDHVN", "protein": "BJOUXZ"}
NO_LETTER = 254
"""What `code_table` has for characters that are not letters of the alphabet."""
USUAL_DEGREE = {"dna": 5, "rna": 5, "protein": 3}
LONGEST = 2**20
"""The longest sequence that is accepted, in letters."""


@dataclass(frozen=True)
class SequenceOptions:
    """What the user says about sequences."""

    # Whether the files are FASTA, or lines LABEL SEQUENCE. With None their names decide, or the first character (>).
    fasta: bool | None = None
    alphabet: str = "dna"  # one of `ALPHABETS`
    window: tuple[int, int] | None = None  # the positions that are kept, from 1, both included; None: all
    degree: int | None = None  # of the weighted degree features; 0: none; None: that of `USUAL_DEGREE`
    spectra: tuple[tuple[int, int], ...] = ()  # regions with spectrum features: positions in the whole sequence, from 1
    spectrum_degree: int | None = None  # the degree of the spectra; with None it is `degree`
    labels: str | None = None  # a file with lines NAME LABEL for the sequences of FASTA files


@dataclass(frozen=True)
class Sequences:
    """How sequences are read, as it is kept in data sets and models."""

    alphabet: str  # one of `ALPHABETS`
    length: int  # the number of letters of each sequence
    window: tuple[int, int]  # the positions that are kept, from 1, both included
    code_map: Strings  # what columns the codes of the kept letters stand for

    def record(self) -> dict[str, Any]:
        """Return everything but the code map, ready for JSON."""
        return {"alphabet": self.alphabet, "length": self.length, "window": list(self.window)}

    @classmethod
    def of(cls, record: Any, code_map: Any) -> Sequences:
        """Return what `record` and a code map describe. Raises ValueError if they are damaged."""
        if not isinstance(record, Mapping) or not isinstance(code_map, Strings):
            raise ValueError("sequences are described by an object and by a map of strings")
        alphabet, length, window = (record.get(name) for name in ("alphabet", "length", "window"))
        if alphabet not in ALPHABETS or type(length) is not int or not 1 <= length <= LONGEST:
            raise ValueError(f"the alphabet {alphabet!r:.60} or the length {length!r:.60} of the sequences is unknown")
        if not isinstance(window, list) or [type(end) for end in window] != [int, int]:
            raise ValueError(f"the window {window!r:.60} is not a pair of positions")
        first, last = window
        if not 1 <= first <= last <= length or last - first + 1 != code_map.length or alphabet != code_map.alphabet:
            raise ValueError(f"the window {first}:{last} does not fit the length {length} or the code map")
        return cls(alphabet, length, (first, last), code_map)

    def column_name(self, j: int) -> str:
        """Return the name of column j, with positions in the whole sequence: 199:AG, or 1-60:GGT for a spectrum."""
        places, kmer = self.code_map.column_name(j).split(":")
        return "-".join(str(int(place) + self.window[0] - 1) for place in places.split("-")) + f":{kmer}"

    def describe(self) -> str:
        first, last = self.window
        degree, spectra = self.code_map.degree, self.code_map.spectra
        parts = [f"{self.length} letters ({self.alphabet})"]
        parts += [f"window {first}:{last}"] if (first, last) != (1, self.length) else []
        parts += [f"weighted degree {degree}"] if degree else []
        parts += [f"spectrum {start + first - 1}:{stop + first - 1} of degree {k}" for start, stop, k in spectra]
        return ", ".join(parts)


def encoding(options: SequenceOptions, length: int, where: str) -> Sequences:
    """Return how sequences of `length` letters become codes and columns. Local. InputError begins with `where`."""
    if not 0 < length <= LONGEST:
        raise InputError(f"{where}: the first sequence has {length} letters; 1 to {LONGEST} are read")
    alphabet = options.alphabet
    first, last = options.window or (1, length)
    if not 1 <= first <= last <= length:
        window = option("window", (first, last), text=f"{first}:{last}")
        raise InputError(f"{where}: {window} is not within the sequences, whose {length} letters count from 1")
    width = last - first + 1
    degree = min(USUAL_DEGREE[alphabet], width) if options.degree is None else options.degree
    spectrum_degree = degree if options.spectrum_degree is None else options.spectrum_degree
    region = option("spectra", text="FROM:TO")
    if options.spectrum_degree is not None and not options.spectra:
        raise InputError(f"{option('spectrum_degree')} is that of spectra; say in which region with {region}")
    if not degree and not options.spectra:
        raise InputError(f"{option('degree', 0)} leaves no features; give {region}")
    for name, value, least in (("degree", degree, 0), ("spectrum_degree", spectrum_degree, 1)):
        if not least <= value <= HIGHEST_DEGREE[alphabet] and (name == "degree" or options.spectra):
            reason = f"k-mers of length k have {len(ALPHABETS[alphabet])}^k columns"
            most = HIGHEST_DEGREE[alphabet]
            raise InputError(f"{option(name, value)}: for {alphabet} it is from {least} to {most}, because {reason}")
    if degree > width:
        raise InputError(f"{option('degree', degree)} is more than the {width} letters of the window")
    for start, stop in options.spectra:
        words = option("spectra", [(start, stop)], text=f"{start}:{stop}")
        if not first <= start <= stop <= last:
            raise InputError(f"{where}: {words} is not within the window {first}:{last} of the whole sequences")
        if spectrum_degree > stop - start + 1:
            raise InputError(f"{words}: has fewer letters than its degree, {spectrum_degree}")
    spectra = tuple(Spectrum(start - first + 1, stop - first + 1, spectrum_degree) for start, stop in options.spectra)
    try:
        return Sequences(alphabet, length, (first, last), Strings(alphabet, width, degree, spectra))
    except ValueError as error:
        raise InputError(f"{where}: {error}") from error


def code_table(alphabet: str) -> NDArray[np.uint8]:
    """Return the code of each byte, (256,): of its letter, UNKNOWN or NO_LETTER."""
    table = np.full(256, NO_LETTER, np.uint8)
    codes = {letter: code for code, letter in enumerate(ALPHABETS[alphabet])}
    codes |= dict.fromkeys(AMBIGUOUS[alphabet], UNKNOWN)
    if alphabet != "protein":
        codes["T"] = codes["U"] = 3
    for letter, code in codes.items():
        table[ord(letter)] = table[ord(letter.lower())] = code
    return table


def encode(words: Sequence[str], sequences: Sequences) -> NDArray[np.uint8]:
    """Return the codes of the letters within the window, (n, letters), for whole sequences. Local."""
    for row, word in enumerate(words):
        if not isinstance(word, str) or len(word) != sequences.length:
            actual = f"{len(word)} letters" if isinstance(word, str) else f"the type {type(word).__name__}"
            raise InputError(f"sequence {row} (counted from 0) has {actual}, and not {sequences.length} letters")
    text = np.frombuffer("".join(words).encode("latin-1", "replace"), np.uint8)  # one byte for each character
    codes = code_table(sequences.alphabet)[text].reshape(len(words), sequences.length)
    if (codes == NO_LETTER).any():
        row, at = np.argwhere(codes == NO_LETTER)[0].tolist()
        problem = f"character {at + 1}, {printable(words[row][at])!r}, is no letter of {sequences.alphabet}"
        raise InputError(f"sequence {row} (counted from 0): {problem}, which the model is for")
    first, last = sequences.window
    return codes[:, first - 1 : last]
