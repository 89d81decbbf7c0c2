"""LPQ_REQUIRE_VERIFY=1: what `lpq verify` has not passed is not opened."""

from __future__ import annotations

import os
import shlex
import subprocess
from functools import lru_cache

from ._library import Error


@lru_cache(maxsize=None)
def require_verified(directory: str) -> None:
    """Runs `lpq verify` on an artifact, once a process; LPQ_COMMAND is another command than `lpq`.

    Raises Error with its first finding for what does not pass, and where there is no such command.
    """
    command = shlex.split(os.environ.get("LPQ_COMMAND", "lpq"))
    try:
        ran = subprocess.run([*command, "verify", directory, "--quiet"], capture_output=True, text=True)
    except OSError as error:
        raise Error("LPQ_ERROR_FILE", f"LPQ_REQUIRE_VERIFY asks for lpq verify, and '{command[0]}' does not run ({error.strerror}): set LPQ_COMMAND") from None
    if ran.returncode != 0:
        told = [line.strip() for line in f"{ran.stderr}\n{ran.stdout}".split("\n") if line.strip()]
        raise Error("LPQ_ERROR_ARTIFACT", f"lpq verify does not pass it: {told[0] if told else f'it ended with {ran.returncode}'}")
