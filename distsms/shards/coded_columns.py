"""Coded columns: groups of columns whose rows are stored as a few codes, behind the columns of X, if there are any."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

from distsms.matrix.code_maps import CodeMap, Strings, code_map
from distsms.shards.sequence_rules import Sequences


class FeatureReference(NamedTuple):
    """Which feature map made the codes (`distsms.features.feature_map`)."""

    hash: str  # 64 hex digits that identify the map
    columns: int  # of the rows that it takes

    @classmethod
    def of(cls, record: Any) -> FeatureReference:
        if not isinstance(record, dict) or set(record) != {"hash", "columns"}:
            raise ValueError("features must have a hash and a number of columns")
        reference = cls(**record)
        if not isinstance(reference.hash, str) or not re.fullmatch("[0-9a-f]{64}", reference.hash):
            raise ValueError("the hash of the features must be 64 hex digits")
        if type(reference.columns) is not int or not 1 <= reference.columns < 2**62:
            raise ValueError("the number of columns that features are made from must be at least 1")
        return reference


@dataclass(frozen=True)
class CodedColumns:
    """The coded columns of a data set or a model: none if `maps` is empty."""

    maps: tuple[CodeMap, ...] = ()  # what the codes of each group stand for, in the order of their columns
    sequences: Sequences | None = None  # how the codes of the only group were made from sequences, if they were
    features: FeatureReference | None = None  # which feature map made the codes from columns, if one did

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> CodedColumns:
        """Return what the fields `coded`, `sequences` and `features` of a record describe; ValueError if damaged."""
        map_records = record.get("coded", [])
        if not isinstance(map_records, list) or not all(isinstance(one_map, dict) for one_map in map_records):
            raise ValueError("coded must be a list of objects")
        maps = tuple(map(code_map, map_records))
        sequence_record = record.get("sequences")
        if sequence_record is not None and len(maps) != 1:
            raise ValueError("sequences need one group of codes")
        feature_record = record.get("features")
        if feature_record is not None and (not maps or sequence_record is not None):
            raise ValueError("features need codes that were not made from sequences")
        sequences = None if sequence_record is None else Sequences.of(sequence_record, maps[0])
        return cls(maps, sequences, None if feature_record is None else FeatureReference.of(feature_record))

    def record(self) -> dict[str, Any]:
        """Return the fields `coded`, `sequences` and `features`, ready for JSON; {} if there are no coded columns."""
        if not self:
            return {}
        record: dict[str, Any] = {"coded": [group.record() for group in self.maps]}
        record |= {"features": self.features._asdict()} if self.features else {}
        return record | ({"sequences": self.sequences.record()} if self.sequences else {})

    def __bool__(self) -> bool:
        return bool(self.maps)

    @property
    def p(self) -> int:
        return sum(group.p for group in self.maps)

    @property
    def n_codes(self) -> int:
        """The number of codes that are stored for a row."""
        return sum(group.n_codes for group in self.maps)

    @property
    def row_bytes(self) -> int:
        """The bytes of the codes of a row."""
        return sum(group.n_codes * group.dtype.itemsize for group in self.maps)

    @property
    def factor_bytes(self) -> int:
        """The bytes of the numbers that are held for a row besides its codes: a factor for each spectrum."""
        return sum(8 * len(group.spectra) for group in self.maps if isinstance(group, Strings))

    @property
    def entries(self) -> int:
        """The most nonzeros that a row has in the coded columns."""
        return sum(group.entries for group in self.maps)

    def column_name(self, j: int) -> str:
        """Return the name of coded column j. If there are several groups, it begins with the number of its group."""
        if self.sequences is not None:
            return self.sequences.column_name(j)
        for number, group in enumerate(self.maps):
            if j < group.p:
                return f"{number}/{group.column_name(j)}" if len(self.maps) > 1 else group.column_name(j)
            j -= group.p
        raise IndexError(j)

    def describe(self) -> str:
        if self.sequences is not None:
            return f"sequences of {self.sequences.describe()}"
        sizes = " and ".join(f"{group.n_codes} codes for {group.p} columns" for group in self.maps)
        return f"rows of {sizes}"


NOT_CODED = CodedColumns()
"""That there are no coded columns."""


class ColumnNames(Sequence[str]):
    """The names of p columns, made when they are asked for: there may be millions. `name(j)` is that of column j."""

    def __init__(self, p: int, name: Callable[[int], str]) -> None:
        self._p, self._name = p, name

    def __len__(self) -> int:
        return self._p

    @overload
    def __getitem__(self, j: int) -> str: ...
    @overload
    def __getitem__(self, j: slice) -> list[str]: ...
    def __getitem__(self, j: Any) -> Any:
        if isinstance(j, slice):
            return [self._name(column) for column in range(*j.indices(self._p))]
        return self._name(range(self._p)[j])
