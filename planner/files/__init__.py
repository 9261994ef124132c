"""Our YAML <-> `Job`, Ray's and KubeRay's YAML -> `Cluster`. An error names the key, what was found and what to write.

A job file is a subset of YAML: one document of plain mappings, lists and scalars. Anchors, aliases, merge keys, tags
and directives are refused, so that a file means what it shows. Scalars follow the YAML 1.2 core schema without octal
and hexadecimal numbers: `1e-3` is a number, while `no`, `010`, `1_000`, `1:30` and dates are text. This package knows
no field of a job: bounds and names come from the model's JSON Schema. Clusters are read by `cluster_file`, which only
`planner plan --cluster` imports.
"""

from planner.files.job_file import dump_job, parse_job, read_job

__all__ = ["dump_job", "parse_job", "read_job"]
