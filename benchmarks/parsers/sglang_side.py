"""SGLang's own ServerArgs on our commands. Run by SGLang's Python, not by kvplan's."""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module
from importlib.metadata import version
from typing import Any


def main() -> None:
    """Every case, an error of SGLang's as its words."""
    parser = argparse.ArgumentParser()
    import_module("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
    with open(sys.argv[1]) as stream:
        cases = json.load(stream)
    found: dict[str, Any] = {}
    for case in cases:
        try:
            args = parser.parse_args(case["argv"][2:])
            sizes = {"--hicache-size": int(args.hicache_size * 1e9)} if args.enable_hierarchical_cache else {}
            found[case["id"]] = {"ranks": args.tp_size * args.pp_size, "sizes": sizes}
        except (Exception, SystemExit) as error:
            found[case["id"]] = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps({"version": version("sglang"), "cases": found}))


if __name__ == "__main__":
    main()
