source common.sh
run=$1 name=$2
source find_job.sh
source lock.sh

found=$(find_job) || exit
if [ -z "$found" ]; then rm -f "$run"/sending.* "$run/job.sh" "$run/outputs.json"; fi
printf '%s\n' "$found"
