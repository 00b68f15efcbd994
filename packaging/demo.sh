#!/bin/sh
# One question to the bundled model, on a daemon of its own that is stopped again: `demo.sh BIN`.
# Its data lies in ./demo; an already running Stoker is neither used nor disturbed.
set -eu
bin=$1
export STOKER_HOME="$PWD/demo"
mkdir -p "$STOKER_HOME/config"
cat >"$STOKER_HOME/config/config.toml" <<'END'
[gateway]
port = 0            # any free port, so that the demo disturbs nobody
[control]
tcp = ""
END

echo "1. Starting a Stoker daemon. Its data and log are in $STOKER_HOME."
"$bin/stoker" serve >"$STOKER_HOME/serve.log" 2>&1 &
daemon=$!
trap 'kill -TERM $daemon 2>/dev/null || true; wait $daemon 2>/dev/null || true' EXIT
tries=0
until "$bin/stoker" status >/dev/null 2>&1; do
  tries=$((tries + 1))
  if [ $tries -gt 150 ] || ! kill -0 $daemon 2>/dev/null; then
    echo "The daemon did not come up. Its last words:" >&2
    tail -20 "$STOKER_HOME/serve.log" >&2
    exit 1
  fi
  sleep 0.2
done

echo "2. Loading SmolLM2 (135 million parameters, from a Python package) and asking it a question."
echo "   It is very small: the point is that it answers, not what it says."
echo
"$bin/stoker" run bundled:smollm2-135m "What does a stoker on a steam ship do? Answer in one sentence."
echo
echo "3. What is in memory now:"
"$bin/stoker" ps
echo
echo "4. Stopping the daemon: it ends the engine first and proves that it is gone."
kill -TERM $daemon
trap - EXIT
if wait $daemon; then
  echo "Done. Nothing is left running. Next: README.md, section \"Using it\"."
else
  status=$?
  echo "The daemon ended with status $status; see $STOKER_HOME/serve.log" >&2
  exit $status
fi
