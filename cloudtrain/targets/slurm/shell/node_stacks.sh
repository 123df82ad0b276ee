# Ask the ranks of this node where they are. A signal goes only to a process that has the id, the start and the handlers
# of the one that has registered: it would kill any other. A main thread that runs Python code answers the first signal;
# one that does not is in C code, where it is safe to interrupt it with the second one.
cd "$1/ranks" || exit 1
boot=$(</proc/sys/kernel/random/boot_id)
tree() {
  echo "$1"
  local child
  for child in $(cat "/proc/$1"/task/*/children 2>/dev/null); do tree "$child"; done
}
look() {  # the state, the start and the ticks of the process $1 and of all that it has started
  local pid ticks=0 own=
  for pid in $(tree "$1"); do
    fields=$(cat "/proc/$pid/stat" 2>/dev/null) || continue
    fields=(${fields##*) })
    [ "$pid" != "$1" ] || own="${fields[0]} ${fields[19]}"
    ticks=$((ticks + fields[11] + fields[12] + fields[13] + fields[14]))
  done
  echo "$own $ticks"
}
ask() {  # send a signal to the rank of process $1 if it has a handler for it, and no signal has stopped it
  local caught state
  caught=$(sed -n 's/^SigCgt:[^0-9a-f]*//p' "/proc/$1/status" 2>/dev/null)
  state=$(sed -n 's/^State:[^A-Za-z]*\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null)
  if [ "$state" != T ] && ((16#${caught:-0} >> ($2 - 1) & 1)); then kill -"$2" "$1"; fi
}
record='^\{"pid": ([0-9]+), "start": "([0-9]+)", "boot": "([^"]*)", "host": "[^"]*", "rank": ([0-9]+), '
asked=()
for file in *.json; do
  line=$(<"$file")
  [[ $line =~ $record ]] || continue
  pid=${BASH_REMATCH[1]} start=${BASH_REMATCH[2]} rank=${BASH_REMATCH[4]}
  [ "${BASH_REMATCH[3]}" = "$boot" ] || continue
  read -r state now ticks <<<"$(look "$pid")"
  if [ "$now" != "$start" ]; then printf '@answer %s - 0\n' "$rank"; continue; fi
  size=$(stat -c %s "$rank.stacks" 2>/dev/null || echo 0)
  number=0
  if [[ $line =~ \"signal\":\ ([0-9]+) ]]; then
    number=${BASH_REMATCH[1]}
    ask "$pid" "$number"
  fi
  asked+=("$pid $rank $ticks $size $number")
done
began=$(date +%s%N)
sleep 2
for one in "${asked[@]}"; do
  read -r pid rank _ size number <<<"$one"
  if [ "$number" != 0 ] && [ "$(stat -c %s "$rank.stacks")" = "$size" ]; then
    ask "$pid" $((number + 1))
    again=1
  fi
done
[ -z "${again-}" ] || sleep 0.2
for one in "${asked[@]}"; do
  read -r pid rank before size _ <<<"$one"
  read -r state _ ticks <<<"$(look "$pid")"
  passed=$(($(date +%s%N) - began))
  share=$(((ticks - before) * 1000000000 * 1000 / $(getconf CLK_TCK) / passed))
  {
    printf '@answer %s %s %s\n' "$rank" "${state:--}" "$share"
    tail -c "+$((size + 1))" "$rank.stacks" 2>/dev/null | sed 's/^/ /'
  } | cat
done
