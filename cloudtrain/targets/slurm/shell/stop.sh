source common.sh

run=$1
id=$(readlink "$run/job") || exit 1
touch "$run/stop" || exit 1
case "$(squeue --noheader --states=all --jobs="$id" --format=%T 2>/dev/null)" in
  SUSPENDED|STOPPED) scancel "$id"; exit ;;  # its processes cannot save, because none of them runs
esac
scancel --state=PENDING "$id" 2>/dev/null
scancel --batch --signal=TERM "$id" 2>/dev/null
exit 0
