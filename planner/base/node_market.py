"""The label by which Ray's nodes say how they are rented."""

MARKET_LABEL = "ray.io/market-type"
"""Ray's own name of it. KubeRay and cluster files set it (https://docs.ray.io/en/latest/ray-core/scheduling/labels.html)"""
ON_DEMAND = "on-demand"
"""the label's value on a node that no cloud takes back"""
