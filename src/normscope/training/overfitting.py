"""Tell when a model has begun to overfit."""

RISE = 0.02
"""Relative rise of the validation loss above its lowest value that is reported; less comes and goes."""


def describe_overfitting(best_step: int, best_loss: float, loss: float, train_loss: float) -> str | None:
    """A notice if the validation loss has risen above its best; None otherwise.

    If the training loss is high too, the model has diverged or learns nothing, which is no overfitting.

    >>> describe_overfitting(400, 1.5213, 2.1034, train_loss=0.31).partition(". ")[0]
    'overfitting: the validation loss was best at step 400 (1.5213) and has risen to 2.1034'
    >>> describe_overfitting(400, 1.5213, 1.5301, train_loss=0.31)
    """
    if not (loss > best_loss * (1 + RISE) and train_loss < best_loss):
        return None
    return (
        f"overfitting: the validation loss was best at step {best_step} ({best_loss:.4f}) and has risen to {loss:.4f}. "
        f"The best checkpoint is kept, and sample uses it. Add text, or lower --depth or --steps"
    )
