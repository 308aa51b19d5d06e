"""A model's config, and the size of its weights, from the Hugging Face Hub, with the failures a user can act on.

huggingface_hub does the transfer and honours HF_HOME, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE by itself. Nothing of a
repository is ever executed, and no weight is downloaded: headers are read by range requests.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kvplan.documents import Weights
from kvplan.errors import KvplanError
from kvplan.files import reason
from kvplan.models import quantization, weights

_CONNECT_S, _PAUSE_S = 5.0, 1.0
_UNCONNECTED = ("ConnectError", "ConnectTimeout", "ProxyError", "ConnectionError")
CONFIG = "config.json"
SINGLE = "model.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The bytes of config.json at one commit, what lies beside it, and the size of the weights where listed."""

    config: bytes
    commit: str | None
    quantization: bytes | None = None
    weights: Weights | None = None


def fetch(repo: str, revision: str | None = None, *, hint: str = "") -> Found:
    """The config of a repository. `hint` ends the error of a repository that cannot be read.

    Raises KvplanError, one line, for an id that is none, a repository or revision that does not exist, one that is
    gated and not granted, and a Hub that cannot be reached while nothing is cached.
    """
    from huggingface_hub.utils import logging

    # It retries, and would say so between our lines.
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    path = _download(repo, CONFIG, revision, hint)
    if path is None:
        raise KvplanError(f"{repo}: the repository has no {CONFIG}: give a model in the format of transformers{hint}")
    commit = path.parent.name if path.parent.parent.name == "snapshots" else None
    at = commit or revision
    beside = _download(repo, quantization.BESIDE, at, hint, optional=True)
    return Found(
        config=_bytes(path),
        commit=commit,
        quantization=_bytes(beside) if beside else None,
        weights=_weights(repo, at, hint),
    )


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise KvplanError(f"{path}: {reason(error)}") from None


def _download(repo: str, file: str, revision: str | None, hint: str, *, optional: bool = False) -> Path | None:
    """A file of the repository in the local cache, or None where the repository has no such file."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError, RemoteEntryNotFoundError

    try:
        return Path(hf_hub_download(repo, file, revision=revision, local_files_only=_offline() or not _reachable()))
    except RemoteEntryNotFoundError:
        return None
    except LocalEntryNotFoundError as error:
        if optional:  # not cached and not reachable: the config itself was, so its absence is only a loss of detail
            return None
        raise KvplanError(explain(error, repo, revision) + hint) from None
    except (OSError, ValueError) as error:
        raise KvplanError(explain(error, repo, revision) + hint) from None


def explain(error: Exception, repo: str, revision: str | None) -> str:
    """One line for what huggingface_hub raised, and what to do about it."""
    from huggingface_hub import errors

    at = f" at revision {revision!r}" if revision else ""
    match error:
        case errors.GatedRepoError():
            return f"{repo}: gated on the Hub: accept its terms there and set HF_TOKEN"
        case errors.RevisionNotFoundError():
            return f"{repo}: the repository exists, but has no revision {revision!r}"
        case errors.RepositoryNotFoundError():
            return f"{repo}: no such repository on the Hub, or a private one: check the name, or set HF_TOKEN"
        case errors.HFValidationError():
            return f"{repo}: not a Hub id (organisation/name)"
        case errors.LocalEntryNotFoundError():
            if _offline():
                return f"{repo}: not in the local cache{at}, and HF_HUB_OFFLINE is set"
            return (
                f"{repo}: not in the local cache{at}, and the Hub cannot be reached (where it never can, set "
                "HF_HUB_OFFLINE=1, which asks nobody)"
            )
        case errors.HfHubHTTPError():
            status = getattr(getattr(error, "response", None), "status_code", None)
            return f"{repo}: the Hub answered {status or 'with an error'}{at}"
    return f"{repo}: cannot be read from the Hub{at}: {' '.join(str(error).split())[:200]}"


def _offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


@cache
def _reachable() -> bool:
    """Whether anything answers where the Hub should be, asked twice in a few seconds.

    huggingface_hub itself retries for half a minute, whether a connection is slow or there is none. Here only a
    connection that cannot be made says no: whatever answers, late or with an error, is left to its patience.
    """
    from huggingface_hub import constants, get_session

    for pause in (_PAUSE_S, None):
        began = time.monotonic()
        try:
            get_session().head(constants.ENDPOINT, timeout=_CONNECT_S)
            return True
        except Exception as error:  # of whichever HTTP library it is built on
            if type(error).__name__ not in _UNCONNECTED:
                return True
        if pause is None or time.monotonic() - began > _PAUSE_S:  # it waited already
            return False
        time.sleep(pause)
    return False


def _weights(repo: str, revision: str | None, hint: str) -> Weights | None:
    """Bytes from the index file, else from the header of a single file; None where neither can be read."""
    index = _download(repo, weights.INDEX, revision, hint, optional=True)
    if index is not None:
        metadata, _ = weights.read_index(_bytes(index), f"{repo}/{weights.INDEX}")
        return weights.from_index(metadata, weights.INDEX)
    if _offline() or not _reachable():
        return None
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, NotASafetensorsRepoError, SafetensorsParsingError

    try:
        found: Any = HfApi().parse_safetensors_file_metadata(repo, SINGLE, revision=revision)
    except (HfHubHTTPError, NotASafetensorsRepoError, SafetensorsParsingError, OSError):
        return None
    tensors = {
        name: {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": tensor.data_offsets}
        for name, tensor in found.tensors.items()
    }
    return weights.from_headers([tensors], f"header of {SINGLE}")
