
cd "$1/logs" 2>/dev/null || exit 0
find . -mindepth 2 -maxdepth 2 -name 'node_*.log' -printf '%s %T@ %P\n'
