# SPDX-License-Identifier: BSD-3-Clause
"""A study as its file describes it: decks, and the matrix of runs."""

import dataclasses
import itertools
import pathlib
import re
import tomllib

from deltapipe_runs import RunError

KEYS = {"title", "deck", "pretrain", "small", "matrix", "settings", "communication_ratio",
        "baseline", "claims", "texts", "jobs", "ruler", "data"}
MATRIX = {"stages": int, "seeds": int, "bandwidths": str}
# Keys that the matrix and the runner set.
RESERVED = {"pipeline.stages", "training.seed", "output.directory", "model.path", "data.train"}
JOB_KEYS = {"deck", "start"}
METRICS = {"text": "perplexity", "images": "accuracy"}  # by data


def override_text(value):
    """A deck's value as `section.key=value` has it on the command line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(override_text(v) if not isinstance(v, str) else f'"{v}"'
                               for v in value) + "]"
    return str(value)


def measured(name, metric="perplexity"):
    """Setting and column that a claim names: NAME, or NAME:codec for the metric through the
    codec."""
    setting, _, column = name.partition(":")
    if column not in ("", "codec"):
        raise RunError(f"'{name}' is neither NAME nor NAME:codec")
    return setting, f"codec_{metric}" if column else metric


@dataclasses.dataclass(frozen=True)
class StudyRun:
    """One deck of the matrix."""
    setting: str
    stages: int
    seed: int
    bandwidth: str          # as decks have it; empty: the study's ratio sets it, or no link
    name: str               # of its folder
    overrides: dict
    job: str = ""           # empty: the study has one job without a name
    start: str = ""         # run whose model it begins with; empty: the pretrained one


class Study:
    """One file inputs/studies/NAME.toml; UserErrors name it."""

    def __init__(self, path, small):
        self.path = pathlib.Path(path)
        self.name = self.path.stem
        try:
            definition = tomllib.loads(self.path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise RunError(f"{self.path}: {error}") from error
        self._check_keys(definition, KEYS, "")
        self.small = small
        self.definition = definition
        preset = definition.get("small", {}) if small else {}
        self._check_keys(preset, {"deck", "pretrain", "matrix", "settings"}, "small.")
        self.data = definition.get("data", "text")
        if self.data not in METRICS:
            raise RunError(f"{self.path}: data is one of {', '.join(METRICS)}, not '{self.data}'")
        self.metric = METRICS[self.data]
        self.texts = definition.get("texts", "")
        self.jobs = definition.get("jobs", {"": {}})
        self.ruler = definition.get("ruler", {})
        self.title = definition.get("title", self.name)
        self.claims = definition.get("claims", [])
        self.matrix = {"stages": [2], "seeds": [42], "bandwidths": [""],
                       **definition.get("matrix", {}), **preset.get("matrix", {})}
        self._check_matrix()
        self.settings = definition.get("settings", {})
        if "settings" in preset:
            self.settings = {name: self._setting(name) for name in preset["settings"]}
        if not self.settings:
            raise RunError(f"{self.path}: has no [settings.NAME]")
        self.small_deck = preset.get("deck", {})
        self.deck = {**definition.get("deck", {}), **self.small_deck}
        self.replicas = self.deck.get("pipeline.replicas", 1)
        self.pretrain = {**definition.get("pretrain", {}), **preset.get("pretrain", {})}
        self.communication_ratio = definition.get("communication_ratio")
        self.baseline = definition.get("baseline", next(iter(self.settings)))
        self._setting(self.baseline)
        if self.communication_ratio is not None and not (
                isinstance(self.communication_ratio, (int, float)) and self.communication_ratio > 0
                and min(self.matrix["stages"]) > 1):
            raise RunError(f"{self.path}: communication_ratio is a number above 0, for 2 stages or "
                           "more")
        self._check_images(definition)
        self._check_jobs()
        self._check_decks()
        self._check_claims(definition.get("settings", {}))

    def _check_keys(self, table, known, prefix):
        for key in table:
            if key not in known:
                raise RunError(f"{self.path}: unknown key '{prefix}{key}'; there are "
                               + ", ".join(sorted(known)))

    def _check_matrix(self):
        self._check_keys(self.matrix, MATRIX, "matrix.")
        for key, kind in MATRIX.items():
            values = self.matrix[key]
            if not isinstance(values, list) or not values or len(set(values)) < len(values) \
                    or not all(type(value) is kind for value in values) \
                    or (key == "stages" and min(values) < 1):
                raise RunError(f"{self.path}: matrix.{key} is a list of different "
                               f"{'numbers' if kind is int else 'texts'}, one or more")

    def _check_images(self, definition):
        """Runs of images begin with new models, and their deck names the data."""
        for key in ("texts", "pretrain", "communication_ratio"):
            if self.data == "images" and key in definition:
                raise RunError(f"{self.path}: '{key}' is for studies of texts")

    def _check_jobs(self):
        for name, job in self.jobs.items():
            self._check_keys(job, JOB_KEYS, f"jobs.{name}.")
            start = job.get("start", "")
            before = list(self.jobs)[:list(self.jobs).index(name)]
            other, _, setting = start.partition("/")
            if start and (other not in before or setting not in self.settings):
                raise RunError(f"{self.path}: jobs.{name}.start is 'JOB/SETTING' of a job before it, "
                               f"not '{start}'")
        if bool(self.texts) != ("jobs" in self.definition):
            raise RunError(f"{self.path}: jobs need texts, the script that makes theirs, and the "
                           "other way round")
        for setting, share in self.ruler.items():
            if not isinstance(share, (int, float)) or not 0 < share <= 1:
                raise RunError(f"{self.path}: ruler.{setting} is a share of the steps, above 0 and "
                               "at most 1")

    def _check_decks(self):
        jobs = {f"jobs.{name}" if name else "job": job.get("deck", {})
                for name, job in self.jobs.items()}
        for name, table in {**self.settings, **jobs, "deck": self.deck,
                            "pretrain": self.pretrain}.items():
            if not isinstance(table, dict):
                raise RunError(f"{self.path}: '{name}' is no table of deck keys")
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
                raise RunError(f"{self.path}: '{name}' is no name for folders")
            for key in RESERVED & set(table):
                if name != "pretrain" or key != "pipeline.stages":
                    raise RunError(f"{self.path}: '{key}' in '{name}' is set by the study itself")

    def _check_claims(self, known):
        for claim in self.claims:
            needed = {"finding", "better", "than"}
            if not needed <= set(claim) or len(set(claim) & {"by", "within"}) != 1 \
                    or set(claim) - needed - {"by", "within"}:
                raise RunError(f"{self.path}: a claim has finding, better, than, and one of by and "
                               f"within; this one has {', '.join(claim)}")
            for key in ("better", "than"):
                if measured(claim[key])[0] not in known:
                    raise RunError(f"{self.path}: the claim '{claim['finding']}' names an unknown "
                                   f"setting '{claim[key]}'; there are {', '.join(known)}")

    def _setting(self, name):
        if name not in self.settings:
            raise RunError(f"{self.path}: no setting '{name}'; there are "
                           + ", ".join(self.settings))
        return self.settings[name]

    def runs(self):
        """Settings vary fastest, so that what is compared ran close together."""
        m = self.matrix
        return [self._run(job, setting, stages, seed, bandwidth)
                for job, stages, seed, bandwidth, setting in
                itertools.product(self.jobs, m["stages"], m["seeds"], m["bandwidths"],
                                  self.settings)]

    def _run(self, job, setting, stages, seed, bandwidth):
        deck = self.jobs[job].get("deck", {})
        # The small preset replaces keys of jobs as well.
        overrides = {**self.deck, **deck, **self.small_deck, **self.settings[setting],
                     "pipeline.stages": stages, "training.seed": seed}
        if bandwidth:
            overrides["network.bandwidth"] = bandwidth
        name = self._name(job, setting, stages, seed, bandwidth)
        start = self.jobs[job].get("start", "")
        if start:  # with the first seed: one model for all
            start = self._name(*start.split("/"), stages, self.matrix["seeds"][0], bandwidth)
        return StudyRun(setting, stages, seed, bandwidth, name, overrides, job, start)

    def _name(self, job, setting, stages, seed, bandwidth):
        name = (f"{job}-" if job else "") + f"{setting}-k{stages}"
        if len(self.matrix["bandwidths"]) > 1:
            name += "-" + re.sub(r"[^0-9A-Za-z.]+", "", bandwidth or "nolink")
        if len(self.matrix["seeds"]) > 1:
            name += f"-seed{seed}"
        return name
