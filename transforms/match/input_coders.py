"""The coders of what matching sends through shuffles."""

from __future__ import annotations

from apache_beam import coders

from shardmill.schemas.refs import InputRef
from shardmill.transforms.match.counts import MatchCounts
from shardmill.transforms.runtime.tuple_coder import TupleCoder

for _type in (InputRef, MatchCounts):
    coders.registry.register_coder(_type, TupleCoder)
