source common.sh

unset LC_ALL
setup=$(cat)
timeout --kill-after=5 60 bash -lc "$setup
set +eu
exec \"\$@\"" cloudtrain "$@" </dev/null 2>&1
printf '\n@code %s\n' $?
