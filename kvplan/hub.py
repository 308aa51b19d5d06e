"""A model's config and weight index from the Hugging Face Hub, with the failures a user can act on.

huggingface_hub does the transfer and honours HF_HOME, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE by itself. Nothing of
the repository is ever executed.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.documents import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The bytes of config.json at one commit, and the size of the weights where the repository lists it."""

    config: bytes
    commit: str | None
    weights: Weights | None = None


def fetch(repo: str, revision: str | None = None) -> Found:
    raise NotImplementedError
