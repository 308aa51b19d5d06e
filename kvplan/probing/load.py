"""Work that loads a GPU as decoding does: every step reads weights and cache from its memory and computes little.

A step is a product of a few rows with a large matrix, done layer by layer, replayed as one CUDA graph as engines do.
"""

from __future__ import annotations

from typing import Any

_WIDTH = 8192  # columns of one matrix; with bfloat16, 128 MiB a square one
_ROWS = 16  # sequences decoded at once: few enough that reading the matrix is all the time
_ELEMENT = 2
_SUPPORT = 4  # rounds before capture, in which libraries allocate what they need


class GraphLoad:
    """Products of `_ROWS` rows with enough matrices to read `size` bytes, captured as one graph on its own stream."""

    def __init__(self, torch: Any, device: Any, size: int) -> None:
        self._torch = torch
        layers = max(1, size // (_WIDTH * _WIDTH * _ELEMENT))
        make = {"dtype": torch.bfloat16, "device": device}
        self._matrices = [torch.full((_WIDTH, _WIDTH), 2.0**-13, **make) for _ in range(layers)]
        self._rows = torch.ones((_ROWS, _WIDTH), **make)
        self.step_bytes = layers * _WIDTH * _WIDTH * _ELEMENT
        self.words = f"{layers} products of {_ROWS} x {_WIDTH} with {_WIDTH} x {_WIDTH} in bfloat16, one CUDA graph"
        self.stream = torch.cuda.Stream(device)
        self._graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(device)
        with torch.cuda.stream(self.stream):
            for _ in range(_SUPPORT):
                self._layers()
        torch.cuda.synchronize(device)
        with torch.cuda.graph(self._graph, stream=self.stream):
            self._out = self._layers()

    def _layers(self) -> Any:
        rows = self._rows
        for matrix in self._matrices:
            rows = self._torch.mm(rows, matrix)
        return rows

    def step(self) -> None:
        """Queue one step."""
        with self._torch.cuda.stream(self.stream):
            self._graph.replay()
