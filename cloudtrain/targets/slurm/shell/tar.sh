
export LC_ALL=C
roots=()
for root in "${@:2}"; do roots+=("$(readlink -m -- "$root")"); done
leaves() {
  local link=$1 root target
  shift
  target=$(readlink -f -- "$link") || return 1
  for root; do [[ $target/ != "${root%/}"/* ]] || return 1; done
  [ "$#" -gt 0 ] || return 1
  case $link in ./*) link=$PWD/${link#./} ;; esac
  printf 'cloudtrain: `%s` is not copied: a link leads to `%s`, which is not a part of the run\n' \
    "${link//[[:cntrl:]]/?}" "${target//[[:cntrl:]]/?}" >&2
}
if leaves "$1" "${roots[@]}"; then exit 4; fi
if [ -d "$1" ]; then cd "$1" && below=. || exit 1
elif [ -e "$1" ]; then cd "$(dirname "$1")" && below=./$(basename "$1") || exit 1
else exit 3; fi
list() {
  find -L "$below" -xtype l -type d -exec bash -c "$(declare -f leaves); leaves \"\$@\"" leaves {} "${roots[@]}" \; -prune \
    -o -type f -print0
}
ours() {
  while IFS= read -r -d '' file; do
    if [ ! -L "$file" ] || ! leaves "$file" "${roots[@]}"; then printf '%s\0' "$file"; fi
  done
}
pack() {
  list | ours | tar --create --dereference --hard-dereference --no-recursion --null --files-from=- --file=- >&4
  [ "${PIPESTATUS[2]}" -le 2 ]
}
{ said=$(pack 2>&1); code=$?; } 4>&1
grep '^cloudtrain: ' <<<"$said" >&2
errors=$(grep -v -e '^cloudtrain: ' -e 'File system loop detected' -e 'Too many levels of symbolic links' \
  -e 'No such file or directory' -e 'File removed before we read it' -e 'file changed as we read it' \
  -e 'File shrank by' -e 'Exiting with failure status' <<<"$said")
[ -z "$errors" ] || { printf '%s\n' "$errors" >&2; exit 2; }
exit "$code"
