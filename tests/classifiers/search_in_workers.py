"""A grid search in two worker processes, which prints its scores: started by `start_command` with a model and a folder of images."""

import json
import sys
from pathlib import Path

import joblib
from sklearn.model_selection import GridSearchCV, StratifiedKFold

from slimprompt import PromptClassifier, Recipe
from slimprompt.clip.backbone import load_backbone


def main() -> None:
    """The classifier is pickled with its backbone; the workers are forked, so that they need not import torch again."""
    images = sorted(Path(sys.argv[2]).glob("*/*.png"))
    recipe = Recipe(epochs=4, batch_size=8, views=2)
    classifier = PromptClassifier(load_backbone(sys.argv[1]), recipe=recipe, n_ctx=4, rank=2)
    search = GridSearchCV(classifier, {"rank": [1, 2]}, cv=StratifiedKFold(2), n_jobs=2)
    with joblib.parallel_config(backend="multiprocessing"):
        search.fit(images, [path.parent.name for path in images])
    print(json.dumps(search.cv_results_["mean_test_score"].tolist()))
