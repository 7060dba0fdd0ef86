"""The reader of shell scripts beside bash: the same script gives the same words."""

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from recorded import BASH, printed, recorded

from lt_train.importers.shell.script import commands

pytestmark = pytest.mark.skipif(BASH is None, reason="there is no bash")

# GPT is the program and its script.
SCRIPTS = {
    "arithmetic": "H=128; A=(--ffn-hidden-size $((3*H)) --groups $((4/2)) --batch $((8 * 4 + H % 5)))\nGPT ${A[@]}",
    "let": "L=4; ((L++)); let L+=2 'M = L * 2'; (( M -= 1 ))\nGPT --num-layers $L --m $M",
    "appended text": "L=4; ((L++)); L+=2\nGPT --num-layers $L",
    "defaults": ': "${L:=36}" ${M:-}; N=${X-9}; O=${L:+on}; P=${X:+off}\nGPT --l $L --n "$N" --o $O --p "$P" ${Y:-7}',
    "edited": "F=/a/b/model.tar.gz\nGPT ${F##*/} ${F#*/} ${F%.*} ${F%%.*} ${F/a/X} ${F//a/X} ${F/%gz/z} ${#F} ${F:3:4} ${F^^}",
    "quoted": 'A=\'one two\'; B="x $A"\nGPT $A "$A" \'$A\' "\\$A" $B"y" a\\ b "" $\'t\\tt\'',
    "arrays": 'A=(--a 1 "two words") ; A+=(--b) ; B="--c 3 --d"\nGPT "${A[@]}" ${A[@]} $B "${A[1]}" ${#A[@]} "${A[*]}"',
    "comments in an array": "A=(\n  --a 1 # one\n  # --b 2\n  --c 3\n)\nGPT ${A[@]}",
    "conditions": 'N=8\nif [ $N -le 4 ]; then T=1; elif [[ $N == 8 && -n "$N" ]]; then T=2; else T=3; fi\nGPT --t $T',
    "chains": 'A=swiglu; [[ $A == swi* ]] && B="--swiglu" || B=--gelu; [ $A = x ] && B=x\nGPT $B',
    "case": 'S=7b\ncase $S in 1b|3b) L=16;; "7b") L=32; H=4096 ;; *) L=1;; esac\nGPT --l $L --h $H',
    "functions": 'go() { local L=$1; GPT --l $L "${@:2}"; }\nfunction main { go 4 --x y; }\nmain',
    "loops": "T=0; for i in 1 2 3; do T=$((T + i)); done; for ((j = 0; j < 4; j++)); do T=$((T * 2)); done\n"
    "while (( T > 10 )); do T=$((T - 7)); done\nGPT --t $T",
    "here-document": "cat <<EOF > job.sh\npretrain_gpt.py --num-layers 99\nEOF\nGPT --num-layers 4",
    "tabbed here-document": "if true; then\n\tcat <<-'EOF' > job.sh\n\tit's $((\n\tEOF\nfi\nGPT --num-layers 4",
    "bash -c in single quotes": "export CMD=\"pretrain_gpt.py --l 4\" L='torchrun -n 2'\nsrun --jobid 1 bash -c '$L --r 0 $CMD'",
    "bash -c in double quotes": 'CMD="pretrain_gpt.py --l 4"\nsrun --label bash -c "cd /tmp; torchrun --n 2 $CMD --x \'a b\'"',
    "command in a variable": 'C="GPT \\\n  --l 4 \\\n  --h 8"\n$C --i 9',
    "eval": "A='--x 1'; C='GPT $A --y \"a b\"'\neval $C",
    "echo and expr": 'A=$(echo 4); B=`expr 3 \\* 5`; C=$(echo "$A $B")\nGPT $C' if Path("/usr/bin/expr").exists() else "",
    "subshell": "A=1; (A=2; B=3); { C=4; }\nGPT $A $C",
    "keys": "declare -A L=([7b]=32 [13b]=40); S=13b; L[70b]=80\nGPT ${L[$S]} ${L[70b]}",
    "indented continuation": "torchrun \\\n    pretrain_gpt.py \\\n    --a 1 \\\n    --b 2 # the end\n",
    "negated": "! [ 1 = 2 ] && A=1; if ! [[ a == b ]]; then B=2; fi\nGPT $A $B",
    "redirected": "GPT --a 1 2>&1 > log.txt",
    "arguments": 'set -- a "b c"; GPT $1 "$2" "$@"; shift; A=$1',
}


@pytest.mark.parametrize("name", [name for name, text in SCRIPTS.items() if text])
def test_a_script_gives_the_words_that_bash_gives(name: str, tmp_path: Path) -> None:
    text = SCRIPTS[name].replace("GPT", "torchrun pretrain_gpt.py")
    (expected,) = recorded(text.replace("`expr", "`/usr/bin/expr"), tmp_path)
    found = [command.words for command in commands(text) if "pretrain_gpt.py" in command.words]
    assert found == [expected]


NUMBERS = st.one_of(st.integers(0, 20).map(str), st.sampled_from(["A", "$B", "${C}", "0x1F", "010", "2#101"]))
SIGNS = st.sampled_from(["+", "-", "*", "/", "%", "**", "<<", ">>", "<", "<=", ">", ">=", "==", "!=", "&", "^", "|", "&&", "||"])


def _joined(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(parts, SIGNS, parts).map(" ".join),
        st.tuples(st.sampled_from(["-", "!", "~", "+"]), parts).map(" ".join),
        st.tuples(parts, parts, parts).map(lambda three: f"({three[0]}) ? {three[1]} : ({three[2]})"),
        st.tuples(st.sampled_from(["A += ", "B = ", "C -= "]), parts).map(lambda two: f"({''.join(two).replace('$', '')})"),
        parts.map(lambda part: f"({part})"),
        st.sampled_from(["A++", "--B", "(A, C)"]),
    )


EXPRESSIONS = st.recursive(NUMBERS, _joined, max_leaves=8)


@settings(max_examples=100, deadline=None)
@given(st.lists(EXPRESSIONS, min_size=1, max_size=12))
@example(["((0) ? 0 ** -2 : 5)", "((0) ? 1 / 0 : 5)"])
@example(["9 ** 9 ** 9", "(A++ ** 3 ** 7)", "-3 ** 4097"])
def test_arithmetic_is_that_of_bash(expressions: list[str]) -> None:
    """What bash refuses, as a division by zero, is not known here."""
    start = "A=3 B=7 C=-2"
    lines = [f"({start}; X=$(( {expression} )); echo $X $A $B $C)" for expression in expressions]
    expected = printed("\n".join(f"{line} || echo refused" for line in lines)).splitlines()
    found = []
    for expression in expressions:
        (command,) = commands(f"{start}\nX=$(( {expression} ))\ntorchrun $X $A $B $C")
        words = command.words[1:]
        found.append("refused" if any("$" in word for word in words) else " ".join(words))
    assert found == expected


PIECES = st.lists(st.sampled_from(["a", "b", "/", ".", "*", "?", "ab", "."]), max_size=6).map("".join)
OPERATIONS = st.sampled_from(["#", "##", "%", "%%", "/", "//", "/#", "/%", ":-", ":+", "-", "+"])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(PIECES, OPERATIONS, PIECES, PIECES), min_size=1, max_size=12))
def test_variables_are_edited_as_bash_edits_them(cases: list[tuple[str, str, str, str]]) -> None:
    def word(operation: str, pattern: str, replacement: str) -> str:
        is_replaced = operation.startswith("/")
        pattern = pattern.replace("/", ":") if is_replaced else pattern
        return f'"${{X{operation}{pattern or "a"}{"/" + replacement if is_replaced else ""}}}"'

    words = [(value, word(operation, pattern, replacement)) for value, operation, pattern, replacement in cases]
    expected = printed("\n".join(f"X='{value}'; printf '%s\\n' {edited}" for value, edited in words)).split("\n")[:-1]
    found = [commands(f"X='{value}'; torchrun {edited}")[0].words[1] for value, edited in words]
    assert found == expected


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab$(){}[]\"'`\\;&|<>\n =#!*-+0", max_size=40))
def test_no_text_ends_in_another_error(text: str) -> None:
    try:
        commands(f"A=1\n{text}\ntorchrun pretrain_gpt.py")
    except ValueError as error:
        assert str(error)
