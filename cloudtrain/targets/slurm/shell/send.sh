source common.sh
run=$1 name=$2 token=$3 outputs=$4; shift 4
source find_job.sh
source lock.sh

found=$(find_job) || exit
if [ -n "$found" ]; then printf 'found %s\n' "$found"; exit 0; fi
[ -e "$run/sending.$token" ] || { echo "error: the request was withdrawn" >&2; exit 22; }
cat >"$run/job.sh.new" && mv "$run/job.sh.new" "$run/job.sh" && printf %s "$outputs" >"$run/outputs.json" || exit 1
said=$("$@" </dev/null) || exit 23
id=$(grep -Eo '^[0-9]+' <<<"$said" | tail -n 1)  # a site's own sbatch may greet first
[ -n "$id" ] || { printf 'error: sbatch printed no number: %s\n' "$said" >&2; exit 23; }
ln -sn "$id" "$run/job" 2>/dev/null
rm -f "$run"/sending.*
printf 'sent %s\n' "$id"
