"""`Norm`: normalization over any scope, the base class of every normalization layer."""

from functools import partial

import torch
from torch import Tensor, nn

from normscope.blocks.checks import check_placement
from normscope.blocks.norm import checks
from normscope.blocks.norm.checks import NormState
from normscope.blocks.torch_tools import BaseModule, is_fx_proxy
from normscope.checks import check_flags
from normscope.errors import ShapeError
from normscope.ops import registry
from normscope.ops.kernel_mode import are_plain, is_plain
from normscope.ops.norm import normalize, reference
from normscope.ops.norm.distributed import is_shared
from normscope.ops.norm.memory_layout import is_row_norm
from normscope.ops.norm.power_norm import PowerNormState, power_norm_step
from normscope.ops.norm.reference import Affine, NormStatistics
from normscope.ops.norm.statistic import STANDARDIZE, Statistic, StatisticName
from normscope.ops.symbolic_sizes import statically_known_true
from normscope.scope import Axes, Plan, Scope

_MAX_CACHED_PLANS = 64
_FLOAT32_EPS = torch.finfo(torch.float32).eps
Device = torch.device | str | None
ScopeText = str | Scope


class Norm(BaseModule):
    r"""Normalization over a scope: the axes in brackets share statistics.

    Formula:
        y = (x - mean) / sqrt(variance + eps) * weight + bias     statistic="standardize"
        y = x / sqrt(mean(x^2) + eps) * weight + bias             statistic="rms"

    Scope:
        Any. See `normscope.scope` for the notation.

    Shapes:
        x: any shape that fits the scope. y: same as x.
        mask: True at real positions; the leading dimensions of x, or the rank of x with size 1 where it does not vary.
        weight, bias: the sizes of the `affine` axes, in the order and grouping in which they are written.
        running statistics: the kept axes whose size is given; averaged over the other kept axes, such as the batch.

    Args:
        scope: the axes of the input; those in brackets share statistics.
        statistic: "standardize" to subtract the mean and divide by the standard deviation, "rms" to divide by the root
            mean square.
        state: None; "running" to track running statistics and use them in eval mode, as BatchNorm; or "power" to use
            running statistics in training too, as PowerNorm.
        affine: the axes of the learnable weight, for instance "c" or "(g c)"; None for no parameters.
        bias: whether the affine parameters include a bias.
        eps: value added to the second moment. None for the default of torch.nn.RMSNorm, the machine epsilon of float32
            (of float64 for float64 inputs).
        momentum: weight of the newest batch in the running statistics; None for a cumulative average.
        warmup: with state="power", the number of initial batches that are normalized with their own statistic.
        sync: compute statistics over all ranks of torch.distributed's default group.
        sizes: the sizes of axes, for instance `c=64`. Required for axes with parameters or running statistics.

    Example:
        >>> import torch
        >>> norm = Norm("n (g [c]) [...]", affine="(g c)", g=2, c=3)
        >>> y = norm(torch.randn(5, 6, 4, 4))
        >>> y.shape, norm.weight.shape
        (torch.Size([5, 6, 4, 4]), torch.Size([6]))
        >>> bool(y[0, :3].mean().abs() < 1e-6)  # three channels and all positions share a mean, now zero
        True

    With a mask, statistics are computed over the real positions only, and padding is zero in the output.

        >>> x, mask = torch.randn(2, 5, 4), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]).bool()
        >>> padded = x.masked_fill(~mask[..., None], 1e6)
        >>> batch_norm = Norm("[b s] d", state="running", affine="d", d=4)
        >>> torch.equal(batch_norm(x, mask), batch_norm(padded, mask))
        True

    Paper:
        Wu and He 2018, "Group Normalization", whose Figure 2 shows four of these scopes.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: Tensor | None
    running_var: Tensor | None
    running_square: Tensor | None
    running_nu: Tensor | None
    num_batches_tracked: Tensor | None
    parameter_shape: tuple[int, ...] | None
    """The shape of the weight and the bias; None for a norm without them."""

    # torch's InstanceNorm never updates its num_batches_tracked; a drop-in must have equal buffers.
    _counts_batches = True

    def __init__(
        self,
        scope: ScopeText,
        /,
        *,
        statistic: StatisticName | Statistic = "standardize",
        state: NormState | None = None,
        affine: str | None = None,
        bias: bool = True,
        eps: float | None = 1e-5,
        momentum: float | None = 0.1,
        warmup: int = 0,
        sync: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
        **sizes: int,
    ) -> None:
        # Not super(): the named layers also inherit from torch's layers, whose constructors must not run.
        nn.Module.__init__(self)
        self.scope = Scope.parse(scope)
        checks.check_names(self.scope)
        self.scope.check_sizes(**sizes)
        self.statistic = Statistic.named(statistic)
        checks.check_settings(self.statistic, state, momentum, warmup, eps)
        check_flags(bias=bias, sync=sync)
        self.state, self.eps, self.momentum, self.warmup, self.sync = state, eps, momentum, warmup, sync
        self.axes = None if affine is None else Axes.parse(affine)
        checks.check_kept_axes(self.scope, sizes, state, sync)
        self.sizes = dict(sizes)
        # The axes of the running statistics: kept, and of known size.
        self.tracked = tuple(a.name for a in self.scope.axes if not a.bracketed and a.name in sizes)
        # The feature axes; a mask varies along the others.
        self.features = {*self.tracked, *(() if self.axes is None else self.axes.names)}
        check_placement(device, dtype)
        self._make_parameters(bias, device, dtype)
        self._make_buffers(device, dtype)
        self._plans: dict[torch.Size, tuple[Plan, tuple[int, ...], bool]] = {}
        self._calls: dict[torch.Size, normalize.CachedDispatch | None] = {}
        self.reset_parameters()

    def _make_parameters(self, bias: bool, device: Device, dtype: torch.dtype | None) -> None:
        shape = self.parameter_shape = None if self.axes is None else self.axes.shape(self.scope, self.sizes)
        for name, wanted in (("weight", True), ("bias", bias)):
            owned = shape is not None and wanted
            parameter = nn.Parameter(torch.empty(shape, device=device, dtype=dtype)) if owned else None  # type: ignore[arg-type]
            self.register_parameter(name, parameter)

    def _make_buffers(self, device: Device, dtype: torch.dtype | None) -> None:
        shape = tuple(self.sizes[name] for name in self.tracked)
        names = {"running": self.statistic.running_buffers, "power": ("running_square", "running_nu")}
        for name in names.get(self.state or "", ()):
            self.register_buffer(name, torch.empty(shape, device=device, dtype=dtype))
        if self.state:
            self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.long, device=device))
        # None buffers come last: torch.export miscounts buffers after a None.
        for name in ("running_mean", "running_var", "running_square", "running_nu", "num_batches_tracked"):
            if name not in self._buffers:
                self.register_buffer(name, None)

    def reset_parameters(self) -> None:
        """Reset the weight to 1, the bias to 0, and the running statistics to those of a standardized input."""
        self.reset_running_stats()
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def reset_running_stats(self) -> None:
        """Reset the running statistics."""
        for buffer in (self.running_var, self.running_square):
            if buffer is not None:
                buffer.fill_(1)
        for buffer in (self.running_mean, self.running_nu, self.num_batches_tracked):
            if buffer is not None:
                buffer.zero_()

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        plain = mask is None and is_plain(input)
        if plain:
            call, parameters = self._calls.get(input.shape), self._parameters
            if call is not None:
                weight, bias = parameters.get("weight", input), parameters.get("bias", input)
                if are_plain(self.parameter_shape, weight, bias):
                    eps = _FLOAT32_EPS if self.eps is None else self.eps
                    if self.state is None:
                        return call(input, weight, bias, eps)
                    y = self._batch_norm_in_torch(input, call, Affine(weight, bias), eps)
                    if y is not None:
                        return y
        elif is_fx_proxy(input):
            return self._fx_call(input, mask)
        reference.check_floating(input)
        plan, broadcast_shape, is_row_norm = self._plan_for(input.shape)
        if mask is not None:
            checks.check_mask_axes(mask, input, self.scope, plan, self.features)
        eps = reference.default_eps(input) if self.eps is None else self.eps
        affine = self._affine(broadcast_shape, is_row_norm)
        if plain and not self.sync and (self.state is None or (self.state == "running" and plan.kept == (1,))):
            call = normalize.dispatch_for_shape(plan, self.statistic, broadcast_shape, self.parameter_shape)
            self._calls[input.shape] = call
        if self.state is None and not (self.sync and is_shared(True)):
            return normalize.normalize(input, plan, statistic=self.statistic, eps=eps, affine=affine, mask=mask)
        self._check_plan(plan)
        call = self._calls.get(input.shape) if plain else None
        if call is not None and are_plain(self.parameter_shape, affine.weight, affine.bias):
            y = self._batch_norm_in_torch(input, call, affine, eps)
            if y is not None:
                return y
        square = self.running_var if self.running_square is None else self.running_square
        if square is not None and self._uses_running_stats():
            broadcast_shape = plan.broadcast_shape(self.tracked)
            mean = None if self.running_mean is None else self.running_mean.reshape(broadcast_shape)
            square = square.reshape(broadcast_shape)
            return normalize.normalize_with_running_statistics(
                input, plan, mean, square, statistic=self.statistic, eps=eps, affine=affine, mask=mask
            )
        if self.state == "power":
            checks.check_custom_backward()
        power = self._power_state()
        if power is not None:
            return power_norm_step(input, plan, power, eps=eps, affine=affine, mask=mask, sync=self.sync)
        compute = normalize.normalize_with_statistics
        if is_shared(self.sync):
            compute = partial(reference.normalize_with_batch_statistics, sync=True)
        y, statistics = compute(input, plan, statistic=self.statistic, eps=eps, affine=affine, mask=mask)
        if square is not None and self._updates_running_stats():
            self._update_running_stats(statistics, plan, masked=mask is not None)
        return y

    def _batch_norm_in_torch(
        self, x: Tensor, call: normalize.CachedDispatch, affine: Affine, eps: float
    ) -> Tensor | None:
        """Run torch.batch_norm, which updates the running statistics too; None where it is not to run."""
        buffers, momentum, training = self._buffers, self.momentum, not self._uses_running_stats()
        mean, variance, batches = buffers["running_mean"], buffers["running_var"], buffers["num_batches_tracked"]
        if call.layout is None or momentum is None or mean is None or variance is None or batches is None:
            return None
        if not mean.dtype == variance.dtype == torch.float32 or (training and not self._updates_running_stats()):
            return None
        if registry.choose_batch_norm(x, call.layout, affine, training) != "torch":
            return None
        if training:
            batches.add_(1)
        return torch.batch_norm(x, affine.weight, affine.bias, mean, variance, training, momentum, eps, False)

    def _plan_for(self, shape: torch.Size) -> tuple[Plan, tuple[int, ...], bool]:
        """Return the plan for a shape, the broadcast shape of the weight, and whether `is_row_norm` holds.

        Cached, because planning would dominate the time of a small layer; not while the sizes are being traced.
        """
        traced = torch.compiler.is_dynamo_compiling() or torch._C._get_tracing_state() is not None
        try:
            found = None if traced else self._plans.get(shape)
        except TypeError:  # symbolic sizes are not hashable
            found, traced = None, True
        if found is None:
            plan = self.scope.bind(shape, **self.sizes)
            if self.state is None:
                self._check_plan(plan)
            broadcast_shape = plan.broadcast_shape(self.axes.names) if self.axes else ()
            found = plan, broadcast_shape, is_row_norm(plan.split_shape, plan.roles, broadcast_shape)
            if not traced:
                if len(self._plans) >= _MAX_CACHED_PLANS:
                    self._plans.clear()
                    self._calls.clear()
                self._plans[shape] = found
        return found

    def _affine(self, broadcast_shape: tuple[int, ...], is_row_norm: bool) -> Affine:
        """Return weight and bias with their broadcast shape.

        Checks their shapes: kernels take bare addresses and would read out of bounds.
        """
        weight, bias, shape = self.weight, self.bias, self.parameter_shape
        if (weight is not None and weight.shape != shape) or (bias is not None and bias.shape != shape):
            found = ", ".join(str(tuple(p.shape)) for p in (weight, bias) if p is not None)
            raise ShapeError(f"{self} was made for a weight and a bias of shape {shape}, but has {found}")
        return Affine(weight, bias, broadcast_shape, is_row_norm)

    def _uses_running_stats(self) -> bool:
        """Return whether to normalize with the running statistics."""
        return not self.training

    def _updates_running_stats(self) -> bool:
        """Return whether batch statistics update the running statistics."""
        return True

    def _power_state(self) -> PowerNormState | None:
        """Return the buffers of PowerNorm; None for other norms, and during warmup."""
        square, nu, batches = self.running_square, self.running_nu, self.num_batches_tracked
        if square is None or nu is None or batches is None or self.momentum is None:
            return None
        if self.warmup > 0 and int(batches) < self.warmup:
            return None
        return PowerNormState(square, nu, batches, self.momentum)

    @torch.no_grad()
    def _update_running_stats(self, statistics: NormStatistics, plan: Plan, *, masked: bool) -> None:
        """Update the running statistics. Statistics over padding alone are ignored."""
        moment, batches = statistics.second_moment, self.num_batches_tracked
        assert batches is not None
        if self._counts_batches or self.momentum is None:
            batches.add_((statistics.count > 0).any() if masked else 1)
        momentum = 1 / batches.clamp(min=1).to(moment.dtype) if self.momentum is None else self.momentum
        dims = tuple(i for i, name in enumerate(plan.names) if name not in self.tracked)
        # Whether all statistics are over the same number of values.
        is_even = not masked and not is_shared(self.sync) and statically_known_true(plan.count > 1) and moment.numel()
        for buffer, value, is_variance in (
            (self.running_mean, statistics.mean, False),
            (self.running_var, moment, True),  # which is made unbiased
            (self.running_square, moment, False),
        ):
            if buffer is None or value is None:
                continue
            if is_even:
                batch = value if statically_known_true(value.numel() == buffer.numel()) else value.mean(dims)
                batch = batch.reshape(buffer.shape) * (plan.count / (plan.count - 1) if is_variance else 1.0)
                buffer.copy_(torch.lerp(buffer.to(value.dtype), batch, momentum))
                continue
            if is_variance:
                value = value * statistics.count / (statistics.count - 1).clamp(min=1)
            # A single value has no unbiased variance.
            seen = (statistics.count >= (2 if is_variance else 1)).to(value.dtype).expand_as(value)
            counts = seen.sum(dims, keepdim=True)
            batch = (value * seen).sum(dims, keepdim=True) / counts.clamp(min=1)
            step = momentum * counts.clamp(max=1)
            old = buffer.to(value.dtype).reshape(batch.shape)
            buffer.copy_(((1 - step) * old + step * batch).reshape(buffer.shape))

    def _check_plan(self, plan: Plan) -> None:
        """Reject a tensor with one value per statistic; the named layers reject what torch's layers reject."""
        if self.state and self.training and self.statistic.centers:
            self._check_count(plan)

    def _check_count(self, plan: Plan) -> None:
        # With sync, other ranks may have more values.
        if statically_known_true(plan.count == 1) and not is_shared(self.sync):
            instead = ", or call eval() to use the running statistics" if self.state else ""
            raise ShapeError(
                f"a tensor of shape {plan.shape} has one value for each statistic of the scope {self.scope.text!r}: "
                f"its variance is zero and the result would be the bias alone. Give the axes in brackets more than "
                f"one value{instead}"
            )

    def extra_repr(self) -> str:
        parts = [repr(self.scope.text)]
        if self.statistic != STANDARDIZE:
            parts.append(f"statistic={self.statistic.name!r}")
        if self.state is not None:
            parts.append(f"state={self.state!r}, momentum={self.momentum}")
        if self.axes is not None:
            parts.append(f"affine={self.axes.text!r}{'' if self.bias is not None else ', bias=False'}")
        parts.append(f"eps={self.eps}")
        parts.extend(f"{name}={size}" for name, size in self.sizes.items())
        if self.sync:
            parts.append("sync=True")
        return ", ".join(parts)
