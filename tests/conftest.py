"""Settings for every test."""

import signal
import subprocess
import sys

import pytest
from fixed_examples import empty_the_pool, register_profiles
from hypothesis import settings

pytest_plugins = ["outcomes", "process_guard"]

register_profiles()
settings.load_profile("planner")

# A shell starts a background job with SIGINT ignored. Then nothing here could be interrupted, nor what tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Where tests are -> the name of what they share. One process of pytest runs all that share something.
_SHARED = {"tests/dispatch/": "ray", "tests/chaos/": "ray", "tests/trl/": "trl"}

# Families of causal language models, as small as they go.
_SIZES = {
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES = {
    "llama": {"num_key_value_heads": 2, "tie_word_embeddings": False},
    "qwen2": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "qwen3": {"num_key_value_heads": 1, "head_dim": 8, "tie_word_embeddings": True},
    "gpt_neox": {"tie_word_embeddings": False},
    "gemma4_text": {  # with a buffer that files hold, and one that is computed in a module that has weights
        "num_key_value_heads": 1,
        "head_dim": 8,
        "global_head_dim": 8,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 256,
    },
    "mistral": {"num_key_value_heads": 2, "sliding_window": 4},
    "mixtral": {"num_key_value_heads": 2, "num_local_experts": 4, "tie_word_embeddings": False},
    "smollm3": {"num_key_value_heads": 2, "pad_token_id": 0},
}


def pytest_configure(config):
    """`--hypothesis-profile=properties` keeps Hypothesis' pool of literals."""
    if config.getoption("--hypothesis-profile") != "properties":
        empty_the_pool()


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their markers
def pytest_collection_modifyitems(items):
    """Worker processes and Ray clusters are processes."""
    for item in items:
        if item.get_closest_marker("fsdp") or item.get_closest_marker("ray"):
            item.add_marker("process")


@pytest.hookimpl(tryfirst=True)  # before fixtures
def pytest_runtest_setup():
    """Each test draws the same numbers from torch, whatever ran before. A new process has a random seed."""
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(0)


def pytest_xdist_make_scheduler(config, log):
    """With `--dist loadgroup`, tests that share something run in one process. Others run anywhere.

    Groups by marker do not work: xdist 3.8 does not find them in the ids of pytest 9.2, and says nothing.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByWhatIsShared(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return next((shared for place, shared in _SHARED.items() if nodeid.startswith(place)), nodeid)

    return ByWhatIsShared(config, log) if config.getoption("dist") == "loadgroup" else None


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """`tiny_model(family, dtype="float32", max_shard_size="5GB", **changes)` -> a folder with random weights."""

    def make(family, dtype="float32", max_shard_size="5GB", **changes):
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.for_model(family, **{**_SIZES, **FAMILIES.get(family, {}), **changes})
        folder = tmp_path_factory.mktemp(family)
        with torch.random.fork_rng():
            torch.manual_seed(7)
            model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if parameter.ndim == 1:  # ones and zeros would hide that one of them was not read
                        parameter.add_(torch.randn_like(parameter) * 0.1)
                    if "embed" in name and parameter.ndim == 2:
                        parameter.mul_(20)  # attention that sees the difference
        model.save_pretrained(folder, max_shard_size=max_shard_size)
        return folder

    return make


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB of its own, which only root can make."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "none", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
