source common.sh

runs=$1; shift
queue() { squeue --noheader --states=all --jobs="$1" --format="$2" 2>&1; }
account() {
  sacct --noheader --parsable2 --allocations --duplicates --jobs="$1" --starttime=1970-01-01 --format="$2" 2>&1
}
silent=
for name in "$@"; do
  run=$runs/$name
  id=$(readlink "$run/job") || id=
  printf '@run %s\n@job %s\n' "$name" "$id"
  [ -n "$id" ] || continue
  printf '@sent %s\n' "$(stat --format=%Y "$run/job.sh" 2>/dev/null)"
  # Before the journal, which is complete when the job has ended.
  row=$(queue "$id" '%j|%T|%r|%V|%S|%e') || {
    case "$row" in *"Invalid job id"*) row= ;; *) echo "$row" >&2; exit 1 ;; esac
  }
  row=${row##*$'\n'}
  [ ! -e "$run/stop" ] || printf '@stop\n'
  sed 's/^/@note /' "$run/journal" 2>/dev/null
  tail --quiet --lines=20 "$run"/metrics/notices.*.jsonl 2>/dev/null | sed 's/^/@notice /'
  # Somebody may have renamed the job, but the path of its script stays. Numbers of jobs begin again some day.
  case "$row" in
    "$name|"*) ;;
    ?*) [ "$(queue "$id" %o)" = "$run/job.sh" ] || row= ;;
  esac
  if [ -n "$row" ]; then printf '@queue %s\n' "$row"; continue; fi
  if [ -z "$silent" ]; then
    rows=$(account "$id" JobName,State,ExitCode,Submit,Start,End) || case "$rows" in
      *"storage is disabled"*) rows= ;;
      *) silent=${rows:-sacct gave no reason} rows= ;;
    esac
  fi
  if [ -n "$silent" ]; then printf '@silent %s\n' "${silent##*$'\n'}"; continue; fi
  case "$rows" in
    ""|"$name|"*|*$'\n'"$name|"*) ;;
    *) case "$(account "$id" SubmitLine)" in *" $run/job.sh") printf '@renamed\n' ;; esac ;;
  esac
  [ -z "$rows" ] || sed 's/^/@account /' <<<"$rows"
done
