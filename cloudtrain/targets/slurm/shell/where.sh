source common.sh

# The node of a rank, by the files that it writes; without one the lowest rank, of the node $3 or of all.
run=$1 rank=$2 node=$3
id=$(readlink "$run/job") || exit 1
printf '@job %s\n' "$id"
cd "$run/logs" 2>/dev/null && cd "$(ls | sort -n | tail -n 1)" 2>/dev/null || exit 0
place=$(find . -name "node_${node:-*}.rank_${rank:-*}.stdout.log" | sed 's/[^0-9]\{1,\}/ /g' | sort -n -k2,2 | head -n 1)
printf '@ranks %s\n' "$(find . -name 'node_*.rank_*.stdout.log' | sed 's/.*rank_\([0-9]*\).*/\1/' | sort -nu | tail -n 1)"
read -r node rank _ <<<"$place"
printf '@rank %s\n' "$rank"
nodes=$(squeue --noheader --jobs="$id" --states=running --format=%N) || exit 1
[ -n "$nodes" ] && [ -n "$node" ] || exit 0
printf '@node %s\n' "$(scontrol show hostnames "$nodes" | sed -n "$((node + 1))p")"
