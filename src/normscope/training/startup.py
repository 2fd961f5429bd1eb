"""What a session reports before its first step: the model, the machine, and notices."""

from normscope.models.config_json import config_to_json
from normscope.models.summary import describe_model
from normscope.ops.kernel_mode import select_backend
from normscope.ops.numba_loader import has_compiled_kernels, kernels_available
from normscope.runs.events import NoticeEvent, StartedEvent
from normscope.training.session import TrainingSession


def report_start(session: TrainingSession) -> None:
    """Emit the started event and all notices."""
    model, precision = session.run.config.model, session.precision
    info = {
        "model": describe_model(config_to_json(model)),
        "device": str(session.device),
        "precision": f"{str(precision.dtype).removeprefix('torch.')} ({precision.reason})",
        "threads": str(session.max_threads),
    }
    session.events.emit_lasting(
        StartedEvent(
            session.step,
            folder=str(session.run.folder),
            steps=session.config.steps,
            parameters=session.model.parameter_count(),
            vocab_size=model.vocab_size,
            batch_tokens=session.config.batch * model.context,
            bytes_per_token=session.bytes_per_token,
            floor=session.corpus.floor_bits_per_byte,
            info=info,
        )
    )
    for text in startup_notices(session):
        session.events.emit_lasting(NoticeEvent(session.step, text))


def startup_notices(session: TrainingSession) -> list[str]:
    """The notices for a new or resumed run, one sentence each."""
    step, notices = session.step, [] if session.step else list(session.corpus.notices)
    if session.dropped:
        dropped = ", ".join(map(str, session.dropped))
        notices.append(f"resuming from step {step}: later checkpoints are dropped ({dropped})")
    if session.missing_text:
        missing = ", ".join(session.missing_text)
        notices.append(f"source text not found: {missing}. The run continues with its saved tokens")
    if session.environment_changes:
        changes = ", ".join(session.environment_changes)
        notices.append(f"environment changed: {changes}. Results may differ in the last bits from here on")
    if session.run.extension is not None:
        notices.append(str(session.run.extension))
    if session.device.type == "cpu" and must_compile_kernels():
        notices.append("compiling kernels for this machine (once): the first steps take a few seconds longer")
    return notices


def must_compile_kernels() -> bool:
    """Whether fused kernels will be used but are not in numba's cache yet."""
    return select_backend() == "fused" and kernels_available() and not has_compiled_kernels()
