#!/usr/bin/env bash
# Measures memprof on this machine's GPU, in at most eight minutes and without a network:
#
#   bash run.sh OUT [--minutes 8] [--only values memory ...]
#
# PYTHON names the interpreter, python3 by default; its torch is used as it is. Results come to OUT
# as they are known, and end as one archive there. Nothing else is kept.
set -euo pipefail
kit=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ $# -ge 1 ] || { echo "usage: bash run.sh OUT [--minutes 8] [--only values ...]" >&2; exit 2; }
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Of what is compiled, only what is not there: other packages were built beside it.
wheels=()
for wheel in "$kit"/wheels/*.whl; do
  name=$(basename "$wheel")
  case $name in
    *-none-any.whl) ;;
    *) "$python" -c "import importlib.metadata as m; m.version('${name%%-*}')" 2> /dev/null && continue ;;
  esac
  wheels+=("$wheel")
done
"$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir \
  --disable-pip-version-check --target "$work/site" "${wheels[@]}"

export PYTHONPATH=$work/site:$kit/benchmarks${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
export MEMPROF_CACHE=$work/cache TORCHINDUCTOR_CACHE_DIR=$work/inductor TRITON_CACHE_DIR=$work/triton
# Plugins that happen to be there may want another pytest.
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
"$python" -m memprof doctor || true  # what will not work, before it fails
"$python" -m proof.run "$@"
