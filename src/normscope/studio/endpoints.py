"""Endpoints: typed functions that the page calls by name.

A view declares its endpoints in one table. Each takes the studio and a request, a `msgspec.Struct` that the JSON body
is checked against, and returns data; one that returns an iterator streams it, one JSON object per line:

    class Square(msgspec.Struct, forbid_unknown_fields=True):
        number: float

    def square(studio: StudioState, request: Square) -> dict[str, float]:
        return {"result": request.number**2}

    ENDPOINTS = {"demo/square": square}
"""

import inspect
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import anyio
import msgspec
import numpy as np
from starlette.concurrency import iterate_in_threadpool, run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from torch import Tensor

from normscope.errors import NormscopeError, ScopeError

MAX_BODY = 4 * 2**20
"""Largest request in bytes; uploads have an endpoint and a limit of their own."""

Endpoint = Callable[..., Any]
Name = Annotated[str, msgspec.Meta(max_length=200)]
"""The name of a run, a preset or a claim."""


class NoArguments(msgspec.Struct, forbid_unknown_fields=True):
    """A request without arguments."""


class TooLargeError(NormscopeError):
    """A request body above the limit."""


def routes(studio: Any, endpoints: Mapping[str, Endpoint]) -> list[Route]:
    """The routes `POST /api/NAME` of these endpoints."""
    return [Route(f"/api/{name}", _handler(studio, endpoint), methods=["POST"]) for name, endpoint in endpoints.items()]


def _handler(studio: Any, endpoint: Endpoint) -> Callable[[Request], Any]:
    names = list(inspect.signature(endpoint).parameters)
    decoder = msgspec.json.Decoder(get_type_hints(endpoint)[names[1]])

    async def handle(request: Request) -> Response:
        try:
            decoded = decoder.decode(await read_body(request, MAX_BODY))
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            return error_response(error, 422)
        except NormscopeError as error:
            return error_response(error)
        return await _answer(endpoint, studio, decoded)

    return handle


def upload_route(name: str, limit: int, receive: Callable[[bytes], Any]) -> Route:
    """The route `POST /api/NAME` that takes a file of at most `limit` bytes as the body."""

    async def handle(request: Request) -> Response:
        try:
            data = await read_body(request, limit)
        except NormscopeError as error:
            return error_response(error)
        return await _answer(receive, data)

    return Route(f"/api/{name}", handle, methods=["POST"])


async def _answer(function: Callable[..., Any], *arguments: Any) -> Response:
    try:
        result = await run_in_threadpool(function, *arguments)
    except NormscopeError as error:
        return error_response(error)
    if isinstance(result, Iterator):
        return StreamingResponse(_lines(result), media_type="application/x-ndjson")
    return Response(encode(result), media_type="application/json")


async def read_body(request: Request, limit: int) -> bytes:
    """Read the body; a larger one is refused before it is in memory."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise TooLargeError(f"the request is larger than {limit:,} bytes")
    return bytes(body)


async def _lines(items: Iterator[Any]) -> AsyncIterator[bytes]:
    """The items, one JSON object per line; an error becomes the last line."""
    try:
        async for item in iterate_in_threadpool(items):
            yield encode(item) + b"\n"
    except NormscopeError as error:
        yield encode({"error": describe(error)}) + b"\n"
    except Exception:
        logging.getLogger(__name__).exception("a stream failed")
        yield encode({"error": {"message": "internal server error; see the terminal for details", "fix": ""}}) + b"\n"
    finally:
        close = getattr(items, "close", None)
        if close is not None:  # a client that went away: end a generator where it waits, though this task is canceled
            with anyio.CancelScope(shield=True):
                await run_in_threadpool(close)


def error_response(error: Exception, status: int | None = None) -> Response:
    status = status or (413 if isinstance(error, TooLargeError) else 400)
    return Response(encode({"error": describe(error)}), status, media_type="application/json")


def describe(error: Exception) -> dict[str, Any]:
    """An error as the page shows it; a `ScopeError` has the characters that it points at."""
    if isinstance(error, ScopeError):
        return {"message": error.problem, "fix": error.fix, "span": error.span}
    message, _, fix = str(error).partition("\nfix: ")
    return {"message": message, "fix": fix}


def encode(value: Any) -> bytes:
    """JSON, with NaN and infinities as null: JSON does not allow them. Lone surrogates become "?"."""
    try:
        return msgspec.json.encode(value, enc_hook=_plain)
    except UnicodeEncodeError:  # a damaged or hostile text
        return msgspec.json.encode(_unicode(value))


def _unicode(value: Any) -> Any:
    """The value in builtin types, with strings that are Unicode."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_unicode(name): _unicode(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_unicode(one) for one in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return _unicode(msgspec.to_builtins(value, enc_hook=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _plain(value.detach().cpu().numpy())
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"cannot send {type(value).__name__} to the page")


def finite(value: float | None) -> float | None:
    """The number, or None for NaN and infinity, which JSON cannot represent."""
    return value if value is not None and math.isfinite(value) else None
