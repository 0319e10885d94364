"`fasterbench check` as a process of its own."
import subprocess, time

import forked
from conftest import heavy_only
from test_cli import bars, command, net

@heavy_only("times two versions")
def test_a_check_that_is_terminated_leaves_no_worktree(tmp_path):
    "As a CI system ends a job."
    def git(*args):
        return subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *args], cwd=tmp_path, check=True,
                              capture_output=True, text=True).stdout
    (tmp_path/"net.py").write_text(net)
    (tmp_path/"budgets.toml").write_text('[net]\nmodel = "net.py:make"\ntime = "<= 101 %"\n')
    git("init", "-q"); git("add", "."); git("commit", "-qm", "net")
    job = subprocess.Popen([command, "check", "budgets.toml", "--against", "HEAD"], cwd=tmp_path,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=bars)
    end = time.monotonic() + forked.patience_s
    while not (ready := list(tmp_path.glob(".git/worktrees/*/index"))) and time.monotonic() < end: time.sleep(0.05)
    assert ready
    time.sleep(1)
    job.terminate()
    job.communicate()
    assert job.returncode == 143 and len(git("worktree", "list").splitlines()) == 1

def test_junit_is_xml_whatever_the_names_hold():
    "Control characters and halves of letters are no XML; they are written as escapes."
    from xml.etree import ElementTree
    from fasterbench.checking import verdict_view
    assert verdict_view._xml_text("a\x00b\x1b[31m\ud800\tc\nd é 🦀") == "a\\x00b\\x1b[31m\\ud800\tc\nd é 🦀"
    for name in ("a\x00b", "\x1b[31m", "\ufffe"): ElementTree.fromstring(f'<a b="{verdict_view._xml_text(name)}"/>')
