"""Rows that are streamed from their shards are those that are in memory, whatever fits: every product, to the bit."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from distsms import features
from distsms.comm import Communicator
from distsms.errors import InputError
from distsms.shards import load, write_data
from distsms.streaming import Room, Stream
from tests.problems import RankOf

ALONE = Communicator()
MANY = 2**40
