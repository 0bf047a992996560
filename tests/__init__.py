"""Tests; folders mirror the packages they test."""

import pytest

pytest.register_assert_rewrite("tests.support")
