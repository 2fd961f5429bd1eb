"""The tab "Runs": the runs of the folder, training live, and starting, stopping and resuming it."""

import functools
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path, PurePath
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from normscope.data.tokenizers import ByteTokenizer
from normscope.data.tokenizers.base import MIN_VOCAB_SIZE
from normscope.data.tokenizers.choose import KINDS, TokenizerKind, check_tokenizer_option
from normscope.errors import ConfigError, FileError, NormscopeError
from normscope.models.config_json import config_to_json
from normscope.models.presets import PRESETS, preset
from normscope.models.size import MAX_BLOCKS
from normscope.models.summary import describe_model
from normscope.runs.follow_metrics import MetricsPosition, NewMetrics, read_new_metrics
from normscope.runs.list_runs import RunSummary, summarize
from normscope.runs.report.page import report_html
from normscope.runs.report.run_record import RunRecord, read_run_record
from normscope.runs.run import Run, is_run
from normscope.storage.lock import is_locked
from normscope.studio.endpoints import Endpoint, Name, NoArguments, describe, upload_route
from normscope.studio.jobs import Job
from normscope.studio.security import REPORT_POLICY
from normscope.studio.state import UPLOADS, StudioState
from normscope.studio.uploads import MAX_UPLOAD, UploadName, store, upload_path
from normscope.training.create_run import check_settings
from normscope.training.recipes import RECIPES, Recipe, recipe

POLL_SECONDS = 0.25
"""How often a followed run is looked at."""
HEARTBEAT_SECONDS = 1.0
"""Longest silence of a stream: a client that went away is noticed when something is sent."""

PRINTABLE_ASCII = 95

NewName = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9_-]{0,39}\Z")]
Size = Annotated[int, Meta(ge=1, le=10_000_000)]


class RunRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A run, by name."""

    run: Name


class FollowRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A run to follow, and how much of it the page has."""

    run: Name
    position: MetricsPosition = MetricsPosition()


class RecipeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A recipe and what replaces its choices; None leaves them to the recipe."""

    recipe: Annotated[str, Meta(max_length=40)] = "dial"
    depth: Annotated[int, Meta(ge=1, le=MAX_BLOCKS)] | None = None
    preset: Annotated[str, Meta(max_length=40)] | None = None
    tokenizer: TokenizerKind | None = None  # not the path of a file
    vocab_size: Annotated[int, Meta(ge=MIN_VOCAB_SIZE, le=1_000_000)] | None = None


class StartRequest(RecipeRequest, forbid_unknown_fields=True, kw_only=True):
    """A run to start. None leaves a setting to the recipe, or the text to the built-in stories."""

    name: NewName
    text: UploadName | None = None
    steps: Size | None = None
    batch: Size | None = None
    micro_batch: Size | None = None
    context: Size | None = None
    lr: Annotated[float, Meta(gt=0, le=1000)] | None = None
    matrix_lr: Annotated[float, Meta(gt=0, le=1000)] | None = None
    seed: Annotated[int, Meta(ge=0, lt=2**53)] | None = None
    prompt: Annotated[str, Meta(max_length=2000)] = ""


class ResumeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A run to continue, and the number of steps to extend it to."""

    run: Name
    steps: Size | None = None


def list_all(studio: StudioState, request: NoArguments) -> dict[str, Any]:
    """All runs, the newest first; those that are being created; and the damaged ones."""
    runs, damaged = list[dict[str, Any]](), list[dict[str, Any]]()
    for folder in studio.newest_folders():
        try:
            job = studio.jobs.find("train", folder.name)
            # The folder's name instead of its path: the page needs no path of this machine.
            runs.append(
                {"name": folder.name, **asdict(_summary(studio, folder)), "path": folder.name, "job": _job(job)}
            )
        except NormscopeError as error:
            damaged.append({"name": folder.name, **describe(error)})
    # Those in training by name: each is the newest in turn, and rows should not change places all the time.
    runs.sort(key=lambda run: (False, run["name"]) if run["status"] == "training" else (True, ""))
    known = {run["name"] for run in (*runs, *damaged)}
    new = {job.subject: _job(job) for job in studio.jobs if job.kind == "train" and job.subject not in known}
    return {"runs": runs, "damaged": damaged, "starting": list(new.values())}


def _summary(studio: StudioState, folder: Path) -> RunSummary:
    """The summary of a run, from memory unless its files changed: the page asks every few seconds."""
    try:
        found = [(file.name, file.stat(follow_symlinks=False)) for file in os.scandir(folder)]
    except FileNotFoundError:  # a training process replaces files
        return summarize(folder)
    version = (is_locked(folder), *sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in found))
    known = studio.summaries.get(folder)
    if known is None or known[0] != version:
        known = studio.summaries[folder] = version, summarize(folder)
    return known[1]


def details(studio: StudioState, request: RunRequest) -> dict[str, Any]:
    """The model and the settings of a run."""
    run = Run.open(studio.run_folder(request.run))
    return {
        "model": describe_model(config_to_json(run.config.model)),
        "parameters": run.config.model.parameter_count(),
        "train": asdict(run.config.train),
        "prompt": run.config.prompt,
        "extension": None if run.extension is None else str(run.extension),
    }


def options(studio: StudioState, request: NoArguments) -> dict[str, Any]:
    """What the form for a new run offers."""
    recipes = [{"name": name, "depth": depth} for name, (_, depth) in RECIPES.items()]
    return {"recipes": recipes, "presets": list(PRESETS), "tokenizers": list(KINDS), "max_upload": MAX_UPLOAD}


def plan(studio: StudioState, request: RecipeRequest) -> dict[str, Any]:
    """The settings of a recipe, which a new run has unless others are given."""
    chosen = _recipe(request)
    config = preset(chosen.preset, **{"vocab_size": _expected_vocab_size(chosen), **chosen.model})
    return {
        "preset": chosen.preset,
        "tokenizer": chosen.tokenizer,
        "depth": config.depth,
        "width": config.width,
        "heads": config.heads,
        "context": config.context,
        "vocab_size": config.vocab_size,
        "parameters": config.parameter_count(),
        **{name: chosen.train[name] for name in ("steps", "batch", "lr", "matrix_lr")},
    }


def _recipe(request: RecipeRequest) -> Recipe:
    """The recipe with what replaces its choices; raises if they don't go together."""
    changes = {name: getattr(request, name) for name in ("preset", "tokenizer", "vocab_size")}
    chosen = recipe(request.recipe, request.depth, **changes)
    check_tokenizer_option(chosen.tokenizer, request.vocab_size)
    return chosen


def _expected_vocab_size(chosen: Recipe) -> int:
    """The vocabulary size of a model whose text is not known yet."""
    sizes = {"bytes": ByteTokenizer().vocab_size, "characters": PRINTABLE_ASCII + 1}  # and the end of a document
    return sizes.get(chosen.tokenizer, chosen.vocab_size)


def start(studio: StudioState, request: StartRequest) -> dict[str, Any]:
    """Train a new run in a process of its own."""
    context = {} if request.context is None else {"context": request.context}
    given = {name: getattr(request, name) for name in ("steps", "batch", "micro_batch", "lr", "matrix_lr", "seed")}
    # What is wrong with the settings is said in the form, not in the output of a process.
    check_settings(_recipe(request), context, {name: value for name, value in given.items() if value is not None})
    if request.name == UPLOADS or (studio.runs / request.name).exists():
        raise ConfigError(f"there is already a folder {request.name!r}\nfix: choose another name")
    # Every option is one argument, so that no value is taken for another option.
    options = {name: getattr(request, name) for name in request.__struct_fields__ if name not in ("name", "text")}
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value not in (None, "")]
    texts = [] if request.text is None else [str(upload_path(studio, request.text))]
    studio.runs.mkdir(parents=True, exist_ok=True)
    job = studio.jobs.start("train", request.name, ["train", *texts, f"--out={studio.runs / request.name}", *arguments])
    return {"job": _job(job)}


def resume(studio: StudioState, request: ResumeRequest) -> dict[str, Any]:
    """Continue a run in a process of its own; with more steps, extend it."""
    folder = studio.run_folder(request.run)
    if is_locked(folder):
        raise ConfigError(f"{request.run} is already training\nfix: stop it first")
    run = Run.open(folder)
    planned = run.config.train.steps
    if request.steps is not None and request.steps <= planned:
        raise ConfigError(f"the run already has {planned} steps\nfix: choose a larger number")
    if request.steps is None and run.is_done():
        raise ConfigError("the run is done\nfix: extend it to more steps")
    more = [] if request.steps is None else [f"--steps={request.steps}"]
    return {"job": _job(studio.jobs.start("train", request.run, ["resume", str(folder), *more]))}


def stop(studio: StudioState, request: RunRequest) -> dict[str, Any]:
    """Ask a run to save a checkpoint and stop."""
    job = studio.jobs.find("train", request.run)
    if job is None or job.status != "running":
        raise ConfigError(
            f"{request.run} was not started from this page\nfix: press Ctrl-C in the terminal where it is training"
        )
    job.stop()
    return {"job": _job(job)}


def follow(studio: StudioState, request: FollowRequest) -> Iterator[dict[str, Any]]:
    """The events of a run after a position, and new ones until it ends; also of a run that is just being created."""
    if studio.jobs.find("train", request.run) is None:
        studio.run_folder(request.run)  # raises if there is no such run
    return _follow(studio, request.run, request.position)


def _follow(studio: StudioState, name: str, position: MetricsPosition) -> Iterator[dict[str, Any]]:
    folder, shown, sent = studio.runs / name, None, 0.0
    while True:
        job = studio.jobs.find("train", name)
        # Before reading: what is written until it ends is still read.
        active = (job is not None and job.status == "running") or is_locked(folder)
        new = _read(folder / "metrics.jsonl", position, retry=active)
        position, state = new.position, {"training": active, "job": _job(job)}
        if new.events or new.restarted or state != shown:
            page = {"events": [_event(event) for event in new.events], "position": position, **state}
            yield {**page, "restarted": new.restarted}
            shown, sent = state, time.monotonic()
        if not active and new.complete:
            return
        if new.complete:
            if time.monotonic() - sent > HEARTBEAT_SECONDS:
                yield {"heartbeat": True}
                sent = time.monotonic()
            time.sleep(POLL_SECONDS)


def _read(path: Any, position: MetricsPosition, retry: bool) -> NewMetrics:
    """Read new events. A run that resumes cuts the file off, and a line may change while it is read: try again."""
    if not is_run(path.parent):
        return NewMetrics([], position, False, True)
    try:
        return read_new_metrics(path, position)
    except FileError:
        if not retry:
            raise
        time.sleep(POLL_SECONDS)
        return read_new_metrics(path, position)


def _event(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """An event for the page; a start has the floor as a loss too, and there are no paths of this machine."""
    if event["kind"] == "started":
        floor_nats = RunRecord(folder=None, config={}, events=(event,)).floor_nats  # type: ignore[arg-type]
        return {**{name: value for name, value in event.items() if name != "folder"}, "floor_nats": floor_nats}
    if event["kind"] == "checkpoint":
        return {**event, "path": PurePath(event["path"]).name}
    return event


def _job(job: Job | None) -> dict[str, Any] | None:
    if job is None:
        return None
    status = job.status
    shown = {"number": job.number, "name": job.subject, "status": status, "stopping": job.stop_requested}
    return {**shown, "output": job.output()}


def plain_routes(studio: StudioState) -> list[BaseRoute]:
    """The report of a run as a page, and the upload of a text."""

    async def report(request: Request) -> Response:
        try:
            folder = studio.run_folder(request.path_params["run"])
            page = await run_in_threadpool(lambda: report_html(read_run_record(folder)))
        except NormscopeError as error:
            return Response(str(error), 404, media_type="text/plain")
        return HTMLResponse(page, headers={"Content-Security-Policy": REPORT_POLICY})

    upload = upload_route("runs/upload", MAX_UPLOAD, functools.partial(store, studio))
    return [Route("/report/{run}", report), upload]


ENDPOINTS: dict[str, Endpoint] = {
    "runs/list": list_all,
    "runs/details": details,
    "runs/options": options,
    "runs/plan": plan,
    "runs/start": start,
    "runs/resume": resume,
    "runs/stop": stop,
    "runs/follow": follow,
}
