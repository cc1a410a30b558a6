#!/bin/bash
# Prolog= of slurm.conf: a node with a critical finding is drained, and the job is queued again.
#
# Slurm drains the node when this ends with anything but 0, so only critical findings (2) do. What could not be
# determined (3) or went wrong with kvdiag itself (64 and above) is logged, and the job starts: a check that does not
# work must not empty a cluster. Arguments are passed on to `kvdiag preflight`.
set -u

textfiles=${KVDIAG_TEXTFILE_DIR:-/var/lib/prometheus/node-exporter}
limit_s=${KVDIAG_PREFLIGHT_LIMIT_S:-60}
say() { logger -t kvdiag-preflight -- "$1" 2>/dev/null || printf 'kvdiag-preflight: %s\n' "$1" >&2; }

report=$(timeout --kill-after=5 "$limit_s" kvdiag preflight --fail-on critical "$@" 2>&1)
code=$?
if [ -d "$textfiles" ]; then
    # For the textfile collector; the text above is for people.
    timeout --kill-after=5 "$limit_s" kvdiag preflight --fail-on critical --format prometheus \
        --out "$textfiles/kvdiag_preflight.prom" "$@" >/dev/null 2>&1
fi
case $code in
    0) exit 0 ;;
    2)
        say "$(printf '%s' "$report" | grep -m 1 '^CRITICAL')"
        exit 1
        ;;
    *)
        say "not judged (exit code $code): $(printf '%s' "$report" | head -n 1)"
        exit 0
        ;;
esac
