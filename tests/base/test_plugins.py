"""Entry points: what installed packages add to planner, and what is said of a package that is broken."""

import pytest
from plugin_package import install

from planner.base.plugins import installed, installed_by_group
from planner.errors import PlannerError

GROUP = "planner.tests"


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_an_entry_point_is_found_by_its_name(site):
    """Its object, as it stands in the package's module; another group's is not there."""
    install(site, GROUP, {"two": "added_numbers:TWO", "one": "added_numbers:ONE"}, {"added_numbers": "ONE, TWO = 1, 2"})
    assert {name: plugin.load() for name, plugin in installed(GROUP).items()} == {"one": 1, "two": 2}
    assert list(installed(GROUP)) == ["one", "two"]
    assert not installed("planner.others")


def test_all_groups_of_planner_are_found_at_once(site):
    """Each as it is found alone. Groups of other systems are not there."""
    install(site, GROUP, {"two": "added_numbers:TWO", "one": "added_numbers:ONE"}, {"added_numbers": "ONE, TWO = 1, 2"})
    found = installed_by_group()
    assert found[GROUP] == installed(GROUP)
    assert list(found[GROUP]) == ["one", "two"]
    assert all(group.startswith("planner.") for group in found)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import no_such_module_at_all", "ModuleNotFoundError: No module named 'no_such_module_at_all'"),
        ("raise RuntimeError('first line\\nthe cause')", "RuntimeError: the cause"),
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        ("", "AttributeError: module 'broken_module_{}' has no attribute 'THING'"),
    ],
)
def test_a_broken_package_is_named_when_it_is_loaded_and_not_before(site, text, reason, request):
    """Listing plugins does not import them, so a broken one does no harm there."""
    module = f"broken_module_{abs(hash(request.node.name))}"
    install(site, GROUP, {"thing": f"{module}:THING"}, {module: text}, name="planner-broken")
    plugin = installed(GROUP)["thing"]
    with pytest.raises(PlannerError) as raised:
        plugin.load()
    told = f"planner.tests: thing of planner-broken 1.0 cannot be used ({reason}). Repair or uninstall the package"
    assert str(raised.value) == told.format(module.removeprefix("broken_module_"))


def test_two_packages_with_one_name_are_refused(site):
    """Which of them was meant cannot be known."""
    install(site, GROUP, {"one": "math:pi"}, {}, name="planner-first")
    install(site, GROUP, {"one": "math:e"}, {}, name="planner-second")
    with pytest.raises(
        PlannerError, match=r"one of planner-first 1\.0 and planner-second 1\.0 cannot be used \(several packages"
    ):
        installed(GROUP)["one"].load()


def test_a_guarded_function_raises_only_errors_of_planner(site):
    """Its own sentence stays; any other error is the package's."""
    text = """
from planner.errors import RecipeError

def works(x, *, y):
    return x + y

def refuses():
    raise RecipeError("no recipe")

def breaks():
    return {}["key"]

def exits():
    raise SystemExit
"""
    names = {name: f"guarded_module:{name}" for name in ("works", "refuses", "breaks", "exits")}
    install(site, GROUP, names, {"guarded_module": text})
    guarded = {name: plugin.guarded(plugin.load()) for name, plugin in installed(GROUP).items()}
    assert guarded["works"](1, y=2) == 3
    plugin = installed(GROUP)["works"]
    assert plugin.guarded(plugin.load(), makes=int | None)(1, y=2) == 3
    with pytest.raises(PlannerError, match=r"works of planner-extra 1\.0 cannot be used \(works returned float\)"):
        plugin.guarded(plugin.load(), makes=int | None)(1, y=2.0)
    with pytest.raises(PlannerError, match=r"^no recipe$"):
        guarded["refuses"]()
    with pytest.raises(PlannerError, match=r"breaks of planner-extra 1\.0 cannot be used \(KeyError: 'key'\)"):
        guarded["breaks"]()
    with pytest.raises(PlannerError, match=r"exits of planner-extra 1\.0 cannot be used \(SystemExit"):
        guarded["exits"]()
