source common.sh
run=$1 name=$2 token=$3
source find_job.sh
source lock.sh

found=$(find_job) || exit
if [ -z "$found" ]; then touch "$run/sending.$token" || exit 1; fi
printf '%s\n' "$found"
