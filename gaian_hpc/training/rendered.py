"""A unit in flight as the renderer of patches sees it: splats that come in waves, borders, gradients that go back.

A patch is rendered when all its splats are there, or ahead of that when no owner expects more of them. Borders of
its neighbours come with their pixels. Its gradients go back only when nothing it was made of can change any more;
what was rendered ahead of splats that came after all is rendered again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..arrays import ArrayTable
from ..data.images import PictureCache
from ..distributed.exchange import PatchSplats, merge, split
from ..renderers.base import Outputs, PointRenderer, loss_planes, splat_gradients
from ..settings import Settings
from ..timing import PhaseTimer
from .loss import Region
from .margins import canvas_of, cut, unit_neighbours, window_of
from .step import composed, patch_loss
from .unit import Unit


@dataclass(slots=True)
class PatchState:
    """How far a patch is.

    Attributes
    ----------
    parts : dict of (src, wave) to (ids, table)
    splats, outputs, image
        Once rendered.
    v_splats, sums
        Once differentiated: gradients, and what the patch adds to the loss.
    told : bool
        Whether its neighbours elsewhere know that its pixels stay.
    sent : bool
        Whether its gradients are on their way.
    """

    parts: dict[tuple[int, int], tuple[np.ndarray, ArrayTable]] = field(default_factory=dict)
    splats: PatchSplats | None = None
    outputs: Outputs | None = None
    image: np.ndarray | None = None
    v_splats: ArrayTable | None = None
    sums: tuple[float, float, float] = (0.0, 0.0, 0.0)
    told: bool = False
    sent: bool = False


@dataclass(frozen=True, slots=True)
class Outbox:
    """Where results of a rendered unit go.

    Attributes
    ----------
    margin : callable
        ``margin(dst, patch, stays, pixels)``: pixels (n,) float32, or None if those sent before stay.
    gradients : callable
        ``gradients(owner, patch, parts)``: ids and gradients by wave.
    """

    margin: Callable[[int, int, bool, np.ndarray | None], None]
    gradients: Callable[[int, int, list[tuple[np.ndarray, ArrayTable]]], None]


class RenderedUnit:
    """The patches of a unit that this rank renders.

    Parameters
    ----------
    unit : Unit
    renders : (P,) int64
        Rank that renders each patch.
    rank, size : int
    renderer : PointRenderer
        Of the unit's step.
    backgrounds : sequence of (3,) float32
        By view.
    n_views : int
    pictures, settings, timer
    outbox : Outbox
    """

    def __init__(self, unit: Unit, renders: np.ndarray, rank: int, size: int, renderer: PointRenderer,
                 backgrounds: Sequence[np.ndarray], pictures: PictureCache, settings: Settings, timer: PhaseTimer,
                 outbox: Outbox):
        self.unit, self.renders, self.rank = unit, renders, rank
        self.renderer, self.backgrounds, self.pictures = renderer, backgrounds, pictures
        self.settings, self.timer, self.outbox = settings, timer, outbox
        self.n_planes = loss_planes(renderer)
        self.mine = np.flatnonzero(renders == rank)
        self.states = {p: PatchState() for p in self.mine.tolist()}
        self.final = np.zeros(size, bool)
        self.complete = np.zeros((size, len(unit.patches)), bool)
        pairs = unit_neighbours(unit)
        self._mine_first = pairs[renders[pairs[:, 0]] == rank]
        self._mine_second = pairs[renders[pairs[:, 1]] == rank]
        self._margins: dict[tuple[int, int], np.ndarray] = {}
        self._staying: set[int] = set()

    @property
    def is_sent(self) -> bool:
        """Whether the gradients of all patches are on their way."""
        return all(s.sent for s in self.states.values())

    def take_splats(self, src: int, wave: int, final: bool, complete: np.ndarray,
                    parts: Sequence[tuple[np.ndarray, ArrayTable]]) -> None:
        """Take a wave of an owner.

        Parameters
        ----------
        src, wave : int
        final : bool
            Whether it is the owner's last.
        complete : (Q,) bool
            For each of this rank's patches, whether the owner expects no more.
        parts : sequence of (ids, table)
            For each of this rank's patches.
        """
        self.final[src] = final
        self.complete[src, self.mine] = complete
        for p, part in zip(self.mine.tolist(), parts, strict=True):
            self.states[p].parts[src, wave] = part
            if len(part[0]) and self.states[p].outputs is not None:
                self._forget(p)

    def take_margin(self, q: int, stays: bool, pixels: np.ndarray | None) -> None:
        """Take the pixels of patch ``q``, rendered elsewhere, that lie beside this rank's patches."""
        if stays:
            self._staying.add(q)
        if pixels is None:
            return
        at = 0
        for p, other, *box in self._mine_first.tolist():
            if other == q:
                n = self.n_planes * (box[1] - box[0]) * (box[3] - box[2])
                self._margins[p, q] = pixels[at:at + n]
                self.states[p].v_splats = None
                at += n

    def n_margin_values(self, q: int) -> int:
        """Return how many values of patch ``q``, rendered elsewhere, lie beside this rank's patches."""
        beside = self._mine_first[self._mine_first[:, 1] == q]
        return int(self.n_planes * ((beside[:, 3] - beside[:, 2]) * (beside[:, 5] - beside[:, 4])).sum())

    def work(self) -> bool:
        """Do one thing: send, differentiate or render a patch; tell whether there was anything to do."""
        stays = bool(self.final.all())
        for p, s in self.states.items():
            if stays and s.outputs is not None and not s.told:
                self._tell(p, None)
            if s.v_splats is not None and not s.sent and stays and self._neighbours_stay(p):
                self._send(p)
                return True
        for p, s in self.states.items():
            if s.outputs is not None and s.v_splats is None and self._has_margins(p):
                self._differentiate(p)
                return True
        ready = (self.final[:, None] | self.complete).all(axis=0)
        for p, s in self.states.items():
            if s.outputs is None and ready[p]:
                self._render(p)
                return True
        return False

    def sums(self) -> np.ndarray:
        """Return what the patches rendered here add to the loss, (P, 3) float64, zero for others."""
        out = np.zeros((len(self.unit.patches), 3))
        for p, s in self.states.items():
            out[p] = s.sums
        return out

    def _render(self, p: int) -> None:
        s = self.states[p]
        with self.timer.region("exchange"):
            s.splats = merge(p, [s.parts[key] for key in sorted(s.parts)])
        with self.timer.region("render"):
            s.outputs = self.renderer.render(self.unit.patches[p], s.splats.table)
        with self.timer.region("pixels"):
            s.image = composed(self.renderer, s.outputs, self.backgrounds[self.unit.view_of(p)])
        with self.timer.region("margins"):
            self._tell(p, s.image)
        for q in self._beside(p):
            self.states[q].v_splats = None

    def _tell(self, p: int, image: np.ndarray | None) -> None:
        """Send a patch's pixels to the ranks of its neighbours, or that those sent before stay."""
        s = self.states[p]
        s.told = bool(self.final.all())
        beside = self._mine_second[self._mine_second[:, 1] == p]
        for dst in np.unique(self.renders[beside[:, 0]]).tolist():
            if dst == self.rank:
                continue
            pixels = None
            if image is not None:
                there = beside[self.renders[beside[:, 0]] == dst]
                pixels = np.concatenate([cut(image, self.unit.patches[p], box).reshape(-1)
                                         for _, _, *box in there.tolist()])
            self.outbox.margin(dst, p, s.told, pixels)

    def _differentiate(self, p: int) -> None:
        s, patch = self.states[p], self.unit.patches[p]
        region, background = Region.of(patch), self.backgrounds[self.unit.view_of(p)]
        with self.timer.region("margins"):
            canvas = canvas_of(region, s.image)
            for _, q, *box in self._mine_first[self._mine_first[:, 0] == p].tolist():
                target = window_of(canvas, region, box)
                target[:] = (cut(self.states[q].image, self.unit.patches[q], box) if q in self.states
                             else self._margins[p, q].reshape(target.shape))
        with self.timer.region("pixels"):
            picture = self.pictures.get(patch.view.index)
        result = patch_loss(self.renderer, patch, canvas, s.outputs, picture, background, self.settings,
                            len(self.unit.views), self.timer)
        s.sums = result.sums
        with self.timer.region("render_vjp"):
            s.v_splats = splat_gradients(self.renderer, patch, s.splats.table, s.outputs, result.v_outputs)

    def _send(self, p: int) -> None:
        """Return gradients to the owners, by wave, and drop what is no longer needed."""
        s = self.states[p]
        keys = sorted(s.parts)
        counts = np.array([len(s.parts[key][0]) for key in keys])
        with self.timer.region("exchange"):
            rows = s.splats.to_sources()
            parts = split(s.v_splats if rows is None else s.v_splats.take(rows), counts)
            for owner in sorted({src for src, _ in keys}):
                mine = [(s.parts[key][0], part) for key, part in zip(keys, parts, strict=True) if key[0] == owner]
                if any(len(ids) for ids, _ in mine):
                    self.outbox.gradients(owner, p, mine)
        s.sent = True
        s.parts, s.splats, s.outputs, s.v_splats = {}, None, s.outputs, s.v_splats
        s.outputs.saved = None

    def _forget(self, p: int) -> None:
        """Undo what was made of a patch before all its splats had come, and of its neighbours from its pixels."""
        s = self.states[p]
        s.splats = s.outputs = s.image = s.v_splats = None
        for q in self._beside(p):
            self.states[q].v_splats = None

    def _beside(self, p: int) -> list[int]:
        """Return this rank's patches whose margins hold pixels of ``p``."""
        return [q for q in self._mine_second[self._mine_second[:, 1] == p][:, 0].tolist() if q in self.states]

    def _has_margins(self, p: int) -> bool:
        return all(self.states[q].image is not None if q in self.states else (p, q) in self._margins
                   for q in self._mine_first[self._mine_first[:, 0] == p][:, 1].tolist())

    def _neighbours_stay(self, p: int) -> bool:
        return all(q in self.states or q in self._staying
                   for q in self._mine_first[self._mine_first[:, 0] == p][:, 1].tolist())
