#!/bin/bash
# Custom plugin of the Kubernetes node-problem-detector: 0 is fine, 1 a problem, 2 unknown; the output is the message.
#
# It runs as a daemon set, so let it see the host: hostNetwork, hostPID, and /dev/infiniband and /sys mounted.
# Arguments are passed on to `kvdiag preflight`.
set -u

report=$(timeout --kill-after=5 "${KVDIAG_PREFLIGHT_LIMIT_S:-50}" kvdiag preflight "$@" 2>/dev/null)
case $? in
    0)
        echo "KV transfers are ready"
        exit 0
        ;;
    1 | 2)
        # The gravest finding's line; the detector cuts it at max_output_length.
        printf '%s' "$report" | grep -m 1 -E '^(CRITICAL|WARNING) '
        exit 1
        ;;
    *)
        echo "kvdiag preflight could not judge this node"
        exit 2
        ;;
esac
