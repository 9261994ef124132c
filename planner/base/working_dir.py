"""Files that Ray unpacked for a submitted job, named as in the folder that they were submitted from.

Ray unpacks a job's working directory into a folder of its session, such as
`/tmp/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_2`. That folder is gone when the cluster is.
"""

import re

_FOLDER = "/runtime_resources/working_dir_files/"
# A path begins after a space, a quote, a bracket or a sign. In a URL two slashes come first, and it is left alone.
_UNPACKED = re.compile(r"(?<![^\s'\"(=:\[])/(?!/)[^\s'\"]*?" + _FOLDER + r"[^\s'\"/:,;)]+(/(?=[^\s'\"]))?")


def as_submitted(text: str) -> str:
    """The text with paths in a job's unpacked folder made relative to it. Other texts are unchanged."""
    return _UNPACKED.sub(lambda found: "" if found[1] else ".", text)
