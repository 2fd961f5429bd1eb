"""Answers of endpoints: JSON of any text, and streams that fail."""

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from normscope.studio.endpoints import _lines, encode


def test_any_text_is_sent() -> None:
    value = {"a\ud800": ["b\udfff", {"c": ("\ud800", 1.5, None, True)}], "tensor": torch.ones(2), "path": Path("x")}
    assert json.loads(encode(value)) == {"a?": ["b?", {"c": ["?", 1.5, None, True]}], "tensor": [1, 1], "path": "x"}


def test_a_stream_that_fails_ends_with_an_error_that_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def items() -> Iterator[Any]:
        yield {"number": 1}
        raise ZeroDivisionError("secret")

    async def read() -> list[bytes]:
        return [line async for line in _lines(items())]

    with caplog.at_level(logging.ERROR):
        first, last = asyncio.run(read())
    assert json.loads(first) == {"number": 1}
    assert json.loads(last)["error"]["message"]
    assert b"secret" not in last
    assert "ZeroDivisionError" in caplog.text


def test_a_stream_is_closed_when_the_client_goes_away() -> None:
    closed = []

    def items() -> Iterator[Any]:
        try:
            while True:
                yield {}
        finally:
            closed.append(True)

    async def read_then_cancel() -> None:
        async def read() -> None:
            async for _ in _lines(items()):
                await asyncio.sleep(0.01)

        task = asyncio.create_task(read())
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(read_then_cancel())
    assert closed == [True]
