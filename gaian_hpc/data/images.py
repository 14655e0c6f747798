"""Pictures: their headers, and their decoding into the pixels of a view."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import DataError
from .cache import PictureCache
from .cameras import MapCache, Undistortion, remap

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["Header", "Picture", "PictureCache", "PictureSource", "load_picture", "read_header"]

FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "PPM")  # JPEG includes the MPO of phones
EIGHT_BIT_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB", "La", "RGBa", "RGBX")
SIXTEEN_BIT_MODES = ("I;16", "I;16B", "I;16L", "I;16N")
MAP_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Header:
    """Size and kind of a picture file."""

    width: int
    height: int
    has_alpha: bool


@dataclass(frozen=True, slots=True)
class PictureSource:
    """Where a view's pixels come from and what is done to them.

    Attributes
    ----------
    path : Path
        Picture file.
    file_size : (int, int)
        Width and height of the file; decoding refuses another size.
    scaled_size : (int, int)
        Width and height to resize to before undistortion.
    undistortion : Undistortion or None
        None where the lens is a pinhole already.
    mask_path : Path or None
        Black pixels are ignored in training and evaluation.
    has_alpha : bool
        Whether the file has an alpha channel.
    """

    path: Path
    file_size: tuple[int, int]
    scaled_size: tuple[int, int]
    undistortion: Undistortion | None = None
    mask_path: Path | None = None
    has_alpha: bool = False

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the picture as a view has it."""
        plan = self.undistortion
        return (plan.width, plan.height) if plan else self.scaled_size

    @property
    def nbytes(self) -> int:
        """Bytes of the decoded picture, at most."""
        width, height = self.size
        return width * height * (3 + self.has_alpha + (self.mask_path is not None))


@dataclass(frozen=True, slots=True)
class Picture:
    """The decoded picture of a view.

    Attributes
    ----------
    rgb : (3, H, W) uint8, contiguous
        Not multiplied with alpha.
    alpha : (H, W) uint8 or None
        None where the file has no alpha channel.
    mask : (H, W) bool or None
        False where the pixel is to be ignored; None counts everything.
    """

    rgb: np.ndarray
    alpha: np.ndarray | None = None
    mask: np.ndarray | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(a.nbytes for a in (self.rgb, self.alpha, self.mask) if a is not None)


def read_header(path: Path) -> Header:
    """Read the size of a picture without decoding it.

    Raises
    ------
    DataError
        If the file is missing or not a picture of a known format.
    """
    from PIL import Image

    try:
        with Image.open(path, formats=FORMATS) as image:
            has_alpha = image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info
            return Header(image.width, image.height, has_alpha)
    except Exception as error:
        raise _unreadable(path, error) from error


def load_picture(source: PictureSource, maps: MapCache | None = None) -> Picture:
    """Decode, resize and undistort a picture. EXIF orientation is not applied: structure from motion ignores it.

    Parameters
    ----------
    source : PictureSource
    maps : MapCache, optional
        Keeps the undistortion maps between calls.

    Raises
    ------
    DataError
        If a file is missing, truncated, of another size than before or not a picture; names it.
    """
    if maps is None:
        maps = MapCache(MAP_BYTES)
    pixels = _decode(source.path, source)
    mask = None if source.mask_path is None else _decode_mask(source)
    if source.undistortion is not None:
        grid = maps.get(source.undistortion)
        pixels = remap(pixels, grid)
        mask = None if mask is None else remap(mask, grid)
    rgb = np.ascontiguousarray(np.moveaxis(pixels[..., :3], 2, 0))
    alpha = np.ascontiguousarray(pixels[..., 3]) if pixels.shape[2] == 4 else None
    return Picture(rgb, alpha, None if mask is None else mask == 255)


def _decode(path: Path, source: PictureSource) -> np.ndarray:
    """Return (h, w, 3 or 4) uint8 of the scaled size."""
    from PIL import Image

    try:
        with Image.open(path, formats=FORMATS) as image:
            if image.size != source.file_size:
                raise DataError(f"{path} is {image.width} x {image.height} but was {source.file_size[0]} x "
                                f"{source.file_size[1]} when the scene was opened; do not change it during a run")
            image = _eight_bit(image, path)
            image = image.convert("RGBA" if source.has_alpha else "RGB")
            if image.size != source.scaled_size:
                image = image.resize(source.scaled_size, Image.Resampling.LANCZOS)
            return np.asarray(image)
    except DataError:
        raise
    except Exception as error:  # Pillow's readers raise nearly any exception on damaged bytes
        raise _unreadable(path, error) from error


def _decode_mask(source: PictureSource) -> np.ndarray:
    """Return (h, w) uint8 of the scaled size: 255 where every pixel that goes into it counts."""
    from PIL import Image

    path = source.mask_path
    try:
        with Image.open(path, formats=FORMATS) as image:
            gray = _eight_bit(image, path).convert("L").point([0] * 128 + [255] * 128)
            if gray.size != source.scaled_size:
                gray = gray.resize(source.scaled_size, Image.Resampling.BOX)
            return np.asarray(gray)
    except DataError:
        raise
    except Exception as error:
        raise _unreadable(path, error) from error


def _eight_bit(image: Image.Image, path: Path) -> Image.Image:
    """Return the image with 8 bits a channel; of 16-bit grey the high byte is kept, as Pillow does for colours."""
    from PIL import Image

    if image.mode in SIXTEEN_BIT_MODES:
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode not in EIGHT_BIT_MODES:
        raise DataError(f"{path} has pixels of kind {image.mode!r}; convert it to 8-bit PNG or JPEG")
    return image


def _unreadable(path: Path, error: Exception) -> DataError:
    if isinstance(error, FileNotFoundError):
        return DataError(f"{path} does not exist; restore the picture or remove its image from the scene")
    if isinstance(error, MemoryError):
        return DataError(f"{path} does not fit into memory; use --data.factor with an images_<factor> folder")
    reason = "it is not a picture" if type(error).__name__ == "UnidentifiedImageError" else str(error) or repr(error)
    return DataError(f"{path} cannot be decoded ({reason}); replace it by a whole picture "
                     f"({', '.join(FORMATS)})")
