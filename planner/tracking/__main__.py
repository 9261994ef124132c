"""`python -m planner.tracking`: see `planner.tracking.child`."""

import os

from planner.tracking.child import main

if __name__ == "__main__":
    # A tracker's library may hang, also in a function that it runs at exit. Everything that counts is on disk.
    os._exit(main())
