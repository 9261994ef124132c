"""What a command says when Ctrl-C or SIGTERM ends it: what was stopped, and what is kept."""

from types import MappingProxyType

_UNCHANGED = "It changed nothing"
_KEPT = MappingProxyType(
    {
        "demo": "What is committed stays",
        "run": "What is committed stays, and the same command goes on from there",
        "submit": "If it said that the job was sent, the job goes on",
        "watch": "",
        "verify": "Nothing was compared, and its temporary runs are removed",
        "prepare": "No partial file remains",
        "export": "The folder appears only when it is complete",
        "probe": "Files of the probe are removed, unless the line above names them",
        "track": "What was sent stays. The same command goes on from there",
        "report": "The page is written last",
        "init": "The file is written last",
        "convert": "The file is written last",
    }
)


def interrupted_text(command: str) -> str:
    """One line about a command that was interrupted before it could say more itself. May be empty."""
    kept = _KEPT.get(command, _UNCHANGED)
    return f"{command} was interrupted. {kept}" if kept else ""
