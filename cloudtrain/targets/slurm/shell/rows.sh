
cd "$1/metrics" 2>/dev/null || exit 0
find . -mindepth 1 -maxdepth 1 -type f \( -name '*.rows' -o -name '*.names' -o -name '*.jsonl' \) -printf '%s %P\n'
