source common.sh

cd "$1/runs" 2>/dev/null || exit 0
find . -mindepth 2 -maxdepth 2 -name job -type l -printf '%T@ %h\n' | sort -rn | sed 's/^[^ ]* \.\///'
