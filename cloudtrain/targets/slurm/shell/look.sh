source common.sh

unset SLURM_TIME_FORMAT
folder=$1; shift
while [ ! -e "$folder" ]; do parent=$(dirname "$folder"); [ "$parent" != "$folder" ] || break; folder=$parent; done
[ -d "$folder" ] && [ -w "$folder" ] && echo '@folder yes'
sinfo --all --noheader --format='%P|%a|%l|%F|%G' | sed 's/^/@partition /'
[ "${PIPESTATUS[0]}" = 0 ] || exit 1
# Its last word is about the job; the folder of the run need not be there for a test.
answer=$("$@" --chdir=/ --test-only 2>&1)
printf '@code %s\n' $?
date '+@now %Y-%m-%dT%H:%M:%S'
sed 's/^/@test /' <<<"$answer"
