"""The one error a user can act on.

KvplanError
 ├─ UsageError     the command line itself is wrong (exit 2)
 └─ LimitError     the answer is known, and it does not fit (exit 3)

Everything else that escapes is a bug and may show a traceback.
"""

from __future__ import annotations


class KvplanError(Exception):
    """Something the user can act on: one line that names the file, line or key and what to do.

    It often quotes what stands in a file: line breaks and control characters in that are written out, as `\\n`.
    """

    exit_code = 1

    def __str__(self) -> str:
        return "".join(ch if ch.isprintable() else repr(ch)[1:-1] for ch in super().__str__())


class UsageError(KvplanError):
    """The command line asks for something that has no meaning."""

    exit_code = 2


class LimitError(KvplanError):
    """What was asked for exceeds a limit of this machine or of the policy."""

    exit_code = 3
