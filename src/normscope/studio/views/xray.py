"""The tab "X-ray": the signal in every layer of a run, a preset or an uploaded record, and what is wrong with it."""

import secrets
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from normscope.diagnostics.diff.diff import compare
from normscope.diagnostics.diff.differences import ModuleDiff
from normscope.diagnostics.findings import find
from normscope.diagnostics.record import XrayRecord
from normscope.diagnostics.record_json import load_record
from normscope.errors import ConfigError, NormscopeError
from normscope.inspection.xray import XrayResult, xray_target
from normscope.models.presets import PRESETS
from normscope.storage.json_files import MIB
from normscope.studio.endpoints import Endpoint, Name, NoArguments, error_response, finite, upload_route
from normscope.studio.state import Studio

MAX_UPLOAD = 32 * MIB
MAX_RECORDS = 16
"""Records that the server keeps; older ones are dropped."""


@dataclass(frozen=True)
class KeptRecord:
    """An x-ray on the page: what it is of, and the result."""

    label: str
    result: XrayResult


class XrayRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What to x-ray: a preset, or `run:NAME`."""

    target: Name
    checkpoint: str = "best"
    step: bool = False


class DiffRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Two records, by their keys."""

    before: str
    after: str


class _Records:
    """The x-rays that were taken or uploaded, by an unguessable key."""

    def __init__(self) -> None:
        self._records: OrderedDict[str, KeptRecord] = OrderedDict()

    def add(self, label: str, result: XrayResult) -> str:
        key = secrets.token_hex(8)
        self._records[key] = KeptRecord(label, result)
        while len(self._records) > MAX_RECORDS:
            self._records.popitem(last=False)
        return key

    def get(self, key: str) -> KeptRecord:
        if key not in self._records:
            raise ConfigError("this x-ray is no longer in memory\nfix: take it again")
        return self._records[key]


_RECORDS = _Records()


def options(studio: Studio, request: NoArguments) -> dict[str, object]:
    """What can be x-rayed."""
    return {"presets": list(PRESETS), "runs": studio.run_names()}


def xray(studio: Studio, request: XrayRequest) -> dict[str, object]:
    """Take an x-ray of one batch."""
    if request.target.startswith("run:"):
        name = request.target.removeprefix("run:")
        result = xray_target(studio.run_folder(name), checkpoint=request.checkpoint, step=request.step)
        return _describe(name, result)
    if request.target not in PRESETS:
        raise ConfigError(f"there is no preset {request.target!r}\nfix: use one of {', '.join(PRESETS)}")
    result = xray_target(request.target, depth=4, step=request.step)
    return _describe(request.target, result)


def diff(studio: Studio, request: DiffRequest) -> dict[str, object]:
    """Compare two records module by module."""
    before, after = _RECORDS.get(request.before), _RECORDS.get(request.after)
    found = compare(before.result.record, after.result.record)
    return {
        "labels": [before.label, after.label],
        "tolerance": found.tolerance,
        "forward": found.forward,
        "backward": found.backward,
        "remarks": found.remarks,
        "modules": [_difference(one) for one in found.modules],
    }


def _difference(module: ModuleDiff) -> dict[str, object]:
    distances = {name: getattr(module, name) for name in ("input", "output", "gradient", "weights", "weight_gradients")}
    return {
        "name": module.name,
        "kind": module.kind,
        "only_in": module.only_in,
        "remarks": module.remarks,
        # JSON has no infinity: tensors of different shapes, or not finite in one of the two.
        **{
            name: "different" if value is not None and finite(value) is None else value
            for name, value in distances.items()
        },
    }


def _describe(label: str, result: XrayResult) -> dict[str, object]:
    """A record as the page shows it."""
    return {
        "key": _RECORDS.add(label, result),
        "label": label,
        "model": result.record.model,
        "notices": result.record.notices,
        "findings": result.findings,
        "modules": [
            {
                "name": module.name,
                "kind": module.kind,
                "rms": None if module.output is None else finite(module.output.rms),
                "gradient_rms": None if module.gradient is None else finite(module.gradient.rms),
            }
            for module in result.record.ran
        ],
    }


def plain_routes(studio: Studio) -> Sequence[BaseRoute]:
    """`GET /xray/KEY`: the whole report. `POST /api/xray/upload`: a saved record."""

    async def report(request: Request) -> Response:
        try:
            return HTMLResponse(await run_in_threadpool(lambda: _RECORDS.get(request.path_params["key"]).result.html))
        except NormscopeError as error:
            return error_response(error, 404)

    return [Route("/xray/{key}", report), upload_route("xray/upload", MAX_UPLOAD, _read)]


def _read(data: bytes) -> dict[str, object]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "uploaded.json"
        path.write_bytes(data)
        try:
            record: XrayRecord = load_record(path)
        except NormscopeError as error:
            raise ConfigError(str(error).replace(str(path), "the file")) from None
    return _describe(record.model, XrayResult((record,), find(record)))


ENDPOINTS: dict[str, Endpoint] = {"xray": xray, "xray/diff": diff, "xray/options": options}
