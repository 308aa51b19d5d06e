"""Fixtures for every test: no network, a fixed terminal, and the reference facts where they are at hand."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import hypothesis
import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"

os.environ.update(NO_COLOR="1", COLUMNS="100", HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")
os.environ.pop("FORCE_COLOR", None)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test measures time. A gate gives the same answer for the same code; everybody else's runs draw new cases.
hypothesis.settings.register_profile("kvplan", deadline=None, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("kvplan")


@pytest.fixture(scope="session")
def shared() -> Path:
    """Reference configs, traces and engine figures: a folder beside the checkout that not everybody has."""
    if not SHARED.is_dir():
        pytest.skip(f"reference facts are not at {SHARED}: checks against them did not run")
    return SHARED


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse every connection that leaves this machine, so that no test depends on the outside."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: object) -> None:
        host = address[0] if isinstance(address, tuple) else ""
        if self.family != socket.AF_UNIX and host not in ("127.0.0.1", "localhost", "::1"):
            raise AssertionError(f"a test tried to reach {host}")
        connect(self, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", guarded)
