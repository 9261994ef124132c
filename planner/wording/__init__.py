"""Events as sentences for people. Nothing reads these texts back: rooms that decide cannot import this one."""
