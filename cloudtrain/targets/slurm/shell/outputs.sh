
cd "$1" || exit 1
if [ -e outputs.json ]; then exec cat outputs.json; fi
for name in model checkpoint outputs/*; do [ ! -d "$name" ] || printf '%s\n' "$name"; done
