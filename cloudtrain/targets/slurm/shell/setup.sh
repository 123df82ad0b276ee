
# The settings' own lines. If one of them ends the script, no rank has run, and that is no success.
trap 'note broken setup; exit 1' EXIT
@lines@
set +eu
[[ "$(trap -p EXIT)" != *"note broken setup"* ]] || trap - EXIT
cd "$code" || exit 1
