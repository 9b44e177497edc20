import re

import numpy as np

from slimprompt.report.fit_figures import confusion_matrix, training_curve
from tests.svg import texts


def test_confusion_matrix_with_empty_classes_and_special_characters():
    counts = np.array([[3, 1, 0], [0, 0, 0], [0, 0, 5]])
    figure = confusion_matrix(["<b>cat</b>", "$dog$", "x" * 80], counts)
    shown = texts(figure)
    assert "<b>cat</b>" in shown and "$dog$" in shown and "x" * 27 + "…" in shown
    assert [text for text in shown if re.fullmatch(r"[135]", text)] == ["3", "1", "5"]
    assert confusion_matrix([str(n) for n in range(40)], np.eye(40, dtype=int)).svg


def test_the_training_curve_starts_at_epoch_one():
    shown = texts(training_curve([(2.0, 10.0), (1.0, 60.0)]))
    assert shown.count("epoch") == 2 and {"1", "2"} <= set(shown)
