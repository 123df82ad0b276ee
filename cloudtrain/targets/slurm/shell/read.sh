
cd "$1/logs" || exit 1
shift
while [ $# -gt 0 ]; do tail -c "+$(($2 + 1))" "$1" | head -c "$3"; shift 3; done
