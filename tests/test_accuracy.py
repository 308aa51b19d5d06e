"""docs/accuracy.md: every figure that it claims is what the command beside it gives."""

from __future__ import annotations

import json
import re
from pathlib import Path

from typer.testing import CliRunner

from kvplan.cli import app

PAGE = Path(__file__).resolve().parents[1] / "docs" / "accuracy.md"
ROW = re.compile(
    r"^\| (?P<question>[^|]+) \| (?P<truth>[\d,]+) B \|[^|]*\| `(?P<command>[^`]+)` \| (?P<ours>[\d,]+) B \|$"
)


def test_every_line_can_be_run() -> None:
    rows = [found for line in PAGE.read_text(encoding="utf-8").splitlines() if (found := ROW.match(line))]
    assert len(rows) == 18
    for row in rows:
        done = CliRunner().invoke(app, ["estimate", *row["command"].split(), "--json"])
        assert done.exit_code == 0, done.output
        kv = json.loads(done.stdout)["data"]["kv"]
        if kv["bytes_at"]:
            figure = kv["bytes_at"][0]["steady_bytes"]
        else:
            figure = kv["bytes_per_token_per_gpu" if "--tp" in row["command"] else "bytes_per_token"]
        assert f"{figure:,}" == row["ours"] == row["truth"], row["question"]
