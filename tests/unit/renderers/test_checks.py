"""What a method does wrong is told by its name and the field, before it can spoil points."""

from types import SimpleNamespace

import numpy as np
import pytest

from gaian_hpc.arrays import ArrayTable, Attribute, Cloud, Field, LearningRate, Patch, View
from gaian_hpc.errors import GaianError, SettingsError
from gaian_hpc.renderers.base import (
    OutputGradients,
    Outputs,
    boxes_of,
    check_method,
    initial_values,
    make_splats,
    point_gradients,
    positions,
    rows_in_view,
    splat_gradients,
)

RATE = LearningRate(0.01)
MEANS = Attribute("means", (3,), lambda c: c.positions, RATE)
SIZES = Attribute("sizes", (), lambda c: c.spacing, RATE)
VIEW = View(np.eye(4, dtype=np.float32), np.eye(3, dtype=np.float32), 8, 8, name="a.png")
PATCH = Patch(VIEW, 0, 0, 8, 8)
PIXELS = np.zeros((3, 8, 8), np.float32)
CLOUD = Cloud(np.zeros((5, 3), np.float32), np.zeros((5, 3), np.float32), np.ones(5, np.float32), np.arange(5))


def method(**changes):
    """A method that does nothing, with some parts replaced."""
    parts = {"name": "mine", "attributes": (MEANS, SIZES), "splat_fields": (Field("at", (2,)),),
             "gradient_fields": (Field("at", (2,)),)}
    return SimpleNamespace(**{**parts, **changes})


def test_a_right_table_passes():
    check_method(method())
    assert positions(method(), {"means": 1}) == 1
    assert positions(method(centers=lambda points: 2), {}) == 2


@pytest.mark.parametrize(("changes", "complaint"), [
    ({"attributes": ()}, "attributes is empty"),
    ({"attributes": (MEANS, SIZES, SIZES)}, "attributes has 'sizes' more than once"),
    ({"splat_fields": (Field("at"), Field("at"))}, "splat_fields has 'at' more than once"),
    ({"attributes": (SIZES,)}, "must have an attribute 'means'"),
    ({"attributes": (Attribute("means", (2,), MEANS.init, RATE),)}, "must have an attribute 'means'"),
    ({"attributes": (MEANS, Attribute("a", (), MEANS.init, RATE, "square"))}, "'a' has activation 'square'"),
    ({"attributes": (MEANS, Attribute("a", (2,), MEANS.init, RATE, lr_scale=(1.0,)))}, "'a' has 1 values of lr_scale"),
])
def test_a_wrong_table_is_refused(changes, complaint):
    with pytest.raises(SettingsError, match=f"method 'mine': .*{complaint}"):
        check_method(method(**changes))


@pytest.mark.parametrize(("init", "complaint"), [
    (lambda c: np.zeros((5, 2)), r"init of attribute 'sizes' returns shape \(5, 2\) where \(5,\) is expected"),
    (lambda c: np.full(5, np.nan), "init of attribute 'sizes' returns values that are not finite"),
])
def test_wrong_start_values_are_refused(init, complaint):
    with pytest.raises(SettingsError, match=f"method 'mine': {complaint}"):
        initial_values("mine", Attribute("sizes", (), init, RATE), CLOUD)
    assert initial_values("mine", SIZES, CLOUD).dtype == np.float32


def table(**arrays):
    return ArrayTable({name: np.asarray(x, np.float32) for name, x in arrays.items()})


@pytest.mark.parametrize(("returned", "complaint"), [
    (table(sizes=np.zeros(4)), "splat_vjp returns no 'means', only sizes"),
    (table(means=np.zeros((4, 3)), sizes=np.zeros((4, 1))), r"'sizes' of shape \(4, 1\) where \(4,\) is expected"),
    (table(means=np.zeros((4, 4)), sizes=np.zeros(4)), r"'means' of shape \(4, 4\) where \(4, 3\)"),
    (table(means=np.zeros((4, 3)), sizes=[0, 0, np.nan, 0]), "'sizes' that is not finite, for row 7 in view 'a.png'"),
    (table(means=[[0] * 3, [0, np.inf, 0], [0] * 3, [0] * 3], sizes=np.zeros(4)),
     "'means' that is not finite, for row 6"),
])
def test_wrong_gradients_of_points_are_refused(returned, complaint):
    mine = method(splat_vjp=lambda *_: returned)
    with pytest.raises(GaianError, match=f"method 'mine': .*{complaint}"):
        point_gradients(mine, VIEW, None, np.array([5, 6, 7, 8]), None, table(at=np.zeros((4, 2))))


def test_gradients_may_leave_out_trailing_columns_and_sums_may_overflow():
    huge = table(means=np.full((4, 3), 3e38), sizes=np.zeros(4))
    for returned in (table(means=np.zeros((4, 1)), sizes=np.zeros(4)), huge):
        point_gradients(method(splat_vjp=lambda *_, r=returned: r), VIEW, None, np.arange(4), None,
                        table(at=np.zeros((4, 2))))


def test_what_is_not_finite_before_a_method_gets_it_is_not_its_fault():
    bad = table(means=np.full((4, 3), np.nan), sizes=np.zeros(4))
    point_gradients(method(splat_vjp=lambda *_: bad), VIEW, None, np.arange(4), None, table(at=np.full((4, 2), np.nan)))


def test_wrong_gradients_of_splats_are_refused():
    splats, outputs = table(at=np.zeros((4, 2))), Outputs(PIXELS, PIXELS[0], {})
    for returned, complaint in ((table(at=np.full((4, 2), np.inf)), "render_vjp returns a gradient of 'at'"),
                                (table(to=np.zeros((4, 2))), "render_vjp returns no 'at', only to"),
                                (table(at=np.zeros((3, 2))), r"render_vjp returns 'at' of shape \(3, 2\)")):
        with pytest.raises(GaianError, match=f"method 'mine': {complaint}"):
            splat_gradients(method(render_vjp=lambda *_, r=returned: r), PATCH, splats, outputs,
                            OutputGradients(PIXELS))


@pytest.mark.parametrize(("color", "alpha", "complaint"), [
    (PIXELS[:, :-1], PIXELS[0], r"'color' of shape \(3, 7, 8\) where \(3, 8, 8\)"),
    (PIXELS, PIXELS[:1], r"'alpha' of shape \(1, 8, 8\) where \(8, 8\)"),
    (PIXELS + np.float32(np.nan), PIXELS[0], "values of 'color' that are not finite"),
    (PIXELS, PIXELS[0] + np.float32(np.inf), "values of 'alpha' that are not finite"),
])
def test_wrong_pixels_are_refused(color, alpha, complaint):
    with pytest.raises(GaianError, match=f"method 'mine': render returns {complaint}"):
        splat_gradients(method(), PATCH, table(at=np.zeros((4, 2))), Outputs(color, alpha, {}),
                        OutputGradients(np.full((3, 8, 8), np.nan, np.float32)))


@pytest.mark.parametrize(("rows", "complaint"), [
    ([1, 2], "cull returns list"),
    (np.array([1.0, 2.0]), r"cull returns float64 of shape \(2,\)"),
    (np.array([True] * 5), "cull returns bool of shape"),
    (np.array([2, 1]), "rows that do not ascend within 0 … 4"),
    (np.array([1, 5]), "rows that do not ascend within 0 … 4"),
])
def test_wrong_rows_are_refused(rows, complaint):
    points = table(means=np.zeros((5, 3)))
    with pytest.raises(GaianError, match=f"method 'mine': .*{complaint}"):
        rows_in_view(method(cull=lambda *_: rows), VIEW, points)
    assert rows_in_view(method(cull=lambda *_: np.array([0, 4])), VIEW, points).tolist() == [0, 4]


@pytest.mark.parametrize(("splats", "complaint"), [
    (table(to=np.zeros((4, 2))), "splat returns no 'at', only to"),
    (table(at=np.zeros((4, 3))), r"splat returns 'at' of shape \(4, 3\) where \(4, 2\)"),
    (ArrayTable({"at": np.zeros((4, 2))}), "splat returns 'at' as float64 where float32"),
])
def test_wrong_splats_and_boxes_are_refused(splats, complaint):
    with pytest.raises(GaianError, match=f"method 'mine': {complaint}"):
        make_splats(method(splat=lambda *_: splats), VIEW, None, np.arange(4))
    with pytest.raises(GaianError, match=r"footprints returns float32 of shape \(4, 2\) where shape \(4, 4\)"):
        boxes_of(method(footprints=lambda *_: np.zeros((4, 2))), VIEW, splats)


def test_pixels_of_splats_that_are_not_finite_are_not_the_renderers_fault():
    bad = table(at=np.full((4, 2), np.nan))
    splat_gradients(method(render_vjp=lambda *_: bad), PATCH, bad, Outputs(PIXELS + np.float32(np.nan), PIXELS[0], {}),
                    OutputGradients(np.full((3, 8, 8), np.nan, np.float32)))
