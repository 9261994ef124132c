"""Tells Hydra's own options on a command line, such as `--config-name other`, from overrides."""

from collections.abc import Sequence
from dataclasses import dataclass

# Options that take a value, by their long name.
_WITH_VALUE = {
    "--config-name": "-cn",
    "--config-path": "-cp",
    "--config-dir": "-cd",
    "--package": "-p",
    "--cfg": "-c",
    "--experimental-rerun": "",
}
_FLAGS = {"--multirun": "-m", "--run": "-r", "--resolve": ""}
# With these Hydra prints something and starts no training.
_PRINTS = {"--help": "-h", "--hydra-help": "", "--version": "", "--shell-completion": "-sc", "--info": "-i"}
_PRINTS_WITH_VALUE = ("--cfg", "--package")
_INFOS = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")


@dataclass(frozen=True, kw_only=True)
class HydraOptions:
    """Hydra's own options on a command line."""

    config_name: str | None = None
    config_path: str | None = None
    """the folder of the configuration, from the script's folder"""
    config_dir: str | None = None
    """a second folder of configurations"""
    is_multirun: bool = False
    no_training: str = ""
    """an option with which Hydra trains nothing, or what another run trained. Empty if there is none"""
    taken: tuple[str, ...] = ()
    """the options as written, with their values"""
    arguments: tuple[str, ...] = ()
    """all other arguments"""


def read(arguments: Sequence[str]) -> HydraOptions:
    """The options among a program's arguments, which may stand anywhere."""
    values: dict[str, str] = {}
    taken: list[str] = []
    others: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        name, sign, value = argument.partition("=")
        long = _long(name)
        if not long:
            others.append(argument)
            continue
        takes = long in _WITH_VALUE or (long == "--info" and rest[:1] and rest[0] in _INFOS)
        if takes and not sign and rest:
            value = rest.pop(0)
            argument = f"{argument} {value}"
        taken.append(argument)
        values[long] = value
    prints = [name for name in (*_PRINTS, *_PRINTS_WITH_VALUE, "--experimental-rerun") if name in values]
    return HydraOptions(
        config_name=values.get("--config-name"),
        config_path=values.get("--config-path"),
        config_dir=values.get("--config-dir"),
        is_multirun="--multirun" in values,
        no_training=prints[0] if prints else "",
        taken=tuple(taken),
        arguments=tuple(others),
    )


def _long(name: str) -> str:
    """The long name of one of Hydra's options, empty if it is none."""
    known = _WITH_VALUE | _FLAGS | _PRINTS
    return name if name in known else next((long for long, short in known.items() if short and short == name), "")
