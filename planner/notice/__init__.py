"""Preemption notices of clouds: which metadata server to ask, what its answers mean, and which notices are new.

Standard library only. This package does not know Ray: the caller hands in what to do with a notice.
"""
