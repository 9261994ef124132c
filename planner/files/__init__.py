"""Our YAML <-> the Job, Ray's YAML -> the Cluster; an error names the key's path, what was found, what to write.

Of a job this room reads less than YAML: one document of plain mappings, lists and scalars. Anchors, aliases, merge
keys, tags and directives are refused, so that a file is what it looks like. Scalars follow the YAML 1.2 core
schema without its octal and hexadecimal numbers: `1e-3` is a number, while `no`, `010`, `1_000`, `1:30` and
dates are text. It knows no field of a job: bounds and names come from the model's own JSON Schema.
"""

from planner.files.cluster_file import read_cluster
from planner.files.job_file import dump_job, parse_job, read_job

__all__ = ["dump_job", "parse_job", "read_cluster", "read_job"]
