
mkdir -p "$run" || exit 1
exec 9>"$run/lock" || exit 1
flock --wait 90 --conflict-exit-code 20 9 || {
  [ $? != 20 ] || { echo "error: another command holds $run/lock" >&2; exit 20; }
  exit 24
}
