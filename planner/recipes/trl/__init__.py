"""TRL and the alignment-handbook: their keys, how planner makes a job of them, and how it writes one."""
