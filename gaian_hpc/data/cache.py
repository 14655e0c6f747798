"""Decoded pictures under a memory bound, fetched ahead of their use."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from .cameras import MapCache

if TYPE_CHECKING:
    from .images import Picture
    from .scene import Scene


class PictureCache:
    """Keep the pictures used last within ``max_bytes`` and decode scheduled ones in the background.

    Thread-safe. The bound covers the pictures that are kept; those that the caller holds and those being decoded
    come on top. A picture larger than the bound is decoded at each use. Use as a context manager, or ``close`` it.

    Parameters
    ----------
    scene : Scene
    max_bytes : int
        Bound on kept pictures; a quarter of it again bounds undistortion maps.
    prefetch : int
        Scheduled pictures decoded ahead of their use; 0 starts no thread.
    n_threads : int
        Decoding threads.
    """

    def __init__(self, scene: Scene, max_bytes: int, prefetch: int = 4, n_threads: int = 1):
        self._sources = scene.pictures
        self._max_bytes, self._prefetch, self._n_threads = int(max_bytes), int(prefetch), int(n_threads)
        self._maps = MapCache(self._max_bytes // 4)
        self._kept: OrderedDict[int, Picture] = OrderedDict()
        self._bytes = 0
        self._errors: dict[int, Exception] = {}
        self._busy: set[int] = set()
        self._plan: Iterator[int] = iter(())
        self._ahead: deque[int] = deque()
        self._last: int | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> PictureCache:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    @property
    def nbytes(self) -> int:
        """Bytes of the pictures kept at this moment."""
        return self._bytes

    def schedule(self, view_indices: Iterable[int]) -> None:
        """Say in which order :meth:`get` will be called from now on; replaces what was said before.

        The iterable may be endless: it is read only ``prefetch`` entries ahead, in the calling thread. Calls of ``get``
        for the same view in a row count as one entry; a view that is not within reach leaves the schedule alone.
        """
        with self._changed:
            self._plan, self._last = iter(view_indices), None
            self._ahead.clear()
            self._errors.clear()
            self._read_ahead()
            if self._prefetch > 0 and not self._threads and not self._closed:
                self._threads = [threading.Thread(target=self._work, name=f"pictures-{i}", daemon=True)
                                 for i in range(self._n_threads)]
                for thread in self._threads:
                    thread.start()

    def get(self, view_index: int) -> Picture:
        """Return the picture of a view, waiting for it or decoding it here.

        Raises
        ------
        DataError
            If the picture cannot be decoded, here or ahead in the background.
        """
        index = int(view_index)
        with self._changed:
            self._advance(index)
            self._changed.wait_for(lambda: index not in self._busy)
            if index in self._errors:
                raise self._errors.pop(index)
            if index in self._kept:
                self._kept.move_to_end(index)
                return self._kept[index]
            self._busy.add(index)
        return self._fetch(index)

    def close(self) -> None:
        """End the threads and drop all pictures."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._threads = []
        self._kept.clear()
        self._bytes = 0

    def _advance(self, index: int) -> None:
        """Step over the scheduled entries up to ``index``."""
        if index != self._last and index in self._ahead:
            while self._ahead.popleft() != index:
                pass
            self._read_ahead()
        self._last = index

    def _read_ahead(self) -> None:
        while len(self._ahead) < self._prefetch:
            upcoming = next(self._plan, None)
            if upcoming is None:
                break
            self._ahead.append(int(upcoming))
        self._changed.notify_all()

    def _fetch(self, index: int, ahead: bool = False) -> Picture | None:
        """Decode ``index``, which the caller has marked busy, and keep it if it fits.

        What goes wrong ``ahead`` of use is kept for whoever asks for the picture; else it is raised.
        """
        from .images import load_picture

        picture = None
        try:
            picture = load_picture(self._sources[index], self._maps)
        except Exception as error:
            if not ahead:
                raise
            with self._changed:
                self._errors[index] = error
        finally:
            with self._changed:
                if picture is not None:
                    self._keep(index, picture)
                self._busy.discard(index)
                self._changed.notify_all()
        return picture

    def _keep(self, index: int, picture: Picture) -> None:
        """Store a picture, dropping first those not used for longest, then those scheduled latest."""
        size = picture.nbytes
        if size > self._max_bytes:
            return
        ahead = list(self._ahead)
        spare = [i for i in self._kept if i not in ahead]
        later = [i for i in reversed(ahead) if i in self._kept]
        for victim in (*spare, *later):
            if self._bytes + size <= self._max_bytes:
                break
            if victim in self._kept:
                self._bytes -= self._kept.pop(victim).nbytes
        self._kept[index] = picture
        self._bytes += size

    def _next_ahead(self) -> int | None:
        """Return the first scheduled view that is worth decoding and fits beside the scheduled ones kept."""
        held = 0
        for index in dict.fromkeys(self._ahead):
            held += self._sources[index].nbytes
            if held > self._max_bytes:
                return None
            if not (index in self._kept or index in self._busy or index in self._errors):
                return index
        return None

    def _await(self, found: Callable[[], int | None]) -> int | None:
        """Wait until there is something to decode, mark it busy and return it; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or found() is not None)
            if self._closed:
                return None
            index = found()
            self._busy.add(index)
            return index

    def _work(self) -> None:
        while (index := self._await(self._next_ahead)) is not None:
            self._fetch(index, ahead=True)
