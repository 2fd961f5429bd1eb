"""What the inputs of a model and the targets of its losses are like, over all training batches."""

from dataclasses import dataclass


@dataclass(frozen=True)
class InputUse:
    """A linear layer that reads the input of the model as it is.

    Args:
        module: the layer.
        rms: of the input.
        column: the index of the largest column; None if the features are no columns.
        column_rms, other_rms: rms of the largest column, and the median over all columns.
    """

    module: str
    rms: float
    column: int | None = None
    column_rms: float = 0.0
    other_rms: float = 0.0


@dataclass(frozen=True)
class InputsRecord:
    """The inputs of models that are called from outside, with gradients.

    Args:
        batches: number of calls.
        uses: linear layers that read the input as it is.
        alike_rows: calls in which all samples are the same, while the targets differ.
        columns, constant_columns: columns of a table, and those of them that never vary, at a value other than zero
            and the minimum.
        rows: samples seen of that table.
        changed_by: the module whose call changed its input in place; None if none did.
        changed_data: whether the changed input is part of a larger tensor, or came again.
        changed_line: for inputs that the training loop changes in place again and again, the line; "" if none.
        repeated: steps whose batch has the content of the one before, in another tensor.
        loaders_restarted: how often a DataLoader with several batches was started.
        padded_targets: fraction of the targets of a loss that are padding, at positions of padding in the input.
        padding: the token.
        single_class_batches: batches of which all labels are equal, if those of all batches are.
        ordered_batches: batches whose labels never decrease, within them and from one to the next, if all are so.
        classes: different labels among these.
        same_outputs: losses whose predictions are the same for all samples while targets differ, if all are.
    """

    batches: int = 0
    uses: tuple[InputUse, ...] = ()
    alike_rows: int = 0
    columns: int = 0
    constant_columns: int = 0
    rows: int = 0
    changed_by: str | None = None
    changed_data: bool = False
    changed_line: str = ""
    repeated: int = 0
    loaders_restarted: int = 0
    padded_targets: float = 0.0
    padding: int = 0
    single_class_batches: int = 0
    ordered_batches: int = 0
    classes: int = 0
    same_outputs: int = 0
