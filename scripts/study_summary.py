# SPDX-License-Identifier: BSD-3-Clause
"""Tables and plots of a study from the run files of its runs."""

import csv
import itertools
import json
import math
import tomllib

import h5py
import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from deltapipe_runs import Run, RunError
from script_support import bytes_text
from study_matrix import measured

COLUMNS = ("setting", "stages", "perplexity", "wire_bytes", "seconds", "speedup", "forward_bits",
           "backward_bits", "seed", "bandwidth", "best_perplexity", "sequences_per_second",
           "status", "codec_perplexity", "evaluation_bytes")
IMAGE_COLUMNS = ("setting", "stages", "accuracy", "codec_accuracy", "wire_bytes", "seconds",
                 "speedup", "forward_bits", "backward_bits", "forward_error", "backward_error",
                 "seed", "bandwidth", "best_accuracy", "images_per_second", "status",
                 "evaluation_bytes")
# More columns of studies whose runs have replicas.
REPLICA_COLUMNS = ("replica_bits", "replica_bytes")
# Columns of a study with jobs.
JOB_COLUMNS = ("job", "setting", "seed", "exact_match", "codec_exact_match", "loss", "forward_bits",
               "backward_bits", "forward_error", "backward_error", "perplexity", "wire_bytes",
               "seconds", "stages", "status")
NAN = math.nan
DIRECTIONS = ("forward", "backward")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def bits_per_element(run, direction, channels):
    """Bits on the wire for each value that crossed a boundary in training, headers and first visits
    included."""
    boundaries = int(run.attributes["stages"]) - 1
    elements = run.steps["tokens"].sum() * channels * boundaries
    return 8.0 * float(run.steps[direction + "_bytes"].sum()) / elements if elements else NAN


def replica_bytes(run):
    return int(run.steps["replica_bytes"].sum()) if "replica_bytes" in run.steps else 0


def replica_bits(run):
    """Bits for each parameter, step and leg of a sum over replicas: a replica sends its gradients
    once to those that add them up, and its sums once to the others."""
    replicas = int(run.attributes.get("replicas", 1))
    if replicas == 1:
        return NAN
    values = 2 * (replicas - 1) * int(run.attributes["trained_parameters"]) * run.length
    return 8.0 * replica_bytes(run) / values


def end_seconds(run):
    """From the run's start to the end of its last step or evaluation."""
    ends = [table["seconds"][-1] for table in (run.steps, run.evaluations) if len(table["seconds"])]
    return float(max(ends, default=NAN))


def mean_error(run, direction):
    """Mean relative error over boundaries and the steps in which it was measured; NaN: never."""
    errors = run.steps.get(direction + "_error", np.empty(0))
    errors = errors[np.isfinite(errors)]
    return float(errors.mean()) if len(errors) else NAN


def link_of(run):
    """The emulated bandwidth as the run's deck has it, in bit/s; empty: none."""
    network = tomllib.loads(str(run.attributes["deck"])).get("network", {})
    values = network.get("bandwidth", [])
    return "" if not values else str(values[0] if isinstance(values, list) else values)


def row_of_images(study_run, run):
    """Without bits: boundaries differ in size, so that only uncompressed runs know them."""
    accuracies = np.concatenate([run.evaluations[name] for name in ("accuracy", "codec_accuracy")
                                 if name in run.evaluations])
    accuracies = accuracies[np.isfinite(accuracies)]
    return {
        "setting": study_run.setting,
        "stages": study_run.stages,
        "accuracy": run.metric("accuracy"),
        "codec_accuracy": run.metric("accuracy", "codec_"),
        "best_accuracy": float(accuracies.max()) if len(accuracies) else NAN,
        "wire_bytes": int(run.wire_bytes + np.nan_to_num(run.evaluation_bytes)),
        "evaluation_bytes": run.evaluation_bytes,
        "seconds": end_seconds(run),
        "seed": study_run.seed,
        "bandwidth": link_of(run),
        "images_per_second": run.rate("samples"),
        "status": run.status,
        **{f"{d}_bytes": float(run.steps[d + "_bytes"].sum()) for d in DIRECTIONS},
        **{f"{d}_error": mean_error(run, d) for d in DIRECTIONS},
    }


def row_of(study_run, run, channels):
    perplexities = run.evaluations["perplexity"]
    perplexities = perplexities[np.isfinite(perplexities)]
    return {
        "job": study_run.job,
        "setting": study_run.setting,
        "stages": study_run.stages,
        "perplexity": run.perplexity,
        "wire_bytes": int(run.wire_bytes + np.nan_to_num(run.evaluation_bytes)),
        "seconds": end_seconds(run),
        "speedup": NAN,
        "forward_bits": bits_per_element(run, "forward", channels),
        "backward_bits": bits_per_element(run, "backward", channels),
        "seed": study_run.seed,
        "bandwidth": link_of(run),
        "best_perplexity": float(perplexities.min()) if len(perplexities) else NAN,
        "sequences_per_second": run.rate("samples"),
        "status": run.status,
        "codec_perplexity": run.codec_perplexity,
        "evaluation_bytes": run.evaluation_bytes,
        "loss": float(run.validation_loss[-1]) if len(run.validation_loss) else NAN,
        "exact_match": run.exact_match,
        "codec_exact_match": run.codec_exact_match,
        "replica_bits": replica_bits(run),
        "replica_bytes": replica_bytes(run),
        "forward_error": mean_error(run, "forward"),
        "backward_error": mean_error(run, "backward"),
    }


def baseline_of(rows, baseline):
    """A function that returns the baseline's row of a row's job, stages, seed and link, if any."""
    def key(row):
        return row.get("job", ""), row["stages"], row["seed"], row["matrix_bandwidth"]
    found = {key(row): row for row in rows if row["setting"] == baseline}
    return lambda row: found.get(key(row), {})


def fill_speedups(rows, baseline):
    find = baseline_of(rows, baseline)
    for row in rows:
        row["speedup"] = find(row).get("seconds", NAN) / row["seconds"]


def fill_bits(rows, baseline):
    """Bits on the wire for each value that crossed a boundary in training, from the bytes of the
    baseline, which sends fp32."""
    find = baseline_of(rows, baseline)
    for row in rows:
        for direction in DIRECTIONS:
            sent = f"{direction}_bytes"
            row[f"{direction}_bits"] = 32 * row[sent] / find(row).get(sent, NAN)


def columns_of(study):
    if study.data == "images":
        return IMAGE_COLUMNS
    columns = JOB_COLUMNS if study.texts else COLUMNS
    return columns + (REPLICA_COLUMNS if study.replicas > 1 else ())


def write_csv(path, study, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns_of(study), extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({name: f"{value:.6g}" if isinstance(value, float) else value
                             for name, value in row.items()})


def write_hdf5(path, study, rows, runs):
    """A column a dataset, and the curves of each run as a group."""
    with h5py.File(path, "w") as file:
        file.attrs["title"] = study.title
        for name in columns_of(study):
            values = [row[name] for row in rows]
            if isinstance(values[0], str):
                file.create_dataset(name, data=values, dtype=h5py.string_dtype())
            else:
                file.create_dataset(name, data=np.array(values))
        for row, run in zip(rows, runs):
            group = file.create_group("curves/" + row["run"])
            group.attrs["setting"] = row["setting"]
            for name in ("epoch", "loss", "perplexity", "accuracy", "seconds", "codec_loss",
                         "codec_perplexity", "codec_accuracy", "exact_match",
                         "codec_exact_match"):
                if name in run.evaluations:
                    group[name] = run.evaluations[name]
            group["wire_bytes"] = bytes_at_evaluations(run)


def bytes_at_evaluations(run):
    sent = np.concatenate([[0.0], np.cumsum(run.step_bytes)])
    return sent[np.searchsorted(run.steps["step"], run.evaluations["step"], side="right")]


def grouped(rows, columns):
    """Pairs of the columns' values and the rows that have them, in the order of the study."""
    def key(row):
        return tuple(row[column] for column in columns)
    order = list(dict.fromkeys(map(key, rows)))
    return [(k, [row for row in rows if key(row) == k]) for k in order]


def groups_of(rows):
    """Rows that differ in the seed only."""
    return grouped(rows, ("matrix_bandwidth", "stages", "setting"))


def mean(rows, column):
    return float(np.mean([row[column] for row in rows]))


def spread(rows, column):
    """Standard deviation over seeds; NaN for one."""
    return float(np.std([row[column] for row in rows], ddof=1)) if len(rows) > 1 else NAN


def with_spread(rows, column, form):
    text = form.format(mean(rows, column))
    deviation = spread(rows, column)
    return text if math.isnan(deviation) else text + " ± " + form.format(deviation)


def against(groups, key, baseline, column):
    """Mean of a column relative to the baseline's, in percent."""
    found = dict(groups).get((key[0], key[1], baseline))
    own = dict(groups)[key]
    return 100 * (mean(own, column) / mean(found, column) - 1) if found else NAN


def head_of_table(study, header):
    """The first two columns are words, all others figures."""
    return [f"# {study.title}", "", "| " + " | ".join(header) + " |",
            "|" + "---|" * 2 + "---:|" * (len(header) - 2)]


def job_groups(rows):
    """Rows of a study with jobs that differ in the seed only."""
    return grouped(rows, ("job", "setting"))


def lost_steps(study, rows, job, share):
    """The share of the steps that a setting loses: at the rest of them uncompressed training (the
    settings of study.ruler) has its exact match."""
    groups = dict(job_groups(rows))
    marks = sorted((steps, mean(groups[job, setting], "exact_match"))
                   for setting, steps in study.ruler.items() if (job, setting) in groups)
    if not marks or math.isnan(share):
        return "-"
    if share >= marks[-1][1]:
        return "0 %"
    # More steps are no worse but by chance.
    marks = [(min(found for _, found in marks[i:]), steps) for i, (steps, _) in enumerate(marks)]
    lost = 100 * (1 - np.interp(share, *zip(*marks)))
    return f"{'> ' if share < marks[0][0] else ''}{lost:.0f} %"


def table_of_jobs(study, rows):
    header = ["job", "setting", "seeds", "exact match", "lost steps", "through the codec", "loss",
              "bits forward", "backward", "error forward", "backward"]
    lines = head_of_table(study, header)
    for (job, setting), group in job_groups(rows):
        def percent(column, group=group):
            shares = [{column: 100 * row[column]} for row in group]
            text = with_spread(shares, column, "{:.1f}")
            return "-" if math.isnan(mean(shares, column)) else text + " %"
        def error(direction, group=group):
            text = f"{mean(group, direction + '_error'):.3f}"
            return "-" if text == "nan" else text
        cells = [job, setting, str(len(group)), percent("exact_match"),
                 lost_steps(study, rows, job, mean(group, "exact_match")),
                 percent("codec_exact_match"),
                 with_spread(group, "loss", "{:.4f}"),
                 *(f"{mean(group, direction + '_bits'):.2f}" for direction in DIRECTIONS),
                 *map(error, DIRECTIONS)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def table_of(study, rows):
    groups = groups_of(rows)
    links = len({key[0] for key, _ in groups}) > 1 or any(key[0] for key, _ in groups)
    codec = any(not math.isnan(row["codec_perplexity"]) for row in rows)
    header = ["setting", "stages", *(["link"] if links else []), "seeds", "perplexity",
              f"to {study.baseline}", *(["through codec"] if codec else []), "best",
              "bits forward", "backward", *(["replicas"] if study.replicas > 1 else []),
              "on the wire", "seconds", "sequences/s", "speed-up"]
    lines = head_of_table(study, header)
    for key, group in groups:
        change = against(groups, key, study.baseline, "perplexity")
        cells = [key[2], str(key[1]), *([group[0]["matrix_bandwidth"] or "none"] if links else []),
                 str(len(group)), with_spread(group, "perplexity", "{:.3f}"), f"{change:+.2f} %",
                 *([with_spread(group, "codec_perplexity", "{:.3f}")] if codec else []),
                 f"{mean(group, 'best_perplexity'):.3f}", f"{mean(group, 'forward_bits'):.2f}",
                 f"{mean(group, 'backward_bits'):.2f}",
                 *([f"{mean(group, 'replica_bits'):.2f}"] if study.replicas > 1 else []),
                 bytes_text(mean(group, "wire_bytes")),
                 f"{mean(group, 'seconds'):.1f}", f"{mean(group, 'sequences_per_second'):.1f}",
                 f"{mean(group, 'speedup'):.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def percent_of(rows, column):
    """Mean and deviation of shares, in percent."""
    shares = [{column: 100 * row[column]} for row in rows]
    return with_spread(shares, column, "{:.1f}")


def figure_cell(form, value):
    return "-" if math.isnan(value) else form.format(value)


def table_of_images(study, rows):
    groups = groups_of(rows)
    header = ["setting", "stages", "seeds", "accuracy [%]", f"to {study.baseline}", "through codec",
              f"to {study.baseline}", "best", "error forward", "backward", "bits forward",
              "backward", "on the wire", "seconds"]
    lines = head_of_table(study, header)
    for key, group in groups:
        base = dict(groups).get((key[0], key[1], study.baseline))
        cells = [key[2], str(key[1]), str(len(group))]
        for column in ("accuracy", "codec_accuracy"):
            change = 100 * (mean(group, column) - mean(base, "accuracy")) if base else NAN
            known = not math.isnan(mean(group, column))
            cells += [percent_of(group, column) if known else "-", figure_cell("{:+.1f}", change)]
        cells += [figure_cell("{:.1f}", 100 * mean(group, "best_accuracy")),
                  *(figure_cell("{:.3f}", mean(group, d + "_error")) for d in DIRECTIONS),
                  *(figure_cell("{:.2f}", mean(group, d + "_bits")) for d in DIRECTIONS),
                  bytes_text(mean(group, "wire_bytes")), f"{mean(group, 'seconds'):.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def claim_figures(study, claim, better, worse):
    """What a claim's two settings lose to each other, and text about it: perplexities in percent of
    the other one, accuracies in points."""
    (_, column), (_, other_column) = (measured(claim[key], study.metric)
                                      for key in ("better", "than"))
    p, q = mean(better, column), mean(worse, other_column)
    if study.data == "images":
        lost, unit = 100 * (q - p), "points"
        texts, change = (percent_of(better, column), percent_of(worse, other_column)), -lost
    else:
        lost = change = 100 * (p / q - 1)
        unit = "%"
        texts = with_spread(better, column, "{:.3f}"), with_spread(worse, other_column, "{:.3f}")
    return lost, (f"{claim['better']} {texts[0]}, {claim['than']} {texts[1]} "
                  f"({change:+.2f} {unit})")


def claim_lines(study, rows):
    """Whether what a paper found was found here: for each claim that one setting is at least `by`
    percent (of perplexity) or points (of accuracy) better than another, or within `within` of it;
    NAME:codec is a setting's metric through the codec."""
    lines = ["", f"| finding | here | figures ({study.metric}) |", "|---|---|---|"]
    if not study.claims:
        return []
    for claim in study.claims:
        better, worse = ([row for row in rows if row["setting"] == measured(claim[key])[0]]
                         for key in ("better", "than"))
        if not better or not worse:
            verdict, figures = "not run", ""
        else:
            lost, figures = claim_figures(study, claim, better, worse)
            holds = lost <= claim["within"] if "within" in claim else -lost >= claim["by"]
            verdict = "agrees" if holds else "does not agree"
        lines.append(f"| {claim['finding']} | {verdict} | {figures} |")
    return lines


def over_seeds(runs, column, x_of):
    """Mean x, mean and standard deviation of a column over runs that differ in their seed; None if
    it is missing. Runs that were evaluated less often bound the length."""
    runs = [run for run in runs if np.isfinite(run.evaluations.get(column, [NAN])).any()]
    if not runs:
        return None
    length = min(len(run.evaluations[column]) for run in runs)
    values = np.array([run.evaluations[column][:length] for run in runs], float)
    x = np.mean([x_of(run)[:length] for run in runs], axis=0)
    return x, values.mean(axis=0), values.std(axis=0, ddof=1) if len(runs) > 1 else None


def plot_curves(path, study, rows, runs):
    """Validation loss against epochs, bytes and seconds: a line for each setting, the mean over the
    seeds, with a band of one standard deviation; dashed through the codec. One row of panels for
    each number of stages and link. An evaluation before the first step is at epoch 0."""
    panels = list(dict.fromkeys((row["matrix_bandwidth"], row["stages"]) for row in rows))
    settings = list(study.settings)
    colors = dict(zip(settings, plt.get_cmap("tab20")(np.arange(len(settings)) % 20)))
    axes_of = (("epoch", lambda run: run.evaluations["epoch"]),
               ("on the wire in training [MB]", lambda run: bytes_at_evaluations(run) * 1e-6),
               ("time [s]", lambda run: run.evaluations["seconds"]))
    figure, grid = plt.subplots(len(panels), 3, figsize=(16, 4.4 * len(panels)), squeeze=False,
                                constrained_layout=True)
    for line, panel in zip(grid, panels):
        for i, setting in enumerate(settings):
            group = [run for row, run in zip(rows, runs) if row["setting"] == setting
                     and (row["matrix_bandwidth"], row["stages"]) == panel]
            for axes, (label, x_of) in zip(line, axes_of):
                axes.set_xlabel(label)
                for column, dash in (("loss", "-"), ("codec_loss", "--")):
                    curve = over_seeds(group, column, x_of)
                    if curve is None:
                        continue
                    x, mean_loss, deviation = curve
                    name = setting + (" through codec" if dash == "--" else "")
                    # The baseline is wide and pale: others that coincide with it lie on top.
                    base = setting == study.baseline
                    axes.plot(x, mean_loss, dash, marker=MARKERS[i % len(MARKERS)], markersize=4,
                              color=colors[setting], linewidth=4 if base else 1.4,
                              alpha=0.5 if base else 1, label=name)
                    if deviation is not None:
                        axes.fill_between(x, mean_loss - deviation, mean_loss + deviation,
                                          color=colors[setting], alpha=0.2, linewidth=0)
        where = f"{panel[1]} stages" + (f", {panel[0]}" if panel[0] else "")
        line[0].set_ylabel(f"validation loss, {where}")
        line[2].legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    for axes in itertools.chain.from_iterable(grid):
        axes.grid(alpha=0.3)
    figure.suptitle(study.title)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def plot_exact_match(path, study, rows):
    """Exact match over the bits of both directions: a panel for each job, a point for each run and
    the mean of each setting. Lines: uncompressed training with all and with fewer steps."""
    settings = [name for name in study.settings if name not in study.ruler]
    colors = dict(zip(settings, plt.get_cmap("tab10")(np.arange(len(settings)) % 10)))
    figure, grid = plt.subplots(1, len(study.jobs), figsize=(7 * len(study.jobs), 5), squeeze=False,
                                constrained_layout=True)
    groups = dict(job_groups(rows))
    dashes = dict(zip(sorted(study.ruler, key=study.ruler.get, reverse=True),
                      itertools.cycle(("-", "--", ":", "-."))))
    for axes, job in zip(grid[0], study.jobs):
        for setting, steps in study.ruler.items():
            if (job, setting) not in groups:
                continue
            share = 100 * mean(groups[job, setting], "exact_match")
            axes.axhline(share, color="grey", linewidth=1, linestyle=dashes[setting],
                         label=f"none, {steps:.0%} of the steps")
        for i, setting in enumerate(settings):
            group = groups.get((job, setting), [])
            if not group:
                continue
            bits = [row["forward_bits"] + row["backward_bits"] for row in group]
            marker, color = MARKERS[i % len(MARKERS)], colors[setting]
            axes.plot(bits, [100 * row["exact_match"] for row in group], marker, color=color,
                      markersize=4, alpha=0.5)
            axes.plot(np.mean(bits), 100 * mean(group, "exact_match"), marker, color=color,
                      markersize=9, label=setting)
        axes.set_title(job)
        axes.set_xlabel("bits per value, forward + backward")
        axes.set_ylabel("exact match [%]")
        axes.grid(alpha=0.3)
    # One legend beside the panels: it would hide points inside.
    grid[0][-1].legend(*grid[0][0].get_legend_handles_labels(), frameon=False, fontsize=8,
                       loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.suptitle(study.title)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def plot_links(path, study, rows):
    """Sequences or images per second by link, a bar a setting."""
    rate = "images_per_second" if study.data == "images" else "sequences_per_second"
    links = list(dict.fromkeys(row["matrix_bandwidth"] for row in rows))
    stages = list(dict.fromkeys(row["stages"] for row in rows))
    groups = dict(groups_of(rows))
    width = 0.8 / len(study.settings)
    figure, grid = plt.subplots(len(stages), 1, figsize=(11, 4 * len(stages)), squeeze=False,
                                constrained_layout=True)
    for axes, count in zip(grid[:, 0], stages):
        for i, setting in enumerate(study.settings):
            heights = [mean(groups[link, count, setting], rate)
                       if (link, count, setting) in groups else NAN for link in links]
            axes.bar(np.arange(len(links)) + i * width, heights, width, label=setting)
        axes.set_xticks(np.arange(len(links)) + 0.4 - width / 2)
        axes.set_xticklabels([link or "no link" for link in links])
        axes.set_ylabel(f"{rate.split('_')[0]}/s, {count} stages")
        axes.grid(axis="y", alpha=0.3)
    grid[0, 0].legend(frameon=False, fontsize=8, ncol=6, loc="lower center",
                      bbox_to_anchor=(0.5, 1.0))
    figure.savefig(path, dpi=130)
    plt.close(figure)


def channels_of(output):
    """Channels of the model that all runs of a study of texts start from."""
    config = output / "pretrain" / "model" / "config.json"
    if not config.is_file():
        raise RunError(f"{config}: no such file; nothing was run here yet")
    settings = json.loads(config.read_text(encoding="utf-8"))
    return settings.get("n_embd", settings.get("hidden_size"))


def read_rows(study, study_runs, output):
    """Rows and runs that finished; prints the names of the others."""
    channels = channels_of(output) if study.data == "text" else None
    rows, runs = [], []
    for study_run in study_runs:
        try:
            run = Run(output / study_run.name)
        except RunError as error:
            print(f"left out: {error}")
            continue
        if run.status != "finished" or not run.length:
            print(f"left out: {study_run.name}: {run.status}")
            continue
        row = (row_of(study_run, run, channels) if study.data == "text"
               else row_of_images(study_run, run))
        rows.append({**row, "run": study_run.name, "matrix_bandwidth": study_run.bandwidth})
        runs.append(run)
    if not rows:
        raise RunError(f"{output}: no finished run")
    return rows, runs


def summarise(study, study_runs, output):
    """Writes summary.csv, summary.h5, table.md, curves.png and, with several links, links.png; of a
    study with jobs exact_match.png instead of the curves."""
    rows, runs = read_rows(study, study_runs, output)
    fill_speedups(rows, study.baseline)
    if study.data == "images":
        fill_bits(rows, study.baseline)
    write_csv(output / "summary.csv", study, rows)
    write_hdf5(output / "summary.h5", study, rows, runs)
    table = (table_of_images if study.data == "images" else table_of_jobs if study.texts
             else table_of)
    lines = table(study, rows) + claim_lines(study, rows)
    (output / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    picture = "exact_match.png" if study.texts else "curves.png"
    if study.texts:
        plot_exact_match(output / picture, study, rows)
    else:
        plot_curves(output / picture, study, rows, runs)
    if len(study.matrix["bandwidths"]) > 1:
        plot_links(output / "links.png", study, rows)
    print(f"in {output}: summary.csv summary.h5 table.md {picture}")
