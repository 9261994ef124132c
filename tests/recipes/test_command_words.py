"""A command's words, one case each. `test_words_of_bash.py` has the judge."""

import pytest

from planner.errors import RecipeError
from planner.recipes import RecipeOptions, read_recipe
from planner.recipes.command import command_of
from planner.recipes.rewrite import rewrite
from planner.recipes.scalars import has_shell

CHECK = {"is_for_job": False, "needs_micro": False}
SFT = "python sft.py --model_name_or_path m"


def arguments(script, **given_):
    return command_of(script, "the command", **given_).arguments


def test_what_stands_behind_a_quoted_token_is_read():
    """The first command in the README of open-r1: 16 and not 64."""
    command = (
        "accelerate launch --config_file=recipes/accelerate_configs/zero3.yaml src/open_r1/sft.py \\\n"
        "    --model_name_or_path open-r1/Qwen2.5-Math-7B-RoPE-300k \\\n    --eos_token '<|im_end|>' \\\n"
        "    --num_train_epochs 5 \\\n    --per_device_train_batch_size 2 \\\n    --output_dir data/OpenR1-Distill-7B\n"
    )
    assert read_recipe(command, (), RecipeOptions(gpus=8, **CHECK)).global_batch == 16


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("'<|im_end|>' b", ("<|im_end|>", "b")),
        ('"|" ">" ";" "&&" b', ("|", ">", ";", "&&", "b")),
        ("\\| b", ("|", "b")),
        ("lr#1 b # c", ("lr#1", "b")),
        ("'' b", ("", "b")),
        ("a2>f 2>f b >g c 2>&1 &>h d", ("a2", "b", "c", "d")),
        ("a; b", ("a",)),
        ("a&&b", ("a",)),
        ("a|b", ("a",)),
        ("a &", ("a",)),
        ('\'it\'"\'"\'s\' "a \\"b\\" \\$c"', ("it's", 'a "b" $c')),
        ("a\\\nb c\\ d", ("ab", "c d")),
        ("$((2 * 4 + 1)) $'a\\tb'", ("9", "a\tb")),
        ("<<END b\nit's\nEND\n", ("b",)),
        ("datasets=[hh,shp] {a} 'x{1,2}'", ("datasets=[hh,shp]", "{a}", "x{1,2}")),
        ("+hydra.run.dir='${oc.env:X}' '${a.b}'", ("+hydra.run.dir=${oc.env:X}", "${a.b}")),
    ],
)
def test_a_words_quotes_are_kept_until_it_is_split(written, words):
    assert arguments(f"python train.py {written}") == words


@pytest.mark.parametrize(
    ("before", "word", "words"),
    [
        ("A=1 B='x y'; export C=3 D=$A", '$A $B "$B" $C$D', ("1", "x", "y", "x y", "31")),
        ("A=1; A=2", "$A", ("2",)),
        ("ARGS=(--a 'b c'); ARGS+=(d)", '"${ARGS[@]}" "${ARGS[1]}"', ("--a", "b c", "d", "b c")),
        ("set -- x 'y z'", '"$@" $# $2', ("x", "y z", "2", "y", "z")),
        ("N=4", "$((N * 2)) ${N:-1} ${M:-7} ${#N}", ("8", "4", "7", "1")),
        ("f() { B=$1; }; f 9", "$B", ("9",)),
        ("if true; then A=1; fi", "$A", ("$A",)),
        ("A=1; for i in 1 2; do A=$i; done", "$A $i", ("$A", "$i")),
        ("A=1; true || A=2", "$A", ("$A",)),
        ("(A=1)", "$A", ("$A",)),
        ("A=1; for i in 1 2; do B=$A; eval A=2; done", "$B", ("$B",)),
        ("read A", "$A", ("$A",)),
        ("A=$(nproc)", "$A $(nproc) `nproc`", ("$A", "$(nproc)", "$(nproc)")),
        ("A=1", "${model}x ${model} ${A%b} $B$A", ("${model:-}x", "$model", "${A%b}", "${B}1")),
    ],
)  # fmt: skip
def test_a_variable_is_filled_in_only_where_bash_is_certain_to_do_so(before, word, words):
    """Where a condition or a loop sets it, it stays open. `${model}` would be Hydra's, so it becomes `$model`."""
    assert arguments(f"{before}\npython train.py {word}") == words
    assert all(has_shell(word) for word in words if "$" in word)


def test_a_value_that_only_a_shell_knows_is_never_taken_for_a_text():
    for value in ("$(cat steps)", "${STEPS%k}", "${steps[0]}", "`cat steps`", "$((STEPS + 1))", "$steps"):
        with pytest.raises(RecipeError, match="max_steps: found"):
            read_recipe(f"{SFT} --max_steps {value}", (), RecipeOptions(gpus=2, **CHECK))
        with pytest.raises(RecipeError, match="batch_size: found"):
            read_recipe(
                f"python train.py model=pythia28 loss=sft batch_size={value}", (), RecipeOptions(gpus=2, **CHECK)
            )


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("bash -c 'python train.py lr=$1 \"a b\"' name 5", ("lr=5", "a b")),
        ('B=2; srun --nodes 1 bash -c "A=3; python train.py a=\\$A b=$B c=\\"x y\\""', ("a=3", "b=2", "c=x y")),
        ("export A=1; B=2; bash -lc 'python train.py $A $B'", ("1", "$B")),
        # The outer shell fills it in, before the inner one sets it.
        ('bash -c "A=3; python train.py lr=$A"', ("lr=$A",)),
        ("CMD='python train.py a=1'; $CMD b=2", ("a=1", "b=2")),
        ("CMD='python train.py \"a b\"'; eval $CMD", ("a b",)),
        ("sbatch --nodes 1 --wrap='python train.py a=1'", ("a=1",)),
        ("A=1; bash <<END\npython train.py $A '$A'\nEND\n", ("1", "1")),
        ("run() { python train.py \"$@\"; }; run a 'b c'", ("a", "b c")),
        ("run() { python train.py a; }", ("a",)),
        ("LOG=$(python train.py a 2>&1)", ("a",)),
        ("if python train.py a; then echo done; fi", ("a",)),
        ("for i in 1 2; do python train.py a; done", ("a",)),
        ("time nohup env A=1 python -u -W ignore train.py a | tee log", ("a",)),
        ("conda run -n x python train.py a", ("a",)),
        ("timeout 5h ./train.py a", ("a",)),
        ("$LAUNCHER train.py a", ("a",)),
        ('"$PYTHON" -u train.py a', ("a",)),
        ("ray job submit --working-dir . -- python train.py a", ("a",)),
        ("python -m torch.distributed.run --nproc_per_node 8 train.py a", ("a",)),
        ("$ python train.py a", ("a",)),
        ("`python train.py a`", ("a",)),
        ("Run this:\n```bash\npython train.py a\n```\nDon't stop.\n", ("a",)),
        ("python train.py \\  # remark\n a \\   \n b", ("a", "b")),
    ],
)
def test_a_command_is_found_where_a_shell_starts_it(script, words):
    assert arguments(script) == words


@pytest.mark.parametrize(
    "script",
    [
        'echo "python sft.py --lr 1"',
        "echo python sft.py",
        "# python sft.py",
        "cat sft.py",
        "cp train.py x",
        "vim train.py",
        "git add train.py",
        "nohup cp train.py x",
        "env -i cat train.py",
        "printf '%s' 'python sft.py'",
        "cat > run.sh <<'END'\npython sft.py --lr 1\nEND\n",
        "echo '\npython sft.py --lr 1\n'",
        "python other.py sft.py",
        "python -c 'print(1)' sft.py",
        "python -m pytest train.py",
        "accelerate config sft.py",
        "A='python sft.py'",
        "exit\npython sft.py",
        "uv pip install trl sft.py",
        "accelerate launch --multi_gpu run.py --train_file sft.py",
        "torchrun --nproc_per_node=8 my_program sft.py",
        "torchrun -m mine.train sft.py",
    ],
)
def test_a_text_that_names_a_script_is_no_training_command(script, tmp_path):
    file = tmp_path / "run.sh"
    file.write_text(f"{script}\n")
    for recipe in (script, str(file)):
        with pytest.raises(RecipeError, match="found no training command"):
            read_recipe(recipe, (), RecipeOptions(gpus=2, **CHECK))


@pytest.mark.parametrize(
    "script",
    [
        "FIRST\nSECOND",
        "FIRST && SECOND",
        "FIRST & SECOND",
        "if [ $X = 1 ]; then FIRST; else SECOND; fi",
        "case $X in a) FIRST;; *) SECOND;; esac",
        "if [ $X = 1 ]; then A=1; python train.py $A; else A=2; python train.py $A; fi",
        "bash -c 'FIRST'; bash -c \"SECOND\"",
        "for i in 1 2; do FIRST; done; SECOND",
        "run() { python train.py $1; }; run 1; run 2",
        "Text\n```\nFIRST\n```\nText\n```\nSECOND\n```\n",
    ],
)
def test_of_two_training_commands_both_are_named_and_one_is_asked_for(script):
    """The choice is the user's: planner cannot know which one they mean."""
    text = script.replace("FIRST", "python train.py 1").replace("SECOND", "python train.py 2")
    with pytest.raises(RecipeError, match=r"found 2 training commands .*train.py 1.*train.py 2.*in single quotes"):
        command_of(text, "run.sh")


def test_the_lines_of_both_commands_are_said_and_long_ones_are_cut():
    text = f"set -e\n{SFT} --lr 1\n\n{SFT} --output_dir {'x' * 500}\n"
    with pytest.raises(RecipeError, match=r"line 2: python sft.py .*, line 4: python sft.py ") as raised:
        command_of(text, "run.sh")
    assert len(str(raised.value)) < 500


def test_the_same_command_twice_is_one():
    assert arguments("python train.py a=1\npython  train.py 'a=1'\n") == ("a=1",)
    with pytest.raises(RecipeError, match="2 training commands"):
        command_of("export W=1\npython train.py a=1\nexport W=2\npython train.py a=1\n", "run.sh")


def test_a_missing_backslash_is_said():
    """The README of open-r1 has it. A shell trains without the options on the next line."""
    with pytest.raises(RecipeError, match=r"line 2 begins with --per_device_train_batch_size=1, .*backslash"):
        command_of(f"{SFT}\n    --per_device_train_batch_size=1 --num_train_epochs=5\n", "README")
    with pytest.raises(RecipeError, match="line 4 begins with --lr"):
        command_of(f"{SFT} \\\n  --bf16 \\\n  # --packing \\\n  --lr 1\n", "run.sh")
    for line in ("++lr=1", "loss.beta=1"):
        with pytest.raises(RecipeError, match="line 2 begins with"):
            command_of(f"python train.py a=1\n{line} b=2\n", "run.sh")


def test_open_devices_are_not_counted():
    run = "python train.py model=pythia69 trainer=FSDPTrainer batch_size=60"
    assert read_recipe(f"CUDA_VISIBLE_DEVICES=0,1,2 {run}").gpus == 3
    assert read_recipe(f"CUDA_VISIBLE_DEVICES=$IDS {run}", (), RecipeOptions(**CHECK)).gpus is None


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("python train.py 'a", "a single quote has no end"),
        ('python train.py "a', "a double quote has no end"),
        ("python train.py $(a", "a bracket has no end"),
        ("python train.py a(b)", r"does not expect \( there"),
        ("python train.py a\nfi", "does not expect fi there"),
        ("if true; then python train.py a", "does not expect the end"),
        ("python train.py a ;; b", "does not expect ;;"),
        ("python train.py | && b", "does not expect &&"),
        ("python train.py lr=${a.b}", "single quotes"),
        ("python train.py {a,b}", "several words"),
        ("python train.py <<END a\nb", "<<END has no end"),
        ("f() { f; }; f\npython train.py a", "call f again and again"),
    ],
)
def test_what_a_shell_refuses_is_refused(script, why):
    with pytest.raises(RecipeError, match=why):
        command_of(script, "run.sh")


@pytest.mark.parametrize(
    "text",
    [
        "'" * 10**6, "$(" * 140_000, "(" * 280_000, '"$(' * 90_000, "cat <<A\n" * 30_000, "a;" * 140_000,
        "$((" * 90_000,
        "${A:-" * 5_000 + "}" * 5_000, "&& a " * 50_000, "if a; then " * 20_000, "\\" * 280_000, "`\\" * 140_000,
    ],
)  # fmt: skip
def test_a_hostile_script_is_refused_or_read(text):
    """It takes no deep recursion and no long time."""
    said = ""
    try:
        assert command_of(f"python train.py {text}", "run.sh").script == "train.py"
    except RecipeError as error:
        said = str(error)
    assert len(said) < 500


def test_a_docstring_with_two_commands_names_both(tmp_path):
    file = tmp_path / "sft.py"
    file.write_text(f'"""\n# It\'s full:\n```bash\n{SFT}\n```\n# LoRA:\n```\n{SFT} --use_peft\n```\n"""\nimport a\n')
    with pytest.raises(RecipeError, match=r"line 4: python sft.py .*line 8: .*--use_peft"):
        read_recipe(str(file), (), RecipeOptions(gpus=2, **CHECK))


def test_exported_and_set_variables_reach_the_program():
    command = command_of(
        "export A=1 B='x y'; C=3; export -n A; if true; then export D=4; fi\nE=$C python train.py", "x"
    )
    assert command.environment == {"B": "x y", "D": "$D", "E": "3"}
    assert command_of("env -u X F=5 python train.py", "x").environment == {"F": "5"}


def test_a_command_is_written_back_in_the_quotes_that_it_needs():
    """What planner left open is left to the shell. Hydra's own `${}` is not."""
    run = "python train.py model=pythia28 loss=sft datasets=[hh] batch_size=8 trainer=BasicTrainer lr=1e-6 exp_name="
    for name, written in (
        ("'${lr}_a'", "'exp_name=${lr}_a'"),
        ("$N-a", "exp_name=$N-a"),
        ('"$N a"', '"exp_name=$N a"'),
    ):
        recipe = read_recipe(run + name, (), RecipeOptions(gpus=2, max_micro=4))
        assert written in rewrite(recipe, "dpo", 4).command


def test_the_size_of_a_sampled_group_is_read_by_words():
    sampled = "python -m train.sample x --num_samples_per_prompt{}\npython train.py a"
    assert command_of(sampled.format("=4"), "x").group_size == 4
    assert command_of(sampled.format(" '8' # 9"), "x").group_size == 8
    assert command_of(f"# {sampled.format(' 4')}", "x").group_size is None


@pytest.mark.parametrize("start", ['eval "$CMD"', 'bash -c "$CMD"', "srun bash -c $CMD", "$CMD"])
def test_a_command_in_a_variable_that_planner_cannot_fill_in_is_named(start):
    script = f'CMD="torchrun $(pwd)/sft.py --bf16"\necho $CMD\n{start}\n'
    with pytest.raises(RecipeError, match=r"line 3 runs .*\$CMD, whose value planner does not know"):
        command_of(script, "run.sh")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ('python sft.py "${D-}" a', ("", "a")),
        ('python sft.py "${D:-}${E-}"', ("",)),
        ("python sft.py ${D-} a", ("a",)),
        ("IFS=,\npython sft.py ${D:-d e}", ("${D:-d e}",)),
        ("declare -l D\nexport D=A\npython sft.py $D", ("$D",)),
    ],
)
def test_an_empty_default_in_quotes_is_a_word_and_attributes_and_ifs_leave_a_variable_open(script, words):
    assert command_of(script, "run.sh").arguments == words


@pytest.mark.parametrize("line", ["declare -i D=3", "typeset -n D=E", "f() { local -i D; }; f"])
def test_a_variable_that_computes_or_names_another_one_is_refused(line):
    """Its assignments may fail, or change the other one."""
    with pytest.raises(RecipeError, match=r"line 1: found \w+ -[in], which planner does not read"):
        command_of(f"{line}\npython sft.py --bf16", "run.sh")


def test_a_command_that_begins_as_an_element_of_an_array_is_refused():
    with pytest.raises(RecipeError, match=r"a shell does not expect b\[\[ there"):
        command_of("python sft.py a |b[[ |a", "run.sh")
    assert command_of("b[1]=3\npython sft.py a", "run.sh").arguments == ("a",)


def test_a_default_that_sets_its_variable_leaves_it_open():
    script = "export C=\nD=${C:=z} python sft.py $C"
    made = command_of(script, "run.sh")
    assert (made.arguments, made.environment["C"]) == ((), "$C")  # bash fills in words before it sets variables


def test_a_variable_whose_export_may_have_ended_is_open():
    made = command_of("export A=1\nif true; then unset A; fi\ntypeset A=7\npython sft.py --bf16", "run.sh")
    assert made.environment == {"A": "$A"}
