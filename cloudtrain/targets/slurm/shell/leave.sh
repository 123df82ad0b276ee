[ -z "$watch" ] || kill "$watch" 2>/dev/null
[ ! -e "$CLOUDTRAIN_LOGS/stopping" ] || status=0
[ $status = 0 ] || (set -C; echo $status >"$CLOUDTRAIN_LOGS/failed") 2>/dev/null
exit $status
