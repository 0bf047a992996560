"""Values keep their types and fields through the coders that shuffles use."""

from apache_beam.coders import registry
from hypothesis import given
from hypothesis import strategies as st

import shardmill.transforms.match.transform
import shardmill.transforms.sink.census  # noqa: F401 - registers coders
from shardmill.schemas import InputRef
from shardmill.schemas.refs import MatchCounts, SegmentRef
from shardmill.transforms.sink.placement import PartKey, PlacedRef

NUMBER = st.integers(0, 2**62)
REFERENCES = st.one_of(
    st.builds(
        InputRef,
        st.text(),
        st.text(),
        NUMBER,
        st.text(),
        st.none() | st.text(),
        mask=st.just(()) | st.tuples(st.text(), NUMBER, st.text()),
        member=st.just(()) | st.tuples(st.text(), NUMBER, st.text(), NUMBER, NUMBER, st.just(-1)),
    ),
    st.builds(SegmentRef, *[st.text()] * 2, *[NUMBER] * 3, st.text(), *[NUMBER] * 2),
)


@given(
    REFERENCES.filter(lambda ref: isinstance(ref, InputRef))
    | st.builds(PartKey, st.text(), st.text(), NUMBER)
    | st.builds(MatchCounts, NUMBER, NUMBER, st.text())
    | st.builds(PlacedRef, st.binary(), REFERENCES)
)
def test_values_survive_their_coder(value) -> None:
    coder = registry.get_coder(type(value))
    assert coder.is_deterministic()
    decoded = coder.decode(coder.encode(value))
    assert decoded == value
    assert type(decoded) is type(value)
    if isinstance(value, PlacedRef):
        assert type(decoded.ref) is type(value.ref)
