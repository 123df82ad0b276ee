
export LC_ALL=C
if [ -d "$1" ]; then cd "$1" && below=. || exit 1
elif [ -e "$1" ]; then cd "$(dirname "$1")" && below=./$(basename "$1") || exit 1
else exit 3; fi
pack() {
  find -L "$below" -type f -print0 |
    tar --create --dereference --hard-dereference --no-recursion --null --files-from=- --file=- >&4
  [ "${PIPESTATUS[1]}" -le 2 ]
}
{ said=$(pack 2>&1); code=$?; } 4>&1
errors=$(grep -v -e 'File system loop detected' -e 'Too many levels of symbolic links' \
  -e 'No such file or directory' -e 'File removed before we read it' -e 'file changed as we read it' \
  -e 'File shrank by' -e 'Exiting with failure status' <<<"$said")
[ -z "$errors" ] || { printf '%s\n' "$errors" >&2; exit 2; }
exit "$code"
