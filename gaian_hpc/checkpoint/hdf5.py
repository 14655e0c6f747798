"""Small HDF5 and file-system operations shared by the writer and the reader of checkpoints."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

from ..errors import FormatError, GaianError

# Newest features a file may use: what HDF5 1.10 tools, the oldest with virtual datasets, can read.
LIBVER = ("earliest", "v110")
CHUNK_BYTES = 1 << 20
BLOCK_ROWS = 1 << 15
# Deflate cannot shrink by more than about 1032; a data set that claims more was never written by anyone.
MAX_DEFLATE_RATIO = 1100


def write_array(group: h5py.Group, name: str, array: np.ndarray, compress: bool = False) -> h5py.Dataset:
    """Write ``array`` little-endian in chunks with fletcher32 (and shuffle + deflate if ``compress``)."""
    data = array.astype(array.dtype.newbyteorder("<"), copy=False)
    if data.size == 0:
        return group.create_dataset(name, shape=data.shape, dtype=data.dtype)  # chunks cannot be empty
    row_bytes = max(1, data.nbytes // len(data))
    rows = max(1, min(len(data), CHUNK_BYTES // row_bytes))
    filters = {"compression": "gzip", "compression_opts": 1, "shuffle": True} if compress else {}
    return group.create_dataset(name, data=data, chunks=(rows, *data.shape[1:]), fletcher32=True, **filters)


def write_text(group: h5py.Group, name: str, text: str) -> None:
    """Write ``text`` as a scalar UTF-8 string."""
    group.create_dataset(name, data=text.encode("utf-8", "surrogateescape"), dtype=h5py.string_dtype())


def write_texts(group: h5py.Group, name: str, texts: Sequence[str]) -> None:
    """Write ``texts`` as a column of UTF-8 strings."""
    raw = np.array([t.encode("utf-8", "surrogateescape") for t in texts], object)
    group.create_dataset(name, data=raw, dtype=h5py.string_dtype())


def read_text(group: h5py.Group, name: str) -> str:
    """Return a scalar string of ``group``."""
    return group[name][()].decode("utf-8", "surrogateescape")


def read_texts(group: h5py.Group, name: str) -> list[str]:
    """Return a column of strings of ``group``."""
    return [t.decode("utf-8", "surrogateescape") for t in checked(group[name])[()].tolist()]


def checked(dataset: h5py.Dataset) -> h5py.Dataset:
    """Return ``dataset`` after making sure that its size is backed by bytes in the file.

    Raises
    ------
    FormatError
        If the shape asks for more memory than the stored bytes can hold.
    """
    if dataset.shape is None or dataset.is_virtual:
        raise FormatError(f"{dataset.file.filename}: {dataset.name} is not a stored array; use an earlier checkpoint")
    stored = dataset.id.get_storage_size()
    if dataset.compression is not None:
        stored *= MAX_DEFLATE_RATIO
    wanted = int(np.prod(dataset.shape, dtype=object)) * dataset.dtype.itemsize
    if wanted > stored:
        raise FormatError(f"{dataset.file.filename}: {dataset.name} claims {wanted} bytes and stores {stored}; the "
                          f"file is damaged, use an earlier checkpoint")
    return dataset


@contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    """Open ``path`` for reading; whatever HDF5 finds wrong, also later in the block, becomes one FormatError."""
    try:
        with h5py.File(path, "r") as file:
            yield file
    except GaianError:
        raise
    except FileNotFoundError as error:
        raise FormatError(f"{path}: the file is missing; restore it or use an earlier checkpoint") from error
    except PermissionError as error:
        raise GaianError(f"{path}: may not be read by this user; mend its permissions") from error
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        if not h5py.is_hdf5(path):
            raise FormatError(f"{path}: not an HDF5 file; name a checkpoint's {path.name!r} written by gaian_hpc"
                              if path.exists() else f"{path}: the file is missing") from error
        raise FormatError(f"{path}: HDF5 cannot read it ({error}); the file is truncated, damaged or of another "
                          f"program, use an earlier checkpoint") from error


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, lower-case hexadecimal, reading it in bounded memory."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
