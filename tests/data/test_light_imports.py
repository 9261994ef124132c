"""What looks at paths and at model folders alone must not wait for numpy."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process


@pytest.mark.parametrize("module", ["planner.data", "planner.data.paths", "planner.data.model_folder"])
def test_it_loads_without_numpy(module):
    """By what a fresh interpreter has loaded afterwards."""
    code = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert module in loaded
    assert not {"numpy", "torch", "ray", "transformers", "huggingface_hub"} & set(loaded)
