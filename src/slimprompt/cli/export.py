"""`slimprompt export`: a saved model as an ONNX file or a class matrix."""

from __future__ import annotations

from pathlib import Path

import typer

from slimprompt.cli.options import Model, ModelOptions, OtherClasses, model_options, parse_class_names
from slimprompt.cli.printing import say, size
from slimprompt.errors import InputError
from slimprompt.files import check_files


@model_options("pretrained", "activation", "max_megapixels")
def export(
    model: Model,
    onnx: Path | None = typer.Option(
        None, help="Write image tower, head, temperature and softmax as one ONNX file: pixels → probabilities."
    ),
    matrix: Path | None = typer.Option(
        None,
        help="Write class features, scale and temperature as a safetensors file, for code that computes image features.",
    ),
    classes: OtherClasses = None,
    images: list[Path] | None = typer.Option(
        None, help="Images, or a folder of them, to compare the ONNX file with torch on, beside random ones."
    ),
    tolerance: float = typer.Option(
        1e-3, min=0, help="Largest difference of a probability; above it, no ONNX file is written."
    ),
    overwrite: bool = typer.Option(False, "--overwrite", help="Overwrite files that exist."),
    *,
    model_options: ModelOptions,
) -> None:
    """Write a saved model as files that need neither slimprompt nor its text tower.

    --onnx: one file with everything from pixels to probabilities, for batches of any size. Class names and preprocessing are
    in its metadata. It is run by onnxruntime and compared with torch before it is kept. Needs: pip install 'slimprompt\\[onnx]'.

    --matrix: only the class features, for code that computes image features with the same CLIP, such as CLIPModel of transformers.

    Example: slimprompt export my-prompt --onnx classifier.onnx
    Example: slimprompt export my-prompt --onnx classifier.onnx --classes "red panda,otter"
    Example: slimprompt export my-prompt --matrix classes.safetensors
    """
    if onnx is None and matrix is None:
        raise InputError("export to what? Give --onnx classifier.onnx, --matrix classes.safetensors, or both")
    if onnx is None and images:
        raise InputError("--images are images to compare an ONNX file on: add --onnx FILE")
    names = parse_class_names(classes) if classes is not None else None
    from slimprompt.images.decode import image_files

    paths = image_files(images or [])
    from slimprompt.export.contents import check_target
    from slimprompt.export.matrix import export_matrix
    from slimprompt.export.onnx import export_onnx

    check_files(onnx, matrix)
    if matrix is not None and matrix.suffix != ".safetensors":
        raise InputError(f"--matrix writes a safetensors file: {matrix} must end in .safetensors")
    for target in (onnx, matrix):
        if target is not None:
            check_target(target, overwrite=overwrite)
    classifier = model_options.model_copy(update={"device": "cpu"}).load_classifier(model)
    if names is not None:
        classifier = classifier.with_classes(names)
    about = f"{len(classifier.classes_)} classes on {classifier.backbone_.title}"
    if matrix is not None:
        export_matrix(classifier, matrix, overwrite=overwrite)
        say(f"class matrix of {about}: {matrix}")
    if onnx is not None:
        with model_options.reading():
            found = export_onnx(
                classifier,
                onnx,
                images=paths,
                tolerance=tolerance,
                overwrite=overwrite,
                report=lambda step: say(step, err=True),
            )
        say(
            f"onnxruntime and torch on {found.n_images} images, in batches of different sizes: largest difference of a probability "
            f"{found.largest_difference:.1e} (allowed: {tolerance:.1e}), same class for {found.n_agree} of {found.n_images}"
        )
        say(f"ONNX file of {about}: {found.file} ({size(found.n_bytes)})")
