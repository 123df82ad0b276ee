"""The shell scripts that talk to Slurm. They get all data as arguments or on stdin, so that no user's text is ever
executed as a command.

Times are seconds since the epoch (`SLURM_TIME_FORMAT`), whatever the time zone is. The scripts' exit codes are 20
(another process holds the lock), 21 (the run belongs to another user), 22 (the request was withdrawn), 23 (sbatch
refused the job) and 24 (the file system has no locks).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

BUSY, FOREIGN, WITHDRAWN, REFUSED, NO_LOCKS = 20, 21, 22, 23, 24

_COMMON = r"""
umask 077
unset ${!SBATCH_*} ${!SQUEUE_*} ${!SACCT_*} ${!SCANCEL_*} ${!SINFO_*}
export SLURM_TIME_FORMAT=%s LC_ALL=C
"""

_FIND = r"""
accounts() {
  sacct --noheader --parsable2 --allocations --user="$(id -un)" --name="$name" --starttime=now-30days \
    --format=JobID,Comment
}
# The number of the job that has the run: the one that took the link, else the one of that name and comment.
find_job() {
  if [ -e "$run" ] && [ ! -O "$run" ] && [ "$(id -u)" != 0 ]; then
    echo "error: $run belongs to somebody else" >&2; return 21
  fi
  readlink "$run/job" && return 0
  local rows said
  rows=$(squeue --noheader --user="$(id -un)" --states=all --name="$name" --format='%i|%k') || return 1
  if [ -z "$rows" ]; then
    rows=$(accounts 2>/dev/null) || {
      said=$(accounts 2>&1 >/dev/null)
      case "$said" in *"storage is disabled"*) ;; *) echo "$said" >&2; return 1 ;; esac
    }
  fi
  rows=$(awk -v comment="cloudtrain:$run" '{
    bar = index($0, "|"); found = substr($0, bar + 1)
    if (found == "" || found == comment) { print substr($0, 1, bar - 1); exit }
  }' <<<"$rows")
  [ -z "$rows" ] || { ln -sn "$rows" "$run/job" 2>/dev/null; printf '%s\n' "$rows"; }
}
"""

_LOCK = r"""
mkdir -p "$run" || exit 1
exec 9>"$run/lock" || exit 1
flock --wait 90 --conflict-exit-code 20 9 || {
  [ $? != 20 ] || { echo "error: another command holds $run/lock" >&2; exit 20; }
  exit 24
}
"""
"""sbatch inherits the lock, so the lock becomes free only when no request is in transit."""

FIND = _COMMON + "run=$1 name=$2\n" + _FIND + "find_job\n"

OPEN = (
    _COMMON
    + "run=$1 name=$2 token=$3\n"
    + _FIND
    + _LOCK
    + r"""
found=$(find_job) || exit
if [ -z "$found" ]; then touch "$run/sending.$token" || exit 1; fi
printf '%s\n' "$found"
"""
)
"""Opens the run for the request with this token. Prints the run's job if it already has one."""

SEND = (
    _COMMON
    + "run=$1 name=$2 token=$3 outputs=$4; shift 4\n"
    + _FIND
    + _LOCK
    + r"""
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
"""
)

WITHDRAW = (
    _COMMON
    + "run=$1 name=$2\n"
    + _FIND
    + _LOCK
    + r"""
found=$(find_job) || exit
if [ -z "$found" ]; then rm -f "$run"/sending.* "$run/job.sh" "$run/outputs.json"; fi
printf '%s\n' "$found"
"""
)

STATUS = (
    _COMMON
    + r"""
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
"""
)

STOP = (
    _COMMON
    + r"""
run=$1
id=$(readlink "$run/job") || exit 1
touch "$run/stop" || exit 1
case "$(squeue --noheader --states=all --jobs="$id" --format=%T 2>/dev/null)" in
  SUSPENDED|STOPPED) scancel "$id"; exit ;;  # its processes cannot save, because none of them runs
esac
scancel --state=PENDING "$id" 2>/dev/null
scancel --batch --signal=TERM "$id" 2>/dev/null
exit 0
"""
)

LIST = (
    _COMMON
    + r"""
cd "$1/runs" 2>/dev/null || exit 0
find . -mindepth 2 -maxdepth 2 -name job -type l -printf '%T@ %h\n' | sort -rn | sed 's/^[^ ]* \.\///'
"""
)

TAILS = (
    _COMMON
    + r"""
cd "$1/logs" 2>/dev/null || exit 0
cd "$(ls | sort -n | tail -n 1)" 2>/dev/null || exit 0
for file in *.stderr.log; do
  [ -s "$file" ] || continue
  printf '@file %s\n' "$file"
  tail -c 8192 "$file" | sed 's/^/ /'
done
if [ -s "$1/slurm.out" ]; then printf '@file slurm.out\n'; tail -c 4096 "$1/slurm.out" | sed 's/^/ /'; fi
"""
)

SIZES = r"""
cd "$1/logs" 2>/dev/null || exit 0
find . -mindepth 2 -maxdepth 2 -name 'node_*.log' -printf '%s %T@ %P\n'
"""

READ = r"""
cd "$1/logs" || exit 1
shift
while [ $# -gt 0 ]; do tail -c "+$(($2 + 1))" "$1" | head -c "$3"; shift 3; done
"""
"""Prints pieces of files, one after another. The arguments are name, offset and length of each piece."""

UPLOAD = r"""
umask 077
mkdir -p "$(dirname "$1")" && new=$(mktemp "$1.XXXXXX") || exit 1
trap 'rm -f "$new"' EXIT
cat >"$new" && [ "$(stat --format=%s "$new")" = "$2" ] && mv -f "$new" "$1"
"""

EXISTS = 'if [ -e "$1" ]; then echo yes; fi\n'

OUTPUTS = r"""
cd "$1" || exit 1
if [ -e outputs.json ]; then exec cat outputs.json; fi
for name in model checkpoint outputs/*; do [ ! -d "$name" ] || printf '%s\n' "$name"; done
"""
"""Prints the run's outputs: a JSON object of their places, or the folders of a run that somebody gave to sbatch."""

TAR = r"""
export LC_ALL=C
if [ -d "$1" ]; then cd "$1" && below=. || exit 1
elif [ -e "$1" ]; then cd "$(dirname "$1")" && below=./$(basename "$1") || exit 1
else exit 3; fi
pack() {
  find -L "$below" -type f -print0 |
    tar --create --dereference --hard-dereference --no-recursion --null --files-from=- --file=- >&4
  [ "${PIPESTATUS[1]}" -le 2 ]
}
{ said=$(pack 2>&1); code=$?; } 4>&1
errors=$(grep -v -e 'File system loop detected' -e 'Too many levels of symbolic links' \
  -e 'No such file or directory' -e 'File removed before we read it' -e 'file changed as we read it' \
  -e 'File shrank by' -e 'Exiting with failure status' <<<"$said")
[ -z "$errors" ] || { printf '%s\n' "$errors" >&2; exit 2; }
exit "$code"
"""
"""Prints the files of a folder, or one file, as a tar archive. Links are followed, and each name has its own content:
tar would otherwise store a second name of a file as a link. A link to nothing or to a folder above it is left out, and
so is a file that its script removes at the same time. The exit code is 3 if there is no such file or folder."""

NODES = _COMMON + "sinfo --noheader --Node --format='%N|%R|%T|%c|%m|%G|%f'\n"
"""Prints one line for each node and each of its partitions."""

LOOK = (
    _COMMON
    + r"""
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
"""
)
"""Prints the result of `sbatch --test-only`, and the cluster's partitions. Reads the batch script from stdin."""


# The records of runs: the journal of a run's batch script, and Slurm's data about its job.


@dataclass(frozen=True)
class Note:
    """A line of the journal: time, job number, event (`word`) and details (`rest`)."""

    time: float
    job: str
    word: str
    rest: str = ""


@dataclass
class Record:
    """The data of one run on the cluster.

    Attributes:
        name: the run's name.
        job: the number of the run's job; empty if the run has no job.
        request_time: when cloudtrain sent the request.
        stop_asked: whether the user asked the run to stop.
        notes: the lines of the journal.
        state: the job's state, such as `PENDING`; None if Slurm has forgotten the job.
        why: Slurm's reason for the state, such as `Priority`.
        submit_time: when Slurm accepted the job.
        end_time: when the job ended, according to Slurm.
        is_renamed: whether somebody changed the job's name.
        silence: the error of Slurm's accounting, if only it knows the job and does not answer.
    """

    name: str
    job: str = ""
    request_time: float | None = None
    stop_asked: bool = False
    notes: list[Note] = field(default_factory=list)
    state: str | None = None
    why: str | None = None
    submit_time: float | None = None
    end_time: float | None = None
    is_renamed: bool = False
    silence: str | None = None

    def last(self, *words: str) -> Note | None:
        """Return the journal's last note whose event is one of `words`; None if there is no such note."""
        return next((note for note in reversed(self.notes) if note.word in words), None)

    @property
    def starts(self) -> list[Note]:
        return [note for note in self.notes if note.word == "started"]


def parse_records(answer: bytes) -> Iterator[Record]:
    record: Record | None = None
    for line in answer.decode("utf-8", "replace").splitlines():
        word, _, rest = line.partition(" ")
        if word == "@run":
            if record is not None:
                yield record
            record = Record(rest)
        elif record is not None:
            _take(record, word, rest)
    if record is not None:
        yield record


def _take(record: Record, word: str, rest: str) -> None:
    if word == "@job":
        record.job = rest
    elif word == "@sent":
        record.request_time = _time(rest)
    elif word == "@stop":
        record.stop_asked = True
    elif word == "@note":
        record.notes += _notes(rest)
    elif word == "@queue":
        _name, record.state, record.why, submit, _start, end = rest.rsplit("|", 5)
        record.submit_time, record.end_time = _time(submit), _time(end)
    elif word == "@renamed":
        record.is_renamed = True
    elif word == "@silent":
        record.silence = rest
    elif word == "@account":
        name, state, _code, submit, _start, end = rest.rsplit("|", 5)
        if name == record.name or record.is_renamed:  # a requeued job has several rows, and the last one counts
            record.state, record.submit_time, record.end_time = state, _time(submit), _time(end)


def _notes(line: str) -> list[Note]:
    """Parse a line of the journal. Return an empty list for an incomplete line."""
    parts = line.split(" ", 3)
    time = _time(parts[0])
    if len(parts) < 3 or time is None:
        return []
    return [Note(time, parts[1], parts[2], parts[3] if len(parts) > 3 else "")]


def _time(text: str) -> float | None:
    """Return seconds since the epoch; None for `N/A`, `Unknown` or `None`, which Slurm prints for an unknown time."""
    with suppress(ValueError):
        return float(text) or None
    return None
