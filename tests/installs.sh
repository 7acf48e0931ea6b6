#!/usr/bin/env bash
# Installs this package in the ways that people do, and runs a job of two ranks with each: tests/installs.sh
#
# TORCH is the requirement that brings torch ("torch" by default); where from is for pip's and uv's variables to say.
# PYTHON is the interpreter, which others than its owner must be able to run.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
# What a job leaves running for the next one ends in a second, and may write until then.
export NBTORCHJOB_POOL_IDLE_S=1
trap 'chmod -R u+w "$work"; rm -rf "$work" 2>/dev/null || { sleep 5; rm -rf "$work"; }' EXIT
chmod 755 "$work"
torch=${TORCH:-torch}
python=${PYTHON:-python3}
export UV_TOOL_DIR=$work/tools UV_TOOL_BIN_DIR=$work/bin UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=copy
printf 'import os\n\ndef ranks():\n    return int(os.environ["WORLD_SIZE"])\n' > "$work/job.py"

# What it is called, then the command that runs it.
job() {
  local name=$1 said; shift
  mkdir -p "$work/home" && chmod 777 "$work/home"
  said=$(cd "$work" && env -u PYTHONPATH HOME="$work/home" XDG_STATE_HOME="$work/home/${name// /-}" \
    XDG_CACHE_HOME="$work/home/cache" "$@" run --quiet --nproc-per-node 2 job.py:ranks)
  [ "$said" = 2 ] || { echo "not ok  $name: $said"; exit 1; }
  echo "ok  $name"
}

python3 -m venv "$work/uv"
"$work/uv/bin/python" -m pip install --quiet uv
uv=$work/uv/bin/uv
"$uv" build --quiet --wheel --out-dir "$work/dist" "$here"
wheel=$(ls "$work"/dist/*.whl)

"$uv" venv --quiet --python "$python" "$work/a"
"$uv" pip install --quiet --python "$work/a/bin/python" "$wheel[local,kubernetes]" "$torch"
job "uv pip install" "$work/a/bin/nbtorchjob"

"$uv" tool install --quiet --python "$python" --with "$torch" "$wheel[local]"
job "uv tool install" "$work/bin/nbtorchjob"

# Who isn't root can't write to read-only files; root can, so it lays its rights down.
find "$work/a" -name __pycache__ -prune -exec rm -rf {} +
chmod -R a-w "$work/a"
as_nobody=()
if [ "$(id -u)" = 0 ]; then as_nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups); fi
if "${as_nobody[@]}" test -x "$(readlink -f "$work/a/bin/python")"; then
  job "read-only packages, not root" "${as_nobody[@]}" "$work/a/bin/nbtorchjob"
else
  echo "skipped  read-only packages, not root: nobody else may run $(readlink -f "$work/a/bin/python")"
fi

# The packages of a system's Python, and a venv on top that has only this one.
"$uv" venv --quiet --python "$python" --system-site-packages --seed "$work/b"
"$work/a/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
  "$("$work/b/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/below.pth"
"$work/b/bin/python" -m pip install --quiet --no-deps --force-reinstall "$wheel"
job "a venv upon others' packages" "$work/b/bin/nbtorchjob"
