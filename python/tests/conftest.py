"""$LPQ_ARTIFACTS names the folder of artifacts that test/python makes: NAME beside NAME.json (facts) and NAME.logits.safetensors."""

import os
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def threads():
    torch.set_num_threads(2)


@pytest.fixture(scope="session")
def artifacts() -> Path:
    if "LPQ_ARTIFACTS" not in os.environ:
        pytest.skip("LPQ_ARTIFACTS names no folder of artifacts: node scripts/test.mjs test/python makes one")
    return Path(os.environ["LPQ_ARTIFACTS"])
