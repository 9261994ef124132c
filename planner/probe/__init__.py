"""Measures a cluster's storage, network and GPU copies for `planner probe`. It knows neither Ray nor the terminal."""
