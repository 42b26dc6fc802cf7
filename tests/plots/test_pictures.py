"""Drawing: without a display, under any locale, the same bytes every time, readable errors."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import warnings
import xml.etree.ElementTree

import sample

import pictures_backward
import pictures_gpu
import pictures_lessons
import pictures_step09
import plot
import results
import training_results

PLOT = sample.PLOTS / "plot.py"
STUDY = sample.PLOTS / "data" / "study.csv"


def relative_luminance(colour):
    """WCAG 2: of '#rrggbb'."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    low, high = sorted((relative_luminance(a), relative_luminance(b)))
    return (high + 0.05) / (low + 0.05)


class Pictures(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.place = pathlib.Path(self.directory.name)
        self.csv = self.place / "x.csv"
        self.csv.write_text(sample.text(*sample.gpu_rows()))

    def draw(self, out, **environment):
        variables = {name: value for name, value in os.environ.items() if name != "DISPLAY"}
        command = [sys.executable, PLOT, "--out", self.place / out, self.csv, STUDY]
        return subprocess.run(command, capture_output=True, text=True, env={**variables, **environment})

    def drawn(self, out, **environment):
        done = self.draw(out, **environment)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertNotIn("skipped", done.stdout)
        return {path.name: path.read_bytes() for path in (self.place / out).glob("*.svg")}

    def test_E10_E11_all_pictures_are_drawn_without_a_display_and_alike_under_a_comma_locale(self):
        pictures = self.drawn("a", MPLBACKEND="TkAgg", LC_ALL="C")
        self.assertEqual(set(pictures), {f"{name}.svg" for name in plot.PICTURES})
        for name, contents in pictures.items():
            with self.subTest(name):
                self.assertTrue(xml.etree.ElementTree.fromstring(contents).tag.endswith("svg"))
                self.assertNotIn(b"dc:date", contents)
        self.assertEqual(pictures, self.drawn("b", LC_ALL="de_DE.UTF-8"))

    def test_E11_a_broken_results_file_is_one_readable_line(self):
        for name, (contents, words) in sample.BROKEN.items():
            with self.subTest(name):
                self.csv.write_text(contents)
                done = self.draw("a", LC_ALL="de_DE.UTF-8")
                self.assertEqual(done.returncode, 1)
                self.assertIn(words, done.stderr)
                self.assertNotIn("Traceback", done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1)

    def test_a_directory_that_takes_no_pictures_is_one_sentence(self):
        for out in (self.csv, self.csv / "img", "/proc/img"):
            done = self.draw(out)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, r"\Aerror: cannot write pictures to '.*\n\Z")

    def test_a_picture_without_its_numbers_is_skipped_with_the_reason(self):
        lines = [line for line in sample.text().splitlines() if ",traffic_per_launch," not in line]
        self.csv.write_text("\n".join(lines) + "\n")
        done = self.draw("a")
        self.assertEqual(done.returncode, 0)
        self.assertIn("io_model.svg skipped: no results for counted traffic", done.stdout)
        self.assertFalse((self.place / "a" / "io_model.svg").exists())
        for name in [*pictures_gpu.PICTURES, *pictures_backward.PICTURES]:  # no row of this file is a GPU's
            if name == "training":  # has a file of its own
                continue
            self.assertIn(f"{name}.svg skipped: no results for", done.stdout)
        self.assertTrue((self.place / "a" / "memory_vs_n.svg").exists())

    def test_a_picture_of_incomplete_results_is_drawn_or_skipped(self):
        numberless = {"online_softmax", "real_attention", "training", *pictures_lessons.PICTURES, *pictures_step09.PICTURES}
        for name in plot.PICTURES.keys() - numberless:
            outcomes = {"drawn": 0, "skipped": 0}

            def show(rows):
                plot.style()
                try:
                    plot.PICTURES[name](plot.rows_for(name, rows))
                    return "drawn"
                except plot.Skip as why:
                    self.assertRegex(str(why), "^no results for ")
                    return "skipped"
                finally:
                    plot.plt.close("all")

            for missing, rows in sample.incomplete(show):
                with self.subTest(picture=name, missing=missing), warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # an axis without points
                    outcomes[show(rows)] += 1
            self.assertGreater(min(outcomes.values()), 0, (name, outcomes))

    def test_every_line_is_drawn_however_many_there_are(self):
        plot.style()
        fig = plot.io_model(sample.whole())
        labels = [text.get_text() for text in fig.axes[-1].get_legend().get_texts()]
        self.assertEqual(len(labels), 7)
        for words in ("step 04,", "step 05,", "step 08,", "09, backward, fast,", "09, backward, slow,"):
            self.assertEqual(len([label for label in labels if words in label]), 1, labels)
        points = [line for line in fig.axes[0].lines if line.get_linestyle() == "None"]
        looks = {(line.get_color(), line.get_marker(), line.get_fillstyle()) for line in points}
        self.assertEqual((len(points), len(looks)), (7, 7))
        plot.plt.close(fig)

    def test_a_training_with_more_attentions_has_a_line_for_each(self):
        losses = {name: [(1, 3.0), (2, 2.0)] for name in "abcd"}
        found = training_results.Training(losses, "a problem", "cuda", "a device")
        with unittest.mock.patch.object(training_results, "newest", lambda: found):
            fig = plot.PICTURES["training"]([])
        self.assertEqual([line.get_label() for line in fig.axes[0].lines], list("abcd"))
        plot.plt.close(fig)

    def test_a_line_that_the_first_panel_lacks_is_in_the_legend(self):
        rows = [row for row in sample.whole() if (row["variant"], row["D"]) != ("SDPA cuDNN", 64)]
        plot.style()
        fig = plot.PICTURES["backward_share"](plot.rows_for("backward_share", rows))
        self.assertIn("SDPA cuDNN", [text.get_text() for text in fig.axes[-1].get_legend().get_texts()])
        plot.plt.close(fig)

    def test_every_colour_is_readable_on_white_and_on_near_black(self):
        for colour in [plot.INK, *(look["color"] for look in plot.STYLES)]:
            for background in ("#ffffff", "#0d1117"):
                with self.subTest(colour=colour, background=background):
                    self.assertGreaterEqual(contrast(colour, background), 4.3 if colour == plot.INK else 3)

    def test_no_label_of_a_ceiling_is_crossed_or_covered(self):
        rows = [row for path in results.committed() for row in results.read(path)]
        for name in ("gpu_ladder", "roofline"):
            plot.style()
            fig = plot.PICTURES[name](plot.rows_for(name, rows))
            fig.canvas.draw()
            (ax,) = fig.axes
            boxes = {text.get_text(): text.get_window_extent() for text in ax.texts}
            self.assertGreater(len(boxes), 6)
            ends = [list(line.get_ydata()) for line in ax.lines]
            ceilings = [ax.transData.transform((1, y[0]))[1] for y in ends if len(y) == 2 and y[0] == y[1]]
            self.assertGreaterEqual(len(ceilings), 2)
            for words, box in boxes.items():
                with self.subTest(picture=name, label=words):
                    self.assertEqual([y for y in ceilings if box.y0 < y < box.y1], [])
                    self.assertEqual([other for other in boxes if other != words and box.overlaps(boxes[other])], [])
            plot.plt.close(fig)

    def test_dark_text_is_readable_on_every_area(self):
        for look in plot.STYLES:
            self.assertGreaterEqual(contrast("#000000", look["color"]), 4.5)

    def test_lines_differ_in_more_than_colour(self):
        self.assertEqual(len({look["marker"] for look in plot.STYLES}), len(plot.STYLES))
        self.assertEqual(len({look["linestyle"] for look in plot.STYLES}), len(plot.STYLES))


if __name__ == "__main__":
    unittest.main()
