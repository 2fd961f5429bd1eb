"""Answers of endpoints: JSON of any text, and streams that fail."""

import asyncio
import json
import logging
import time
import unittest
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import torch

from normscope.studio.endpoints import _lines, encode


def in_a_thread(function: Callable[[], Any]) -> Any:
    """Call a function that runs an event loop: the browser's is running in the main thread of the same worker."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(function).result()


def test_any_text_is_sent() -> None:
    value = {"a\ud800": ["b\udfff", {"c": ("\ud800", 1.5, None, True)}], "tensor": torch.ones(2), "path": Path("x")}
    assert json.loads(encode(value)) == {"a?": ["b?", {"c": ["?", 1.5, None, True]}], "tensor": [1, 1], "path": "x"}


def test_a_stream_that_fails_ends_with_an_error_that_tells_nothing() -> None:
    def items() -> Iterator[Any]:
        yield {"number": 1}
        raise ZeroDivisionError("secret")

    async def read() -> list[bytes]:
        return [line async for line in _lines(items())]

    with unittest.TestCase().assertLogs(level=logging.ERROR) as logs:
        first, last = in_a_thread(lambda: asyncio.run(read()))
    assert json.loads(first) == {"number": 1}
    assert json.loads(last)["error"]["message"]
    assert b"secret" not in last
    assert "ZeroDivisionError" in "".join(logs.output)


def test_a_stream_is_closed_when_the_client_goes_away() -> None:
    closed = []

    def items() -> Iterator[Any]:
        try:
            while True:
                time.sleep(0.02)
                yield {}
        finally:
            closed.append(True)

    stream = items()

    async def read_until_canceled() -> None:
        with anyio.move_on_after(0.1):
            async for _ in _lines(stream):
                pass

    in_a_thread(lambda: anyio.run(read_until_canceled))
    assert closed == [True]
