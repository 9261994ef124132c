"""Everything of Ray's that is not its public interface, in one file; tested against Ray 2.60.

`tests/ray/test_private.py` is the contract. Nothing here is needed for training itself: without these calls a
refusal is still a refusal, it is only told less well.
"""

_NAMESPACE = b"planner"


def put_word(key: str, word: str) -> None:
    """Leave a word for the driver in the cluster's key-value store (the GCS), from any of its processes."""
    from ray.experimental.internal_kv import _internal_kv_put

    _internal_kv_put(key.encode(), word.encode(), overwrite=True, namespace=_NAMESPACE)


def get_word(key: str) -> str:
    """The word left under `key`, or the empty string."""
    from ray.experimental.internal_kv import _internal_kv_get

    return (_internal_kv_get(key.encode(), namespace=_NAMESPACE) or b"").decode()
