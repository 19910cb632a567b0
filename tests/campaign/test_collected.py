"""A whole campaign begins: what it takes, which no test by day does, is collected without an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_what_a_whole_campaign_takes_is_collected() -> None:
    files = [str(path) for path in sorted(TESTS.rglob("test_*.py")) if "support.campaign" in path.read_text("utf-8")]
    assert len(files) > 20
    whole = {"MINICNN_CAMPAIGN": "full", "MINICNN_EVERY_CASE": "1", "HYPOTHESIS_PROFILE": "nightly"}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(
        command, env=os.environ | whole, cwd=TESTS.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
