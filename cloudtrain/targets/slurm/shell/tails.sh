source common.sh

cd "$1/logs" 2>/dev/null || exit 0
cd "$(ls | sort -n | tail -n 1)" 2>/dev/null || exit 0
for file in *.stderr.log; do
  [ -s "$file" ] || continue
  printf '@file %s\n' "$file"
  tail -c 8192 "$file" | sed 's/^/ /'
done
if [ -s "$1/slurm.out" ]; then printf '@file slurm.out\n'; tail -c 4096 "$1/slurm.out" | sed 's/^/ /'; fi
