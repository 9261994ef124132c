#!/usr/bin/env bash
# Refuses a commit whose subject is longer than 72 characters. The argument is the file with the commit's message.
set -euo pipefail
subject=$(grep -v -m 1 '^#' "$1" || true)
if [ "${#subject}" -gt 72 ]; then
    echo "The subject has ${#subject} characters. Shorten it to 72: $subject" >&2
    exit 1
fi
