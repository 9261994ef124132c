"""Sends a job to a cluster's dashboard. The cluster then runs it without this machine."""
