"""Recognise metrics in the lines that a training script prints.

A line of a new form is read slowly: each number is named by the text before it, and a vocabulary
says whether the name is a place (a step, an epoch), a measure or nothing. What was found becomes a
regular expression for all lines of that form, so that later ones cost one match.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby, islice, repeat
from typing import Any, NamedTuple

MAX_LINE = 2_000
"""Characters of a line that is looked at."""
MAX_FORMS = 40
"""Forms of lines with metrics that one log may have."""
FIRST_LOOKS = 2_000
"""Lines read slowly that brought nothing, in any log. Later each 50 lines allow one more."""

BATCH = 1_000
"""Lines that are read at a time."""
MAX_KEYS = 10_000
"""Lines without their digits that are remembered."""
MANY = 3
"""Values that make a line one of metrics, even with an unknown name or a setting in it."""
FAR_FROM_HEADER = 50
"""Lines after which a header no longer names the columns of a row, if none came."""

# The vocabulary -----------------------------------------------------------------------------------

_STEP = re.compile(
    r"(?:(?:global|train|training|learning|boosting|completed|opt|optimizer|current|env)[ _/-])?"
    r"(?:step|iter|iteration|batch(?:_id|_idx)?|it|update|n(?:um_)?updates|mb|"
    r"minibatch|(?:num_)?timesteps|episode|gen(?:eration)?|round|tick|cycle|frame|game|global_step|"
    r"globalstep|up)#?|#"
)
_EPOCH = re.compile(r"(?:(?:train|training|current|eval|starting|end of|at) ?)?(?:epoch|ep\.?)#?")

_PLACE = re.compile(
    r"epoch|step|iter|batch|update|round|tick|episode|cycle|frame|game|\bep\b|\d/\d|learn:"
)
"""What a line with a place contains, whatever else."""

_METRIC = re.compile(
    r"^(?:learn|p|r|box\(p|[gd]_\w+|(?:val|valid|test|eval)/\w+)$|"
    r"ep(?:isode)?[_ ]?(?:ret|len|rew)|loss|perplex|accura|entropy|reward|"
    r"(?:^|[^a-z])(?:[a-z]*acc|acc_\w+|top[-_ ]?\d+|acc@?\d*|\w+@\d+|ppl|nll|"
    r"ce|bce|elbo|bpc|bpb|bpd|mse|rmse|mae|s?ma[ps]e|msle|rmsle|logloss|mlogloss|merror|"
    r"err(?:or)?s?|f1|"
    r"f1score|f[_-]?score|f[_-]?measure|auc|auroc|auprc|aucpr|roc|m?a[pr](?:\d+|[slm])?|"
    r"m?a[pr]@\S*|acc@\S*|pass@\S*|hits?@\S*|recall@\S*|precision@\S*|ndcg\S*|mrr|m?iou|dice|"
    r"jaccard|"
    r"kappa|mcc|correlation|pearson|spearman|r2|bleu\d?|chrf|meteor|rouge\w*|[wcb]er|(?:per|der)$|"
    r"eer|fid|kid|psnr|ssim|lpips|kld?|divergence|score|objective|obj|cost|returns?|rew|"
    r"fitness|ep_?(?:ret|len|rew)\w*|explained_var\w*|likelihood|logps?|logprob|"
    r"success(?:_rate)?|win_?rate|precision|recall|prec|margins?|xent|crossentropy|epe|mpjpe|"
    r"nme|ade|fde|snr|s[id]-?sdr|pesq|stoi|ep_len\w*|episode_len\w*|mean_len\w*|advantages?|"
    r"q_?values?|value|l1|l2|p@1|r@1|gap|ece|brier|tm|ks|exact_match|em|rank[-_ ]?\d+)(?![a-z])"
)
"""What a name of a measure looks like where the line says a place."""

_PLAIN_METRIC = re.compile(
    r"ep(?:isode)?[_ ]?(?:ret|len|rew)|loss|perplex|accura|entropy|return(?!ed|ing)|"
    r"(?:^|[^a-z])(?:[a-z]*acc|acc@?\d?|\w+@\d+|ppl|nll|mse|"
    r"rmse|mae|f1|f[_-]?score|auc|auroc|m?ap(?:\d\d)?|ar|m?iou|dice|bleu\d?|rouge\w*|wer|cer|"
    r"psnr|ssim|fid\w*|score|rew(?:ards?)?|recall|prec(?:ision)?|err(?:or)?|r2|"
    r"(?:approx_?)?kl|min_?dcf|"
    r"explained_var\w*|ep_len\w*|episode_len\w*|objective|returns?|kappa|mcc|pearson\w*|"
    r"spearman\w*|merror|logloss|epe|mpjpe|eer|exact_match|em|elbo|likelihood|"
    r"rank[-_ ]?\d+|s?ma[ps]e|bp[bcd]|chrf|meteor|lpips|crps|inertia|"
    r"top[-_ ]?\d+|ndcg\S*|mrr)(?![a-z])"
)
"""What a name of a measure looks like in a line that says no place."""

_BESIDE_METRICS = re.compile(
    r"(?:^|[^a-z])(?:lr[0f]?|learning[_ ]rate|learn_rate|mom|g?norm|time|mem(?:ory)?|tps"
    r"|mfu|tflops|fps|speed|throughput|wps|ups|tok(?:ens)?/s\w*|samples/s\w*|grad\w*|momentum"
    r"|\w+/s(?:ec)?"
    r"|ms)(?![a-z])"
)
"""Names that are believed without `=` or `:` in a line with a metric."""

_TERM = re.compile(r"(?!(?:data|net|sen|bsz|wpb|and|at|in|over|to|took)$)[a-z][a-z_]*")
"""A part of a loss: `Sup 1.36 Unsup 0.24 mIoU 85.9`, if its line has metrics without signs, or
many such parts between bars."""
_NEEDS_A_SIGN = re.compile(r"(?:^|\s)(?:err(?:or)?s?|score|cost|returns?|objective)$")
_CONFIGURATION = re.compile(
    r"(?:^|\s)--[a-z]|::[a-z]|\b(?:Namespace|seed|batch[_ ]?size|num[_ ](?!updates|timesteps)\w+"
    r"|n_(?:layer|head|embd|estimators|jobs)|num[_ ]workers|dropout|max_epochs|hidden_size"
    r"|weight_decay|optimi[sz]er_name|dtype|patience|log_interval|early_stopping\w*|Config|argument"
    r"|Argument|usage|imgsz|NCCL)\b"
)
_NOT_A_METRIC = re.compile(
    r"weight(?!.* loss)|coef|thresh|alpha|smooth(?!_?l1)|_f(?:n|unc)$|scal(?:e|er|ing)(?![a-z])"
    r"|interval(?! loss)|(?:samples|tokens)$|freq|ratio_|^(?:sum|min|max)$|overflow"
    r"|factor|limit|patience|^(?:max|min)(?:imum)?[ _]|gamma|decay(?!.* loss)|warmup|dim\b|size"
    r"|seed|(?:^|[^a-z])(?:num|n)_|(?:batch|reader)[_ -]cost|time(?!s?tep)|lambda"
    r"|_thr(?:$|_)|^target|(?<!loss)_target|target_|^losses$|_type|version|port"
    r"|(?<![a-z])eta\b|elapsed"
    r"|remaining|improv|creased|from|best|worst|^with |^std$|saving|accumul|every|_id\b|^number"
    r"|v_num|iterations|memory|mem$|cuda|gpu|device|criterion|(?<!dis)count"
    r"|total_(?!loss|reward|return|acc|err)|precision_|pid|^ram$|progress|\.\.|eps\b|epsilon|beta"
)
_SPLIT = re.compile(
    r"(?<![\w/.])(val(?:id(?:ation)?)?|test(?:ing)?|eval(?:uation)?|dev"
    r"|train(?:ing)?(?!\W*(?:epoch|step|iter\b|batch|\d)))(?=[\s:\],]|[\"']: *\{)",
    re.IGNORECASE,
)
_SPLIT_ALONE = re.compile(r"train(?:ing)?|test(?:ing)?|val(?:id(?:ation)?)?|eval(?:uation)?")
_WITHOUT_SPLIT = re.compile(r"\(\w+\)$|^(?:-+ ?|#+ ?)+")
_IN_BRACKETS = re.compile(r"\s\([^()]*\)")
_HAS_SPLIT = re.compile(r"(?:^|[^a-z])(?:val(?!u)|test|eval|dev|train)")
_IDENTIFIER = re.compile(r"^.*\s(?=\w+[_/]\w+$)")
"""What stands before a name that is an identifier: `CV info cv_loss 0.5`."""
_CUT = re.compile(r"\s(?:of|at|on|after|for|in)(?:\s.*|$)|\sper\s.*|\s[./~]\S*/.*", re.IGNORECASE)

# The grammar --------------------------------------------------------------------------------------

_NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_TOKEN = re.compile(
    rf"@\[[^\]]*\]|\(k=\d+\)|(?<![\w@.^-])(?P<number>{_NUMBER}"
    r"|[-+]?(?:nan|NaN|NAN|inf|Inf|Infinity)(?![\w.]))"
    r"(?!\d|\.\d|[A-Za-z_]+\d|[A-Za-z_]+[:=]|-[A-Za-z]|/[A-Za-z.])"
    r"(?:\s*(?:/|\bof\b)\s*(?P<total>\d[\d,]*(?:\.0)?)(?![\w.]))?(?P<percent>\s?%)?"
)
_ANY_NUMBER = r"([-+.\d][-+.\deE]*|[-+]?[nNiI][aAnN][nNfF]\w*)"
_A_NUMBER = r"([-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?|nan|inf)"
_UNREAD_NUMBER = _ANY_NUMBER.replace("(", "(?:", 1)
_WITH_COMMAS = r"([-+]?\d[\d.,]*)"
_GROUP = re.compile(f"{re.escape(_ANY_NUMBER)}|{re.escape(_WITH_COMMAS)}")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_REDRAWN = re.compile(r"[\r\b]+")
_TIME = re.compile(
    r"\d{4}[-/.]\d\d[-/.]\d\d(?:[T _-]+\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?Z?)?"
    r"|\b\d\d/\d\d(?:/\d+)? \d\d:\d\d:\d\d|\b\d+:\d\d(?::\d\d)?(?:\.\d+)?\b"
    r"|(?:\d+[dhms] ?)+(?=\d+[hms]\b)\d+[hms]\b"
)
_RANK = re.compile(
    r"\[\d+,(?:mpirank:)?(\d+)[^\]]*\]<std\w+>:\s?|\[?(?:default|rank)[ _:]?(\d+)\]?:?\s?",
    re.IGNORECASE,
)
_LABEL_END = re.compile(
    r"(?:[\s:=|│┃'\"(\[<>~*]|['\"],|->|(?<=\s)(?:is|was|reached)(?=[\s:])|\b(?:tensor|array|Array|"
    r"(?:np\.)?float\d*)[(\[])*$"
)
_SIGN = re.compile("[:=|]|is|reached|['\"],")
_LABEL_START = re.compile(
    r"[,;|│┃{}\[\]\t:=!\x00]|\s{2,}|\s(?:-+|[–—/])\s|\b(?:INFO|DEBUG|WARNING)\b|'\s|\"\s|\)\s"
    r"|(?<=[a-z]{5})\.\s+(?=[A-Z])|\bdone\.\s|^\s*[Tt]he\s|\s\("
)
_UNIT = re.compile(r"^(?:[A-Za-z%°/]+|\s?(?:ms|s|sec|%|it/s|s/it)\b)\)?(?=\.?[\s,;:|()\[\]}'\"]|$)")
_NO_VALUE = re.compile(r" ?(?:ms|s|secs?|seconds|min(?:ute)?s?|hours?|[a-z]+/s(?:ec)?)\b|,\d")
"""What follows a duration, a rate, and the first half of `0,25`."""
_NAME_AFTER = re.compile(r"\s+(?:=\s+)?([A-Za-z][A-Za-z ]*[A-Za-z])\s*(?:[(,]|$)")
"""The name in `0.8 = Validation score` and in `0.25 avg loss,`."""
_NAME_STARTS = r"(?<![\w/.-])"
_QUALIFIED = re.compile(r"(\w+)\)?\s*(@\[[^\]]*\]|\(k=\d+\))$")
_LISTED = re.compile(r"(?<![\w=(])((?:[A-Za-z]\w*, ?)+[A-Za-z]\w*) *(?:[=-]+>|[:=]) *(?=[-+.\d])")
"""Names before their values: `round, loss, acc => 3, 0.5, 0.9`."""
_INDEX_ENDS = re.compile(r"\s*\]\s*[:=]")
"""What follows the step in `loss[ 20 ]: 0.5`."""
_NOT_A_NAME = "(<*% '\"=>.#-━╸╺─█▏▎▍▌▋▊▉░▕"
_NOT_IN_NAMES = re.compile(r"[^\w/.@%+-]+")
_CELLS = {
    "|": re.compile(r"[^|│┃┆\s\[][^|│┃┆]*"),
    "\t": re.compile(r"[^\t]+"),
    ",": re.compile(r"(?:\A|(?<=,))[^,]*"),
    "  ": re.compile(r"\S+(?: \S+)*"),
    " ": re.compile(r"\S+"),
}
_BAR_AT_END = re.compile(r":?\s+\d+%\|")
_COLUMN = re.compile(r"(?:[a-z#](?:[^\s=:]|:\.)*(?: [a-z#(](?:[^\s=:]|:\.)*)*)")
_FIRST_CELL = re.compile(r"[\d.-]|all|overall|mean|average|total|avg|macro|micro", re.IGNORECASE)
_SPLIT_BEFORE = re.compile(r"^(?:train|val|test|dev|eval)[a-z]*: ", re.IGNORECASE)
_SPLIT_CELL = re.compile(
    r"(?:train|vali?|test|dev|eval)[a-z]*(?=\s*(?:[|│┃,\t]|  ))", re.IGNORECASE
)
_RULE = re.compile(r"[\s|:=+─━┃╇╋┼│-]*$")
_LOWER = bytes(range(256)).lower()
_ROW_LABEL = re.compile(r"\s{2}(?!val|test|eval|dev|train)(\w[\w-]*): +$")
"""What a row of an aligned listing is about: `   LOC: precision: 95.1%`."""
_NAMED_CELL = re.compile(r"\s*\|\s*[A-Za-z][^|\d]*[\s:=]-?[\d.]")
"""A cell with a name and a value, such as `| loss 0.5`."""
_BEFORE_A_COUNTER = re.compile(r"[^A-Za-z]*$")


class LineBlock(NamedTuple):
    """What lines of one form say that follow each other."""

    line: int
    """Number of the first line, from 0, since the log began."""
    steps: list[float]
    """Where the values belong: as printed, but it goes on where a counter begins again in each
    epoch. A line without a step has the one that was announced before it, or else NaN."""
    values: Mapping[str, list[float]]
    """The values of each metric, one for each line."""
    printed: list[float]
    """The steps as printed; empty if the lines have none."""
    said: Mapping[str, float]
    """What else all lines say of the progress."""

    def progress(self, number: int) -> dict[str, float]:
        """Return those of step, total, epoch, epochs and percent that one of the lines says, as
        printed."""
        return {"step": self.printed[number], **self.said} if self.printed else {**self.said}


class _Found(NamedTuple):
    """A number that is read: where it stands, and the metric's name or, after a colon, a kind of
    progress or `:rank`."""

    start: int
    end: int
    role: str


class _Form:
    """Lines that differ only in their numbers."""

    def __init__(self, expression: str, roles: Sequence[str], is_row: bool) -> None:
        self.expression = expression
        self.roles = roles
        self.is_row = is_row
        self.match = re.compile(expression).match
        self.kinds = [(role, role[1:]) for role in roles if role[0] == ":"]


class _Number(NamedTuple):
    """A number of a line with the text that names it."""

    match: re.Match[str]
    name: str
    explicit: bool
    """Whether `=`, `:` or "is" stands between the name and the number."""

    @property
    def whole(self) -> bool:
        """Whether it is written as an integer."""
        number = self.match["number"]
        if self.match.string[self.match.end() :][:1].strip() == "":
            number = number.removesuffix(".")  # of a sentence
        return number.replace(",", "").isdigit()


class Recogniser:
    """Reads one log, in order. With the `state` of another it goes on where that one stopped."""

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        self._line = 0
        self._looks = 0
        self._header: list[str] = []
        self._separator = ""
        self._strangers = 0
        self._epoch: float | None = None
        self._announced: float | None = None
        self._rank_0_speaks = False
        self._counters: dict[str, list[float]] = {}
        vars(self).update(copy.deepcopy(state or {}))
        learnt: list[tuple[str, list[str], bool]] = vars(self).pop("_learnt", [])
        self._forms = [_Form(*words) for words in learnt]
        self._known: dict[bytes, _Form | None] = {}

    @property
    def count(self) -> int:
        """The lines that were read."""
        return self._line

    @property
    def state(self) -> dict[str, Any]:
        """What was learnt and where the log stands, as JSON."""
        kept = vars(self).keys() - {"_forms", "_known"}
        state = {name: copy.deepcopy(vars(self)[name]) for name in sorted(kept)}
        state["_learnt"] = [(form.expression, form.roles, form.is_row) for form in self._forms]
        return state

    def patterns(self) -> dict[str, str]:
        """Return a regular expression for each metric found, as a job's `metrics` has them.

        Of tables, the newest alone has some.
        """
        names_of: dict[str, set[str]] = {}
        found = []
        for form in self._forms:
            before = "^"
            for role, text in zip(form.roles, _GROUP.split(form.expression), strict=False):
                before += text
                text = re.sub(r"^\\s\*(?=[a-z])", lambda _: _NAME_STARTS, text, flags=re.I)
                if role[0] != ":":
                    names_of.setdefault(text, set()).add(role)
                    found.append((role, text, before))
                before += _UNREAD_NUMBER

        befores: dict[str, dict[str, None]] = {}
        for role, text, before in found:
            words = text.replace(_UNREAD_NUMBER, "").replace(r"\s", "")
            has_words = re.search("[A-Za-z]", words)
            end = text.removeprefix(_NAME_STARTS)
            is_end = any(other != text and other.endswith(end) for other in names_of)
            tells = has_words and len(names_of[text]) == 1 and not is_end
            befores.setdefault(role, {})[text if tells else before] = None
        return {name: f"(?:{'|'.join(texts)}){_A_NUMBER}" for name, texts in befores.items()}

    def blocks(self, lines: Iterable[str]) -> Iterator[LineBlock]:
        """Yield what the next lines say; those of one form that follow each other as one block. A
        line with neither a metric nor a place says nothing."""
        rest = iter(lines)
        while batch := list(islice(rest, BATCH)):
            keys = _keys(batch)
            if len(keys) != len(batch):
                batch = [line.replace("\n", " ") for line in batch]
                keys = _keys(batch)
            for key, places in groupby(range(len(batch)), keys.__getitem__):
                numbers = list(places)
                some = batch[numbers[0] : numbers[-1] + 1]
                first = self._line + numbers[0]
                form = self._known.get(key)
                block = form and self._block(first, form, some)
                if block:
                    yield block
                else:
                    yield from self._one_by_one(first, some, key)
            self._line += len(batch)

    def _block(self, first: int, form: _Form, lines: list[str]) -> LineBlock | None:
        """Return what lines say if all have this form."""
        rows = [match.groups() for match in map(form.match, lines) if match]
        return self._said(first, form, rows) if len(rows) == len(lines) else None

    def _one_by_one(self, first: int, lines: list[str], key: bytes) -> Iterator[LineBlock]:
        for number, line in enumerate(lines, first):
            form = self._known.get(key)
            if form is None and key in self._known:
                continue
            block = form and self._block(number, form, [line])
            if block:
                yield block
            else:
                yield from self._read(number, line, key)

    def _read(self, number: int, line: str, key: bytes) -> Iterator[LineBlock]:
        """Yield what a line says whose form is not known by its letters."""
        line = line.replace("#011", "\t").replace("\xa0", " ")
        parts = _REDRAWN.split(_ANSI.sub("", line))
        if len(self._known) > MAX_KEYS:
            self._known.clear()
        for part in parts:
            self._known[key] = None
            found = self._form_of(part) or self._learn(part)
            if found:
                self._known[key] = found[0]
            if parts != [line]:  # it was redrawn
                self._known.pop(key, None)
            if found and (block := self._said(number, found[0], [found[1]])):
                yield block

    def _form_of(self, line: str) -> tuple[_Form, Sequence[str]] | None:
        """Return the form that a line has, and its numbers."""
        for form in self._forms:
            if match := form.match(line):
                return form, match.groups()
        return None

    def _said(self, line: int, form: _Form, rows: Sequence[Sequence[str]]) -> LineBlock | None:
        """Return what lines say, from the texts of their numbers. None if they differ in more than
        the step and the metrics, so that each must be read alone."""
        try:
            columns = [list(map(float, texts)) for texts in zip(*rows, strict=True)]
            values = dict(zip(form.roles, columns, strict=True))
        except ValueError:
            if len(rows) > 1:
                return None
            values = _parsed(form.roles, rows[0])
        found = {kind: values.pop(role) for role, kind in form.kinds if role in values}
        printed = found.pop("step", [])
        if any(column.count(column[0]) < len(column) for column in found.values()):
            return None

        said = {kind: column[0] for kind, column in found.items()}
        if said.pop("rank", 0):
            if self._rank_0_speaks:
                return LineBlock(line, [], {}, [], {})
        elif "rank" in found and values:
            self._rank_0_speaks = True
        self._epoch = said.get("epoch", self._epoch)
        if not printed:
            place = None if "epoch" in said else self._announced
            steps = [math.nan if place is None else place] * len(rows)
            return LineBlock(line, steps, values, printed, said)
        steps = printed
        if "total" in said:
            shift = self._continued(printed[0], said["total"]) - printed[0]
            self._continued(printed[-1], said["total"])
            steps = [step + shift for step in printed]
        self._announced = None if values else steps[-1]
        return LineBlock(line, steps, values, printed, said)

    def _continued(self, step: float, total: float) -> float:
        """Return the step counted over all epochs, for a counter that begins again in each."""
        now = self._epoch or 0.0
        counter = self._counters.setdefault(str(total), [step, 0.0, now])
        last, offset, epoch = counter
        if step <= last and now > epoch:
            offset += total * round(now - epoch)
        counter[:] = [step, offset, now]
        return step + offset

    # Learning -------------------------------------------------------------------------------------

    def _learn(self, line: str) -> tuple[_Form, Sequence[str]] | None:
        """Return the form of a line that has none yet, and the numbers to read in it."""
        if len(line) > MAX_LINE or self._looks > FIRST_LOOKS + self._line // 50:
            return None
        self._looks += 1
        lowered = line.lower()
        expressions = (_PLACE, _METRIC, _PLAIN_METRIC)
        if not self._header and not any(map(re.Pattern.search, expressions, repeat(lowered))):
            return None
        rank = _RANK.search(line[:40])
        begin = rank.end() if rank else 0
        masked = _TIME.sub(lambda time: "\0" * len(time[0]), line[begin:])
        text = line[:begin] + masked

        if self._is_header(text[begin:]):
            return None
        row = self._row(text, begin)
        found = row or _found(text, begin)
        if not found:
            return None
        if rank:
            found.insert(0, _Found(*rank.span(rank.lastindex or 0), ":rank"))
        form = _Form(_expression(text, found), [item.role for item in found], bool(row))
        if len(self._forms) < MAX_FORMS:
            self._looks -= 1
            self._forms.append(form)
        return form, [line[item.start : item.end] for item in found]

    def _is_header(self, text: str) -> bool:
        """Return whether the line names the columns of a table, and keep them."""
        text = re.sub("[│┃┆]", "|", _BAR_AT_END.split(text)[0])
        text = _SPLIT_BEFORE.sub("", text).strip("*=# ")
        for separator, pattern in _CELLS.items():
            if separator not in text.strip():
                continue
            names = [cell.strip(" \t:").lower() for cell in pattern.findall(text)]
            if not all(map(_COLUMN.fullmatch, names)):
                continue
            metrics = list(filter(_METRIC.search, names))
            has_place = any(map(_place_of, names))
            enough = len(metrics) > 1 or (bool(metrics) and has_place)
            if separator == " ":
                begins = len(names) > 2 and bool(_place_of(names[0]))
                enough = enough and begins and not re.search(r"\(\d", text)
            if enough and max(map(len, names)) < 40:
                if names != self._header:
                    # Rows look alike, whatever their columns are called.
                    self._forms = [form for form in self._forms if not form.is_row]
                self._known.clear()
                self._header = names
                self._separator = separator
                self._strangers = 0
                self._looks -= 1
                return True
        return False

    def _row(self, text: str, begin: int) -> list[_Found]:
        """Return the numbers of a row under the header."""
        if not self._header:
            return []
        text = _BAR_AT_END.split(text)[0]
        header = self._header
        cells = list(_CELLS[self._separator].finditer(text, begin))
        if len(cells) != len(header):
            cells = list(_CELLS[" "].finditer(text, begin))
            header = " ".join(header).split()
        start = cells[0].start() if cells else begin
        split = _SPLIT_CELL.match(text, start)
        if len(cells) != len(header) or not (split or _FIRST_CELL.match(text, start)):
            self._strangers += not _RULE.match(text, begin)
            if self._strangers > FAR_FROM_HEADER:
                self._header = []
            return []
        prefix = f"{split[0].lower()}_" if split else ""
        found = []
        for cell, name in zip(cells, header, strict=True):
            token = _TOKEN.match(text, *cell.span())
            if not token or not token["number"]:
                continue
            place = _place_of(name)
            if place:
                found += _counter(token, place)
            elif _METRIC.search(name) or (
                not token["number"].isdigit() and not _NOT_A_METRIC.search(name)
            ):
                found.append(_Found(*token.span("number"), prefix + _tidy(name)))
        if all(item.role[0] == ":" for item in found):
            return []
        return found


def _keys(lines: Iterable[str]) -> list[bytes]:
    """Return lines in small letters without digits: those of one form are mostly equal."""
    joined = "\n".join(lines).encode("utf-8", "replace")
    return joined.translate(_LOWER, b"0123456789").split(b"\n")


def _parsed(roles: Iterable[str], texts: Iterable[str]) -> dict[str, list[float]]:
    """Return the numbers that people write otherwise than Python: `1,000`, `12.`, `0.5,`."""
    values = {}
    for role, text in zip(roles, texts, strict=True):
        with suppress(ValueError):
            values[role] = [float(text.rstrip(".,").replace(",", ""))]
    return values


def _tidy(name: str) -> str:
    """Return a printed name as a metric's name."""
    return _NOT_IN_NAMES.sub("_", name.strip().lower()).replace("._", "_").strip("_.-")


def _place_of(name: str) -> str:
    """Return `step` or `epoch` if that is what a name means, or an empty text."""
    if _EPOCH.fullmatch(name):
        return "epoch"
    return "step" if _STEP.fullmatch(name) else ""


def _counter(token: re.Match[str], place: str) -> list[_Found]:
    """Return the roles of `3` or of `3/10`."""
    found = [_Found(*token.span("number"), ":" + place)]
    if token["total"]:
        total = ":epochs" if place == "epoch" else ":total"
        found.append(_Found(*token.span("total"), total))
    return found


def _numbers(text: str, begin: int) -> list[_Number]:
    """Return the numbers of a line, with their names."""
    numbers = []
    end = begin
    for match in _TOKEN.finditer(text, begin):
        if match["number"]:
            numbers.append(_named(text, begin, end, match))
            end = match.end()
    return numbers


def _named(text: str, begin: int, end: int, match: re.Match[str]) -> _Number:
    """Return a number that is named by the text before it, from the `end` of the number before, or
    else by the text behind it."""
    is_first = end == begin
    between = text[end : match.start()]
    if not is_first:
        between = _UNIT.sub("", between)
    label = _LABEL_END.sub("", between, count=1)
    separator = between[len(label) :]
    explicit = bool(_SIGN.search(separator))

    name = _LABEL_START.split(_IN_BRACKETS.sub("", label))[-1].strip(_NOT_A_NAME)
    if qualified := _QUALIFIED.search(label):
        name = qualified[1] + qualified[2].replace(" ", "")
    if "|" in separator and not is_first and between.lstrip()[:1].isalpha():
        name = ""  # of the number before: `42.6% MFU | 171449 tok/s`
    after = _NAME_AFTER.match(text, match.end())
    if not name and after and _METRIC.search(after[1].lower()):
        name = after[1]
        explicit = True
    return _Number(match, name, explicit)


def _found(text: str, begin: int) -> list[_Found]:
    """Return what there is to read in a line outside tables."""
    numbers = _numbers(text, begin)
    exact = _named_places(numbers)
    loose = _unnamed_places(text, begin, numbers)
    roles = {item.role for item in exact + loose}
    measures = _measures(text, begin, numbers, placed=bool(roles & {":step", ":epoch"}))
    settings = _CONFIGURATION.findall(text, begin)
    if len(settings) > 1 or (settings and not exact and len(measures) < MANY):
        return []

    if measures or ":percent" in roles:
        exact = measures + exact + loose
    return _once(exact)


def _once(found: list[_Found]) -> list[_Found]:
    """Return what was found in the order of the line, each role and each number once."""
    roles: dict[str, _Found] = {}
    for item in found:
        roles.setdefault(item.role, item)
    starts: dict[int, _Found] = {}
    for item in roles.values():
        starts.setdefault(item.start, item)
    return sorted(starts.values())


def _named_places(numbers: list[_Number]) -> list[_Found]:
    """Return the steps and epochs that are called so."""
    found = []
    for number in numbers:
        place = _place_of(_WITHOUT_SPLIT.sub("", number.name.lower()))
        if place and (number.whole or place == "epoch"):
            found += _counter(number.match, place)
    return found


def _unnamed_places(text: str, begin: int, numbers: list[_Number]) -> list[_Found]:
    """Return what is a place by where it stands, if the line has metrics: `[10/500]`, `[7] ...`."""
    counters = []
    found = []
    for number in numbers:
        match = number.match
        name = number.name.lower()
        before = text[begin : match.start()]
        behind = text[match.end() :]
        after = behind.lstrip(" ")[:1]
        begins = after in (":", "\t", "[") or _NAMED_CELL.match(text, match.end())
        leads = _BEFORE_A_COUNTER.match(before) and (begins or "[" in before)
        leads = leads or (before.endswith("[") and after == "]")
        if match["percent"] and (not name or text.startswith("|", match.end())):
            found.append(_Found(*match.span("number"), ":percent"))
        elif not number.whole or behind[:1].isalpha():
            continue
        elif _SPLIT_ALONE.fullmatch(name) and after == "[":
            found.append(_Found(*match.span("number"), ":epoch"))
        elif place := _place_of(re.sub("(?<=[pr])s$", "", name.rpartition(" ")[2])):
            found += _counter(match, place)
        elif (match["total"] or leads) and (not name or _SPLIT_ALONE.fullmatch(name)):
            counters.append(match)

    if len(counters) > 1:
        found += _counter(counters.pop(0), "epoch")
    for match in counters[:1]:
        found += _counter(match, "step")
    return found


def _measures(text: str, begin: int, numbers: list[_Number], *, placed: bool) -> list[_Found]:
    """Return the metrics among the numbers, and what stands beside them."""
    found = []
    beside = []
    terms = []
    has_bare = False
    pending = ""
    for number in numbers:
        name = number.name.lower()
        percent = number.match["percent"]
        end = number.match.end()
        if _NO_VALUE.match(text, end) or (percent and text.startswith(("|", "["), end)):
            continue
        unnamed = percent or not name[:1].isalpha() or _place_of(name.removesuffix("s"))
        counts = number.match["total"] or (number.whole and _INDEX_ENDS.match(text, end))
        if pending and unnamed and (percent or number.explicit):
            name = pending
            pending = ""
        elif counts or (_CUT.search(name) and number.whole and not number.explicit):
            pending = _CUT.sub("", name)
            if counts and not _METRIC.search(pending):
                pending = ""
            continue
        name = _CUT.sub("", name)
        if not name[:1].isalpha() or _NOT_A_METRIC.search(name) or _place_of(name):
            continue
        identifier = _IDENTIFIER.sub("", name)
        if _METRIC.search(identifier) and (not number.explicit or _HAS_SPLIT.search(identifier)):
            name = identifier
        item = _Found(*number.match.span("number"), name)
        if _believable(number, name, placed=placed):
            found.append(item)
            has_bare |= not number.explicit
        elif (placed and _BESIDE_METRICS.search(name)) or (number.explicit and not number.whole):
            beside.append(item)
        elif placed and not number.whole and _TERM.fullmatch(name):
            terms.append(item)
    if placed and not found:
        found = [item for item in beside if not _BESIDE_METRICS.search(item.role)]
        beside = [item for item in beside if item not in found]
        if len(terms) >= MANY and _NAMED_CELL.search(text, begin):
            found += terms
    found = found or _listed(text, begin, numbers)
    if not found:
        return []
    if has_bare:
        beside += terms
    return _with_splits(text, begin, found, beside)


def _listed(text: str, begin: int, numbers: list[_Number]) -> list[_Found]:
    """Return the metrics that a list names before their values."""
    listed = _LISTED.search(text, begin)
    if not listed:
        return []
    names = re.findall(r"\w+", listed[1].lower())
    values = [number.match for number in numbers if number.match.start() >= listed.end()]
    pairs = zip(names[-len(values) :], values, strict=False)
    return [_Found(*match.span("number"), name) for name, match in pairs if _METRIC.search(name)]


def _with_splits(text: str, begin: int, found: list[_Found], beside: list[_Found]) -> list[_Found]:
    """Return metrics, and what stands beside them, with the split that each belongs to in front of
    its name: the last one that is named before it. What a row is about stands before that."""
    names = {item.role for item in found}
    at = text.lower().rfind(found[0].role, begin, found[0].start)
    label = _ROW_LABEL.search(text, begin, max(begin, at))
    splits = list(_SPLIT.finditer(text, begin))
    named = []
    for item in found + beside:
        name = item.role
        split = ""
        for match in splits:
            if match.start() < item.start:
                split = match[1].lower()
        is_known = _HAS_SPLIT.search(name) or f"{split}_{name}" in names
        if split and not is_known:
            name = f"{split}_{name}"
        if label:
            name = f"{label[1]}_{name}".lower()
        named.append(item._replace(role=_tidy(name)))
    return named


def _believable(number: _Number, name: str, *, placed: bool) -> bool:
    """Return whether a number with this name is a metric."""
    if placed:
        return bool(_METRIC.search(name))
    if not _PLAIN_METRIC.search(name):
        return False
    if not number.explicit and (_NEEDS_A_SIGN.search(name) or _CUT.search(number.name)):
        return False
    return not number.whole or bool(number.match["percent"] or _HAS_SPLIT.search(name))


_PIECES = re.compile(
    r"(?P<verbatim>@\[[^\]]*\]|\(k=\d+\))|(?P<time>\0+)"
    r"|(?P<string>\"[^\"]*[A-Za-z][^\"]*\"(?=\s*[,}]))"
    r"|(?P<bar>[=>.#━╸╺─█▏▎▍▌▋▊▉░-][=>.#━╸╺─█▏▎▍▌▋▊▉░ -]{2,})"
    r"|(?P<number>(?<![\w@])(?<![a-zA-Z]-)[-+]?\d[\d.]*(?:[eE][-+]?\d+)?)"
    r"|(?P<space>\s+)|(?P<rate>it/s|s/it)|(?P<text>.)"
)
_PATTERNS = {
    "string": r'"[^"]*"',
    "time": r"[\d:.,/TZdhms +_-]+?",
    "bar": r"[=>.#━╸╺─█▏▎▍▌▋▊▉░\s-]*?",
    "number": _UNREAD_NUMBER,
    "space": r"\s*",
    "rate": r"(?:it/s|s/it)",
}


def _literal(text: str, start: int, end: int) -> str:
    """Return the expression for the text between numbers that are read."""
    expressions = []
    for piece in _PIECES.finditer(text, start, end):
        kind = piece.lastgroup or "text"
        around = text[piece.start() - 1 : piece.start()] + text[piece.end() : piece.end() + 1]
        if kind == "space" and around.isdigit():  # or one number could be read as two
            expressions.append(r"\s+")
        else:
            expressions.append(_PATTERNS.get(kind) or re.escape(piece[0]))
    return "".join(expressions)


def _expression(text: str, found: list[_Found]) -> str:
    """Return the expression of the lines that differ from this one in numbers only."""
    expressions = []
    end = 0
    for item in found:
        expressions.append(_literal(text, end, item.start))
        has_commas = "," in text[item.start : item.end]
        expressions.append(_WITH_COMMAS if has_commas else _ANY_NUMBER)
        end = item.end
    expressions.append(_literal(text, end, len(text.rstrip())))
    return "".join(expressions) + r"\s*$"
