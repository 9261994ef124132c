"""All shipped recipes as files, once."""

import pytest
import recipes


@pytest.fixture(scope="session")
def shipped(tmp_path_factory):
    """The recipes of the table, by name."""
    return {each.id: each for each in recipes.write_all(tmp_path_factory.mktemp("recipes"))}
