trap : TERM
[ ! -e "$CLOUDTRAIN_LOGS/stopping" ] || exit 0
