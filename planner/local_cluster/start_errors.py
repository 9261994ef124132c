"""Tells an error of a start that was too slow, or lost a process, from one that would come again in the same way."""

# Ray raises a bare Exception or RuntimeError with these texts when one of its own limits has passed, or when its GCS
# has ended. tests/dispatch/test_start_errors.py finds them in the installed Ray.
RAYS_TEXTS = (
    "timed out",
    "connection error: ",
    "Failed to get node info",
    "No node info found matching attributes",
    "may not have started successfully",
)
# By name, because this module does not import Ray. A call to the GCS that got no answer raises it.
_RAYS_KIND = "RpcError"


def is_late(error: BaseException) -> bool:
    """Whether something did not answer in time or has ended, so that another try may succeed."""
    if isinstance(error, (TimeoutError, ConnectionError)):
        return True
    if any(kind.__name__ == _RAYS_KIND for kind in type(error).__mro__):
        return True
    # A ValueError is about what Ray was given, whatever it quotes.
    return not isinstance(error, (ValueError, AssertionError)) and _says_so(str(error).lower())


def _says_so(text: str) -> bool:
    return any(rays.lower() in text for rays in RAYS_TEXTS)
