"""Our YAML <-> the Job value; an error names the key's path, what was found and what to write.

This room reads less than YAML: one document of plain mappings, lists and scalars. Anchors, aliases, merge
keys, tags and directives are refused, so that a file is what it looks like. Scalars follow the YAML 1.2 core
schema without its octal and hexadecimal numbers: `1e-3` is a number, while `no`, `010`, `1_000`, `1:30` and
dates are text. It knows no field of a job: bounds and names come from the model's own JSON Schema.
"""

from planner.files.job_file import dump_job, parse_job, read_job

__all__ = ["dump_job", "parse_job", "read_job"]
