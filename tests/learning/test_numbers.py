"""Results that were computed by hand."""

import math

import numpy as np
import pytest
import torch

from normscope.blocks.residual import WIRINGS
from normscope.learning.catalog import explain
from tests.learning.cases import near, numbers


def test_rms_norm_of_two_tokens() -> None:
    worked = explain("rmsnorm")
    assert numbers(worked, "squares")[0, 0].tolist() == [9, 16, 0]
    near(numbers(worked, "mean_square")[0, 0], [8.33], 2)
    near(numbers(worked, "rms")[0, 0], [2.8868], 4)
    near(numbers(worked, "result"), [[[1.0392, -1.3856, 0.0], [1.0, 1.0, 1.0]]], 4)
    near(numbers(worked, "output_rms"), [[1.0000, 1.0000]], 4)


def test_rms_norm_with_the_eps_of_the_example() -> None:
    worked = explain("rmsnorm", [3.0, -4.0, 0.0], eps=1e-6)
    near(numbers(worked, "rms"), [2.887], 3)
    near(numbers(worked, "result"), [1.04, -1.39, 0.0], 2)


def test_batch_norm_of_two_images() -> None:
    worked = explain("batchnorm")
    mean, variance, result = (numbers(worked, title) for title in ("mean", "variance", "result"))
    # All the digits of float32: these two were written down with them.
    np.testing.assert_allclose(mean.flatten(), [0.20000000298, 0.64999997616, 0.06250002980], rtol=0, atol=6e-8)
    np.testing.assert_allclose(variance.flatten(), [0.10500000417, 0.84749996662, 0.87234371901], rtol=0, atol=6e-8)
    expected = [
        [[[-0.308592, 0.0], [0.308592, 0.617184]], [[0.308592, 1.851552], [-1.234368, -1.542960]]],
        [[[0.380186, 0.271561], [0.597435, -1.900928]], [[-0.923308, 1.575055], [0.488810, -0.488810]]],
        [[[1.110815, 0.254283], [-0.709316, 0.147216]], [[0.361349, 0.682549], [-2.315313, 0.468416]]],
    ]
    # The last digit is float32's: torch's own layer and steps by hand differ in it too.
    np.testing.assert_allclose(result.swapaxes(0, 1), expected, rtol=0, atol=1.1e-6)


def test_one_sample_of_batch_norm_is_instance_norm() -> None:
    near(numbers(explain("batchnorm"), "batch_of_one")[0], numbers(explain("instancenorm"), "standardized")[0], 6)


def test_layer_norm_gives_every_row_mean_zero_and_std_one() -> None:
    worked = explain("layernorm")
    result = numbers(worked, "result")
    assert result.shape == (3, 5)
    near(result.mean(-1), [0, 0, 0], 6)
    near(numbers(worked, "output_std"), [1, 1, 0], 5)
    near(result[0], result[1], 4)  # ten times as large, and the same
    assert numbers(worked, "variance")[2] == 0  # a row of 0.5 has no variance
    assert result[2].tolist() == [0] * 5  # and eps saves it


def test_layer_norm_without_eps_divides_zero_by_zero() -> None:
    assert np.isnan(numbers(explain("layernorm", [[0.5, 0.5]], eps=0.0), "result")).all()


def test_group_norm_with_one_and_all_groups() -> None:
    worked = explain("groupnorm")
    assert numbers(worked, "mean").flatten().tolist() == [3.5, 11.5]
    assert numbers(worked, "variance").flatten().tolist() == [5.25, 5.25]
    x = np.arange(16.0).reshape(1, 4, 2, 2)
    near(numbers(worked, "one_channel_per_group"), numbers(explain("instancenorm", x), "result"), 6)
    near(
        numbers(worked, "single_group"),
        numbers(explain("layernorm", x.reshape(1, 16)), "result").reshape(x.shape),
        6,
    )
    for groups, end in ((4, "one_channel_per_group"), (1, "single_group")):
        near(numbers(explain("groupnorm", groups=groups), "result"), numbers(worked, end), 6)


def test_power_norm_updates_its_running_statistics_by_a_tenth() -> None:
    worked = explain("powernorm", torch.full((2, 3, 4), 3.0))
    near(numbers(worked, "result"), np.full((2, 3, 4), 3.0), 4)  # divided by psi's start, 1
    near(numbers(worked, "new_square"), [1.8] * 4, 4)


def test_power_norm_corrects_the_second_gradient() -> None:
    worked = explain("powernorm")
    near(numbers(worked, "batch_mean_square"), [54.5, 58.0, 50.0], 6)
    near(numbers(worked, "new_square"), [6.35, 6.7, 5.9], 5)
    x, psi_square, pull = (
        numbers(worked, "standardized"),
        numbers(worked, "new_square"),
        numbers(worked, "new_nu"),
    )
    near(numbers(worked, "second_x_grad"), x * (1 - pull) / (psi_square + 1e-5), 3)


@pytest.mark.parametrize(
    ("inputs", "relu", "squared"),
    [
        ([-2.0, 0.0, 0.5, 3.0], [0.0, 0.0, 0.5, 3.0], [0.0, 0.0, 0.25, 9.0]),
        ([-5.0, 0.1, 1.0, 2.0, 3.0], [0.0, 0.1, 1.0, 2.0, 3.0], [0.0, 0.01, 1.0, 4.0, 9.0]),
    ],
)
def test_relu_squared(inputs: list[float], relu: list[float], squared: list[float]) -> None:
    worked = explain("relu2", inputs)
    near(numbers(worked, "relu"), relu, 6)
    near(numbers(worked, "result"), squared, 6)
    table = numbers(worked, "comparison")
    near(table[:, 0], inputs, 6)
    near(table[:, 2], squared, 6)


def test_relu_squared_at_four_points_of_a_line() -> None:
    points = torch.linspace(-3, 3, 100)[[10, 50, 60, 90]]
    worked = explain("relu2", points)
    near(points.numpy(), [-2.39, 0.03, 0.64, 2.45], 2)
    near(numbers(worked, "relu"), [0.0, 0.03, 0.64, 2.45], 2)
    near(numbers(worked, "result"), [0.0, 0.00, 0.40, 6.02], 2)


def test_gelu_lies_between() -> None:
    worked = explain("relu2")
    near(numbers(worked, "gelu")[-3:], [0.8413, 1.9545, 2.9960], 4)  # x times the normal distribution's share below it


def test_linear_layer_of_two_people() -> None:
    worked = explain("linear")
    by_hand = [
        [-0.1126 * 1.8 - 0.3855 * 80, 0.0426 * 1.8 + 0.5514 * 80, -0.3952 * 1.8 + 0.6278 * 80],
        [-0.1126 * 1.6 - 0.3855 * 50, 0.0426 * 1.6 + 0.5514 * 50, -0.3952 * 1.6 + 0.6278 * 50],
    ]
    assert numbers(worked, "products").shape == (2, 3, 2)
    near(numbers(worked, "result"), by_hand, 4)


def test_mlp_up_and_down_projections() -> None:
    worked = explain("mlp")
    assert [numbers(worked, title).shape for title in ("up", "activated", "result")] == [
        (1, 2, 16),
        (1, 2, 16),
        (1, 2, 4),
    ]
    near(numbers(worked, "up")[0, :, 0], [1.2, -1.0], 6)
    near(numbers(worked, "relu")[0, :, 0], [1.2, 0.0], 6)
    near(numbers(worked, "activated")[0], [[1.44] * 16, [0.0] * 16], 6)
    near(numbers(worked, "result")[0, 1], [0.0] * 4, 6)


def test_requires_grad() -> None:
    worked = explain("requires-grad")
    assert numbers(worked, "y") == 1.5
    assert numbers(worked, "w_grad").tolist() == [1.0, 2.0]
    assert worked.step("x_grad").value.content == "None"
    near(numbers(worked, "w_updated"), [0.4, 0.3], 6)
    near(numbers(worked, "y_updated"), 1.0, 6)
    assert worked.step("frozen_grad").value.content == "None"
    assert worked.step("requires_grad_in_inference_mode").value.content == "False"
    kinds = "parameters: weight, bias\nbuffers: running_mean, running_var, num_batches_tracked"
    assert worked.step("parameters_and_buffers").value.content == kinds


def test_initialization_of_a_linear_layer() -> None:
    worked = explain("init")
    std = math.sqrt(2 / (768 + 3072))
    assert numbers(worked, "forward_variance") == 1 / 768
    assert numbers(worked, "backward_variance") == 1 / 3072
    assert numbers(worked, "std") == std
    assert numbers(worked, "bound") == 3 * std
    near(numbers(worked, "shrinkage"), 0.9866, 4)
    assert numbers(worked, "measured_std") == pytest.approx(0.9866 * std, rel=2e-3)
    assert numbers(worked, "measured_corrected_std") == pytest.approx(std, rel=2e-3)
    assert 0.99 * 3 * std < numbers(worked, "max_abs") <= 3 * std
    assert numbers(worked, "forward_gain") == pytest.approx(0.9866**2 * 768 * std**2, rel=2e-2)
    assert numbers(worked, "backward_gain") == pytest.approx(0.9866**2 * 3072 * std**2, rel=2e-2)


def test_embedding_selects_rows() -> None:
    worked = explain("embedding", [[2, 0, 2]])
    tokens, table = (np.asarray(value.content) for value in worked.given)
    assert tokens.dtype == np.int64
    assert np.abs(table).max() <= 3
    assert (numbers(worked, "result") == table[[[2, 0, 2]]]).all()
    assert numbers(worked, "one_hot")[0].tolist() == [[0, 0, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0]]


def test_attention_is_causal() -> None:
    worked = explain("attention")
    shares = numbers(worked, "attention_weights")
    assert shares.shape == (1, 2, 3, 3)
    assert (np.triu(shares, k=1) == 0).all()
    near(shares.sum(-1), np.ones((1, 2, 3)), 6)
    # By hand, the second token's first head: scores 0 and 4 / sqrt(2).
    near(shares[0, 0, 1], [1 / (1 + math.exp(4 / math.sqrt(2))), 1 / (1 + math.exp(-4 / math.sqrt(2))), 0.0], 6)
    assert (numbers(worked, "result")[0, 0] == [1, 0, 1, 0]).all()  # the first token sees only itself


def test_block_is_two_residuals() -> None:
    worked = explain("block")
    given = {value.name: value.content for value in worked.given}
    result = given["x"] + numbers(worked, "attention_output") + numbers(worked, "mlp_output")
    near(numbers(worked, "result"), result, 6)
    assert all(step.value.shape == (1, 2, 4) for step in worked.steps)


def test_wirings_differ_and_none_loses_the_gradient() -> None:
    worked = explain("residual")
    names = tuple(WIRINGS)
    results = {name: numbers(worked, name.replace("-", "_")) for name in names}
    assert results["parallel"].tobytes() == results.pop("parallel-2").tobytes()  # the norms have no weights yet
    assert len({result.tobytes() for result in results.values()}) == len(results)
    arrived = dict(zip(names, numbers(worked, "gradient_through_a_stack")[0], strict=True))
    assert worked.step("gradient_through_a_stack").value.columns == names
    assert arrived["none"] < 1e-3 < 0.1 < min(arrived[name] for name in names[:-1])
