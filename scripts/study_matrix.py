# SPDX-License-Identifier: BSD-3-Clause
"""A study as its file describes it: decks, and the matrix of runs."""

import dataclasses
import itertools
import pathlib
import re
import tomllib

from run_reader import RunError

KEYS = {"title", "deck", "pretrain", "small", "matrix", "settings", "communication_ratio",
        "baseline", "claims"}
MATRIX = {"stages", "seeds", "bandwidths"}


def override_text(value):
    """A deck's value as `section.key=value` has it on the command line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(override_text(v) if not isinstance(v, str) else f'"{v}"'
                               for v in value) + "]"
    return str(value)


@dataclasses.dataclass(frozen=True)
class StudyRun:
    """One deck of the matrix."""
    setting: str
    stages: int
    seed: int
    bandwidth: str          # as decks have it; empty: the study's ratio sets it, or no link
    name: str               # of its folder
    overrides: dict


class Study:
    """One file inputs/studies/NAME.toml; UserErrors name it."""

    def __init__(self, path, small):
        self.path = pathlib.Path(path)
        self.name = self.path.stem
        try:
            definition = tomllib.loads(self.path.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as error:
            raise RunError(f"{self.path}: {error}") from error
        self._check_keys(definition, KEYS, "")
        self.small = small
        preset = definition.get("small", {}) if small else {}
        self._check_keys(preset, {"deck", "pretrain", "matrix", "settings"}, "small.")
        self.title = definition.get("title", self.name)
        self.claims = definition.get("claims", [])
        self.matrix = {"stages": [2], "seeds": [42], "bandwidths": [""],
                       **definition.get("matrix", {}), **preset.get("matrix", {})}
        self._check_keys(self.matrix, MATRIX, "matrix.")
        self.settings = definition.get("settings", {})
        if "settings" in preset:
            self.settings = {name: self._setting(name) for name in preset["settings"]}
        if not self.settings:
            raise RunError(f"{self.path}: has no [settings.NAME]")
        self.baseline = definition.get("baseline", next(iter(self.settings)))
        self._setting(self.baseline)
        self.communication_ratio = definition.get("communication_ratio")
        self.deck = {**definition.get("deck", {}), **preset.get("deck", {})}
        self.pretrain = {**definition.get("pretrain", {}), **preset.get("pretrain", {})}

    def _check_keys(self, table, known, prefix):
        for key in table:
            if key not in known:
                raise RunError(f"{self.path}: unknown key '{prefix}{key}'; there are "
                               + ", ".join(sorted(known)))

    def _setting(self, name):
        if name not in self.settings:
            raise RunError(f"{self.path}: no setting '{name}'; there are "
                           + ", ".join(self.settings))
        return self.settings[name]

    def runs(self):
        """Settings vary fastest, so that what is compared ran close together."""
        m = self.matrix
        return [self._run(setting, stages, seed, bandwidth) for stages, seed, bandwidth, setting in
                itertools.product(m["stages"], m["seeds"], m["bandwidths"], self.settings)]

    def _run(self, setting, stages, seed, bandwidth):
        name = f"{setting}-k{stages}"
        if len(self.matrix["bandwidths"]) > 1:
            name += "-" + re.sub(r"[^0-9A-Za-z.]+", "", bandwidth or "nolink")
        if len(self.matrix["seeds"]) > 1:
            name += f"-seed{seed}"
        overrides = {**self.deck, **self.settings[setting], "pipeline.stages": stages,
                     "training.seed": seed}
        if bandwidth:
            overrides["network.bandwidth"] = bandwidth
        return StudyRun(setting, stages, seed, bandwidth, name, overrides)
