"""`Norm`: the one engine behind every normalization layer."""

import torch
from torch import Tensor, nn

from normscope.blocks.norm import checks
from normscope.blocks.norm.checks import State as State
from normscope.errors import ShapeError
from normscope.kernels import normalize as steps
from normscope.kernels.distributed import is_shared
from normscope.kernels.normalize import Moments, Statistic
from normscope.kernels.power import power_step
from normscope.scope import Axes, Plan, Scope

Device = torch.device | str | None
ScopeText = str | Scope


class Norm(nn.Module):
    r"""Normalization over a scope: the axes in brackets share statistics.

    Formula:
        y = (x - mean) / sqrt(variance + eps) * weight + bias     statistic="standardise"
        y = x / sqrt(mean of squares + eps) * weight + bias       statistic="rms"

    Scope:
        Any. See `normscope.scope` for the notation.

    Shapes:
        x: as the scope says. y: the same.
        mask: the leading dimensions of x, or its rank with 1 where the mask does not vary; True is real.
        weight, bias: the sizes of the `affine` axes, in the order and the grouping they are written in.
        running statistics: the sizes of those kept axes whose size is given here; over the other kept axes (a
        batch of images, say) they are averaged.

    Args:
        scope: the axes, those that share statistics in brackets.
        statistic: "standardise" to centre and scale, "rms" to scale only.
        state: None, "running" (normalize by the batch, remember an average, use it in eval mode) or "power"
            (PowerNorm: normalize by the average in training too).
        affine: the axes that own a gain, for instance "c" or "(g c)"; None for no parameters.
        bias: whether those axes own a bias too.
        eps: added under the root. None is torch's RMSNorm default, the spacing of the working float type.
        momentum: the weight of the newest batch in the running statistics; None averages over all batches.
        warmup: with state="power", for how many batches the batch's own statistic is used first.
        sync: take the batch's statistics over all ranks of torch.distributed.
        sizes: the sizes of axes, `c=64`; needed for those that own parameters or running statistics.

    Example:
        >>> import torch
        >>> norm = Norm("n (g [c]) [...]", affine="(g c)", g=2, c=3)
        >>> y = norm(torch.randn(5, 6, 4, 4))
        >>> y.shape, norm.weight.shape
        (torch.Size([5, 6, 4, 4]), torch.Size([6]))
        >>> bool(y[0, :3].mean().abs() < 1e-6)  # three channels and all positions share a mean, and it is gone
        True

    Padding does not count: with a mask, statistics are those of the real positions, and padding comes out as zero.

        >>> x, mask = torch.randn(2, 5, 4), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]).bool()
        >>> padded = x.masked_fill(~mask[..., None], 1e6)
        >>> batch_norm = Norm("[b s] d", state="running", affine="d", d=4)
        >>> torch.equal(batch_norm(x, mask), batch_norm(padded, mask))
        True

    Paper:
        Wu and He 2018, "Group Normalization", whose figure of the four scopes this notation writes down.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: Tensor | None
    running_var: Tensor | None
    running_square: Tensor | None
    running_pull: Tensor | None
    num_batches_tracked: Tensor | None

    # torch's InstanceNorm has the counter but never moves it; a drop-in keeps equal buffers.
    _counts_batches = True

    def __init__(
        self,
        scope: ScopeText,
        *,
        statistic: Statistic = "standardise",
        state: State | None = None,
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
        super().__init__()
        self.scope = Scope.parse(scope)
        self.scope.check_sizes(**sizes)
        self.statistic = steps.check_statistic(statistic)
        self.state = checks.check_state(state, self.statistic, momentum, warmup)
        self.axes = None if affine is None else Axes.parse(affine)
        self.eps = checks.check_eps(eps)
        self.momentum = momentum
        self.warmup = warmup
        self.sync = checks.check_sync(sync, self.scope)
        self.sizes = dict(sizes)
        # The axes with running statistics: those that are not reduced and whose size is known beforehand.
        self.tracked = tuple(a.name for a in self.scope.axes if not a.bracketed and a.name in sizes)
        checks.check_memory(self.state, self.scope, self.tracked)
        checks.check_dtype(dtype)
        self._make_parameters(bias, device, dtype)
        self._make_buffers(device, dtype)
        self.reset_parameters()

    def _make_parameters(self, bias: bool, device: Device, dtype: torch.dtype | None) -> None:
        shape = None if self.axes is None else self.axes.shape(self.scope, self.sizes)
        for name, wanted in (("weight", True), ("bias", bias)):
            owned = shape is not None and wanted
            parameter = nn.Parameter(torch.empty(shape, device=device, dtype=dtype)) if owned else None  # type: ignore[arg-type]
            self.register_parameter(name, parameter)

    def _make_buffers(self, device: Device, dtype: torch.dtype | None) -> None:
        shape = tuple(self.sizes[name] for name in self.tracked)
        names = {
            None: (),
            "running": ("running_mean", "running_var") if self.statistic == "standardise" else ("running_square",),
            "power": ("running_square", "running_pull"),
        }[self.state]
        for name in ("running_mean", "running_var", "running_square", "running_pull"):
            self.register_buffer(name, torch.empty(shape, device=device, dtype=dtype) if name in names else None)
        counter = torch.tensor(0, dtype=torch.long, device=device) if self.state else None
        self.register_buffer("num_batches_tracked", counter)

    def reset_parameters(self) -> None:
        """Gain 1 and bias 0, which do nothing; running statistics as of a standardised input."""
        self.reset_running_stats()
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def reset_running_stats(self) -> None:
        """Forget what was remembered of earlier batches."""
        for buffer in (self.running_var, self.running_square):
            if buffer is not None:
                buffer.fill_(1)
        for buffer in (self.running_mean, self.running_pull, self.num_batches_tracked):
            if buffer is not None:
                buffer.zero_()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        steps.check_floating(x)
        plan = self.scope.bind(x.shape, **self.sizes)
        self._check_plan(plan)
        eps = steps.default_eps(x) if self.eps is None else self.eps
        work, real = steps.prepare(x, plan, mask)
        if self.state and not self.training:
            y = steps.standardise(work, *self._remembered(plan, work.dtype), eps, real)
        else:
            moments = steps.measure(work, plan, self.statistic, real, self.sync)
            y = self._standardised(work, moments, plan, eps, real)
        along = plan.along(self.axes.names) if self.axes else ()
        return steps.finish(steps.affine(y, self.weight, self.bias, along, real), x)

    def _standardised(self, work: Tensor, moments: Moments, plan: Plan, eps: float, real: Tensor | None) -> Tensor:
        """The third step in training, and the update of what is remembered."""
        by_memory = self.state == "power" and (self.warmup == 0 or int(self._counter) >= self.warmup)
        _, before = self._remembered(plan, work.dtype) if by_memory else (None, None)
        if self.state:
            self._remember(moments, plan)
        if before is None:
            return steps.standardise(work, moments.mean, moments.square, eps, real)
        assert self.running_pull is not None
        assert self.momentum is not None
        return power_step(
            work,
            before,
            self.running_pull,
            moments.count,
            plan=plan,
            eps=eps,
            momentum=self.momentum,
            sync=self.sync,
        )

    @property
    def _counter(self) -> Tensor:
        assert self.num_batches_tracked is not None
        return self.num_batches_tracked

    def _remembered(self, plan: Plan, dtype: torch.dtype) -> tuple[Tensor | None, Tensor]:
        """The running mean and square (variance or mean square), laid along the input.

        They are copies: in training the buffers move on before the backward pass looks at them.
        """
        shape = plan.along(self.tracked)
        square = self.running_var if self.running_square is None else self.running_square
        assert square is not None
        mean = None if self.running_mean is None else self.running_mean.to(dtype, copy=True).reshape(shape)
        return mean, square.to(dtype, copy=True).reshape(shape)

    @torch.no_grad()
    def _remember(self, moments: Moments, plan: Plan) -> None:
        """Move the running statistics towards the batch's; statistics that saw no real value have no say."""
        if self._counts_batches or self.momentum is None:
            self._counter.add_(1)
        dims = tuple(i for i, name in enumerate(plan.names) if name not in self.tracked)
        say = (moments.count > 0).to(moments.square.dtype).expand_as(moments.square)
        voices = say.sum(dims, keepdim=True)
        momentum = 1 / self._counter.to(say.dtype) if self.momentum is None else self.momentum
        step = momentum * voices.clamp(max=1)
        unbiased = moments.square * moments.count / (moments.count - 1).clamp(min=1)
        for buffer, value in (
            (self.running_mean, moments.mean),
            (self.running_var, unbiased),
            (self.running_square, moments.square),
        ):
            if buffer is not None and value is not None:
                batch = (value * say).sum(dims, keepdim=True) / voices.clamp(min=1)
                old = buffer.to(batch.dtype).reshape(batch.shape)
                buffer.copy_(((1 - step) * old + step * batch).reshape(buffer.shape))

    def _check_plan(self, plan: Plan) -> None:
        """Refuse a tensor over whose scope no variance can be measured; layers add what torch's refuse."""
        if self.state and self.training and self.statistic == "standardise":
            self._check_count(plan)

    def _check_count(self, plan: Plan) -> None:
        if plan.count == 1 and not is_shared(self.sync):  # the other ranks may bring more values
            raise ShapeError(checks.one_value_message(plan, self.scope, self.state))

    def extra_repr(self) -> str:
        parts = [repr(self.scope.text)]
        if self.statistic != "standardise":
            parts.append(f"statistic={self.statistic!r}")
        if self.state is not None:
            parts.append(f"state={self.state!r}, momentum={self.momentum}")
        if self.axes is not None:
            parts.append(f"affine={self.axes.text!r}{'' if self.bias is not None else ', bias=False'}")
        parts.append(f"eps={self.eps}")
        parts.extend(f"{name}={size}" for name, size in self.sizes.items())
        if self.sync:
            parts.append("sync=True")
        return ", ".join(parts)
