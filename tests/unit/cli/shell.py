"""The command line called from within a test, on a cluster in the same process."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from hotfire.cli import main


@dataclass
class Shell:
    """Calls commands; what they print is handed back."""

    namesrv: str
    capsys: pytest.CaptureFixture[str]

    def call(self, *words: str) -> tuple[int, str, str]:
        """Exit code, output and errors of a command."""
        self.capsys.readouterr()
        code = main([*words, "-n", self.namesrv])
        printed = self.capsys.readouterr()
        return code, printed.out, printed.err

    def run(self, *words: str) -> str:
        code, out, err = self.call(*words)
        assert code == 0, err
        return out

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json"))

    def refused(self, *words: str) -> str:
        """The one line that says why not."""
        code, out, err = self.call(*words)
        assert (code, out, err.count("\n")) == (1, "", 1), (out, err)
        return err

    def send(self, topic: str, *bodies: str, queue: str = "broker-0:0") -> None:
        for body in bodies:
            self.run("send", topic, body, "--queue", queue, "--quiet")
