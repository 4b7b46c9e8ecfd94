#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""make_exercises.py DIRECTORY: the texts of the study `generation`, short exercises whose answers are
right or wrong. Always the same; what is there is not made again.

pretrain.jsonl          exercises of other kinds, for a model that knows the form and some of the skills
learning-*.jsonl        six tasks that this model has to learn: sorting, reversing, dates, several
                        answers, shifting, counting
fine-tuning-*.jsonl     the same tasks with longer words and in other forms, for a model that has
                        learnt the first ones

JOB-train.jsonl and JOB-valid.jsonl have documents of exercises, as many as fit into 126 bytes, a line
each. JOB-prompts.jsonl has questions that are in neither text, 200 of each task, after three solved
exercises: `prompt`, `answer`, `task`. A newline ends an answer.
"""

import argparse
import json
import pathlib
import random

LETTERS = "abcdefghijklmnopqrstuvwxyz"
MONTHS = ("january february march april may june july august september october november "
          "december").split()
DOCUMENT_BYTES = 126
PRETRAIN_DOCUMENTS = 60000
TRAIN_DOCUMENTS = {"learning": 1100, "fine-tuning": 1100}
VALID_DOCUMENTS = 300
PROMPTS_OF_A_TASK = 200


def word(rng, shortest, longest):
    return "".join(rng.choice(LETTERS) for _ in range(rng.randint(shortest, longest)))


def different_letters(rng, count):
    return "".join(rng.sample(LETTERS, count))


def ordered(letters):
    return "".join(sorted(letters))


def shifted(letters):
    return "".join(LETTERS[(LETTERS.index(c) + 1) % 26] for c in letters)


def date(rng):
    return rng.randint(1, 28), rng.randint(0, 11), rng.randint(1000, 2999)


# Exercises to pretrain on: each returns a line.

def sum_of_two(rng):
    a, b = rng.randint(0, 99), rng.randint(0, 99)
    return f"{a:02d}+{b:02d}={a + b:03d}"


def sum_backwards(rng):
    a, b = rng.randint(10, 99), rng.randint(10, 99)
    return f"{a}+{b} is {str(a + b)[::-1]}"


def sum_of_last_digits(rng):
    a, b = rng.randint(0, 99), rng.randint(0, 99)
    return f"{a:02d},{b:02d},{(a + b) % 100:02d}"


def copied(rng):
    text = word(rng, 3, 8)
    return f"copy {text} {text}"


def four_in_order(rng):
    letters = different_letters(rng, 4)
    return f"sort {letters} {ordered(letters)}"


def four_backwards(rng):
    text = word(rng, 4, 4)
    return f"back {text} {text[::-1]}"


def looked_up(rng):
    keys = different_letters(rng, 3)
    values = [f"{rng.randint(0, 99):02d}" for _ in keys]
    chosen = rng.randrange(3)
    table = ",".join(key + value for key, value in zip(keys, values))
    return f"get {table} {keys[chosen]}={values[chosen]}"


def date_with_points(rng):
    day, month, year = date(rng)
    return f"{MONTHS[month]} {day}, {year} is {day}.{month + 1}.{year}"


PRETRAIN = (sum_of_two, sum_backwards, sum_of_last_digits, sum_of_last_digits, copied, four_in_order,
            four_backwards, looked_up, date_with_points)


# Tasks of the jobs: each returns a question and its answer.

def sorting(count):
    def task(rng):
        letters = different_letters(rng, count)
        return f"s {letters}:", ordered(letters)
    return task


def reversing(shortest, longest):
    def task(rng):
        text = word(rng, shortest, longest)
        return f"r {text}:", text[::-1]
    return task


def dating(form):
    def task(rng):
        day, month, year = date(rng)
        return (f"d {day} {MONTHS[month]} {year}:",
                form.format(day=day, month=month + 1, year=year))
    return task


def several_answers(count):
    def task(rng):
        letters = different_letters(rng, count)
        up = ordered(letters)
        return f"m {letters}:", f"{letters[::-1]} {up} {up[::-1]}"
    return task


def shifting(count):
    def task(rng):
        text = word(rng, count, count)
        return f"v {text}:", shifted(text)
    return task


def counting(step):
    def task(rng):
        first = rng.randint(0, 999 - 3 * step)
        return f"c {first:03d}:", " ".join(f"{first + k * step:03d}" for k in (1, 2, 3))
    return task


JOBS = {
    "learning": {"sort": sorting(6), "reverse": reversing(5, 7),
                 "date": dating("{year}-{month:02d}-{day:02d}"), "several": several_answers(5),
                 "shift": shifting(5), "count": counting(1)},
    "fine-tuning": {"sort": sorting(8), "reverse": reversing(8, 9),
                    "date": dating("{day:02d}/{month:02d}/{year}"), "several": several_answers(6),
                    "shift": shifting(7), "count": counting(2)},
}


def documents(make_line, count):
    for _ in range(count):
        text = ""
        while len(text) + len(line := make_line()) + 1 <= DOCUMENT_BYTES:
            text += line + "\n"
        yield {"text": text}


def write_lines(path, rows):
    part = path.with_suffix(".part")
    with open(part, "w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
    part.replace(path)


def questions_of(rng, tasks):
    """(task, question, answer), no question twice."""
    found, seen = [], set()
    for _ in range(PROMPTS_OF_A_TASK):
        for name, task in tasks.items():
            while True:
                question, answer = task(rng)
                if question not in seen:
                    break
            seen.add(question)
            found.append((name, question, answer))
    return found, seen


def make_job(directory, job, rng):
    tasks = JOBS[job]
    questions, kept_out = questions_of(rng, tasks)
    names = list(tasks)

    def line():
        while True:
            question, answer = tasks[rng.choice(names)](rng)
            if question not in kept_out:
                return question + answer

    def prompt(question, answer):
        while True:
            context = "".join(line() + "\n" for _ in range(3))
            if len(context + question + answer) <= DOCUMENT_BYTES:
                return context + question

    write_lines(directory / f"{job}-train.jsonl", documents(line, TRAIN_DOCUMENTS[job]))
    write_lines(directory / f"{job}-valid.jsonl", documents(line, VALID_DOCUMENTS))
    write_lines(directory / f"{job}-prompts.jsonl",
                ({"prompt": prompt(question, answer), "answer": answer, "task": name}
                 for name, question, answer in questions))


def make(directory):
    directory.mkdir(parents=True, exist_ok=True)
    if not (directory / "pretrain.jsonl").is_file():
        rng = random.Random(1)
        write_lines(directory / "pretrain.jsonl",
                    documents(lambda: rng.choice(PRETRAIN)(rng), PRETRAIN_DOCUMENTS))
    for seed, job in enumerate(JOBS, start=2):
        if not (directory / f"{job}-prompts.jsonl").is_file():
            make_job(directory, job, random.Random(seed))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    make(parser.parse_args().directory)


if __name__ == "__main__":
    main()
