"""A Gradio Space for a model that was pushed with `slimprompt push`. Set MODEL to its name."""

import os

from slimprompt import load_classifier

MODEL = os.environ.get("MODEL", "hf:user/name")
classifier = load_classifier(MODEL, device="cpu")


def classify(image):
    """PIL image → probability of each class."""
    (probabilities,) = classifier.predict_proba([image])
    return {str(name): float(value) for name, value in zip(classifier.classes_, probabilities, strict=True)}


if __name__ == "__main__":
    import gradio

    page = gradio.Interface(classify, gradio.Image(type="pil"), gradio.Label(num_top_classes=5), title=MODEL)
    page.launch()
