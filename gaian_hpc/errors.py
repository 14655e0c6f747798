"""Errors a user can cause and mend; each prints as one line and ends a job with exit code 1 (2 for usage)."""


class GaianError(Exception):
    """Base of all errors that name their cause and their mend.

    Parameters
    ----------
    message : str
        One line: the file or setting, what is wrong with it (found, allowed), and what to do.
    """

    exit_code = 1

    def __init__(self, message: str):
        super().__init__(" ".join(str(message).split()))


class SettingsError(GaianError):
    """A setting or command-line argument that is unknown, of the wrong type or out of range."""

    exit_code = 2


class DataError(GaianError):
    """A scene's input (images, cameras, points) is missing, damaged or inconsistent."""


class FormatError(GaianError):
    """A file is not of the format, version or method that was expected."""


class BackendError(GaianError):
    """The chosen backend cannot run here."""


class ExchangeError(GaianError):
    """Ranks disagree or a message between them cannot be delivered."""


class PlacementError(GaianError):
    """Points or patches cannot be placed on the ranks as asked."""
