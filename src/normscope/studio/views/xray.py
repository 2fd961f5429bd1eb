"""The tab "X-ray": the signal in every layer of a run, a preset or an uploaded record, and what is wrong with it."""

import dataclasses
import functools
from collections.abc import Sequence
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
from normscope.inspection.arguments import preserve_rng
from normscope.inspection.xray import XrayResult, take_xray, xray_target
from normscope.inspection.xray_config import XrayConfig
from normscope.inspection.xray_targets import from_run
from normscope.models.presets import PRESETS
from normscope.storage.json_files import MIB
from normscope.studio.endpoints import Endpoint, Name, NoArguments, error_response, finite, upload_route
from normscope.studio.security import REPORT_POLICY
from normscope.studio.state import StudioState
from normscope.studio.xray_records import KeptRecord

MAX_UPLOAD = 32 * MIB


class XrayRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What to x-ray: a preset, or `run:NAME`."""

    target: Name
    checkpoint: Name = "best"
    step: bool = False


class DiffRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Two records, by their keys."""

    before: Name
    after: Name


def options(studio: StudioState, request: NoArguments) -> dict[str, object]:
    """What can be x-rayed."""
    return {"presets": list(PRESETS), "runs": studio.run_names()}


def xray(studio: StudioState, request: XrayRequest) -> dict[str, object]:
    """Take an x-ray of one batch."""
    if request.target.startswith("run:"):
        name = request.target.removeprefix("run:")
        return _describe(studio, name, _xray_run(studio, name, request))
    if request.target not in PRESETS:
        raise ConfigError(f"there is no preset {request.target!r}\nfix: use one of {', '.join(PRESETS)}")
    with studio.rng_lock:
        result = xray_target(request.target, depth=4, step=request.step)
    return _describe(studio, request.target, result)


def _xray_run(studio: StudioState, name: str, request: XrayRequest) -> XrayResult:
    """X-ray a run folder, without guessing the kind of target."""
    config = XrayConfig(checkpoint=request.checkpoint, step=request.step)
    with studio.rng_lock, preserve_rng():
        target = from_run(studio.run_folder(name), config.checkpoint)
        record = take_xray(dataclasses.replace(target, label=f"{name} step {target.steps}"), config)
    return XrayResult((record,), find(record))


def diff(studio: StudioState, request: DiffRequest) -> dict[str, object]:
    """Compare two records module by module."""
    before, after = studio.xrays.get(request.before), studio.xrays.get(request.after)
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


def _describe(studio: StudioState, label: str, result: XrayResult, uploaded: int = 0) -> dict[str, object]:
    """Keep a record, and describe it as the page shows it."""
    return {
        "key": studio.xrays.add(KeptRecord(label, result, uploaded)),
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


def plain_routes(studio: StudioState) -> Sequence[BaseRoute]:
    """`GET /xray/KEY`: the whole report. `POST /api/xray/upload`: a saved record."""

    async def report(request: Request) -> Response:
        try:
            record = studio.xrays.get(request.path_params["key"])
            page = await run_in_threadpool(lambda: record.result.html)
        except NormscopeError as error:
            return error_response(error, 404)
        return HTMLResponse(page, headers={"Content-Security-Policy": REPORT_POLICY})

    return [Route("/xray/{key}", report), upload_route("xray/upload", MAX_UPLOAD, functools.partial(_read, studio))]


def _read(studio: StudioState, data: bytes) -> dict[str, object]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "uploaded.json"
        path.write_bytes(data)
        try:
            record: XrayRecord = load_record(path)
        except NormscopeError as error:
            raise ConfigError(str(error).replace(str(path), "the file")) from None
    return _describe(studio, record.model, XrayResult((record,), find(record)), uploaded=len(data))


ENDPOINTS: dict[str, Endpoint] = {"xray": xray, "xray/diff": diff, "xray/options": options}
